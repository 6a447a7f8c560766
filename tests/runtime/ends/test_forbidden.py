"""What a handler must not do: it is refused in its line, fails its run, and leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import text

from tests.runtime.bench import EFFECT, Bench
from tests.runtime.execution.warm_child import run_many
from tests.runtime.handler_db.kept_connections import driver
from tests.runtime.handler_db.twins import twin

TOGETHER = "commits together with the task's outcome; nothing else may commit or end it"
AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}
READ_ONLY = {"postgresql_readonly": True}


def write(ctx: Any) -> None:
    ctx.connection.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})


def by_driver(name: str) -> Callable[[Any], None]:
    return lambda ctx: setattr(driver(ctx), name, True)


def own_block(ctx: Any) -> None:
    with ctx.session.begin():
        write(ctx)


FIRST: list[tuple[Callable[[Any], Any], str]] = [
    (lambda ctx: ctx.connection.execution_options(**AUTOCOMMIT), TOGETHER),
    (lambda ctx: ctx.session.connection(execution_options=AUTOCOMMIT), TOGETHER),
    (by_driver("autocommit"), TOGETHER),
    (lambda ctx: ctx.connection.begin_twophase().prepare(), TOGETHER),  # 2.0 begins a plain one
    (own_block, TOGETHER),
    (lambda ctx: ctx.connection.execution_options(**READ_ONLY), "read-only"),
    (lambda ctx: ctx.session.connection(execution_options=READ_ONLY), "read-only"),
    (by_driver("read_only"), "read-only"),
]
"""Before anything else is said."""
BEHIND: list[tuple[Callable[[Any], Any], str]] = [
    (lambda ctx: ctx.session.execute(text("COMMIT")), TOGETHER),
    (lambda ctx: ctx.session.execute(text("ROLLBACK")), TOGETHER),
    (lambda ctx: ctx.session.execute(text("SELECT 'it''s; '; COMMIT")), TOGETHER),
    (lambda ctx: driver(ctx).execute(sql.SQL("COMMIT")), TOGETHER),
    (lambda ctx: driver(ctx).execute("SELECT 1; COMMIT"), TOGETHER),
    (lambda ctx: driver(ctx).cursor().executemany("COMMIT AND CHAIN", [()]), TOGETHER),
    (lambda ctx: list(driver(ctx).cursor().stream("COMMIT AND CHAIN")), TOGETHER),
    (lambda ctx: driver(ctx).cursor().copy("COMMIT AND CHAIN").__enter__(), TOGETHER),
    (lambda ctx: ctx.session.begin_nested() and ctx.session.get_transaction().commit(), TOGETHER),
    (lambda ctx: ctx.write("COMMIT"), TOGETHER),
    (lambda ctx: ctx.write("SELECT 1; ROLLBACK"), TOGETHER),
    (lambda ctx: ctx.write(text("SELECT 1")), "ctx.write takes SQL text"),
    (lambda ctx: ctx.write(b"SELECT 1"), "ctx.write takes SQL text"),
    (lambda ctx: ctx.write("SELECT 1 \0"), "has a NUL in it"),
    (lambda ctx: ctx.write("/* all */ copy effect FROM STDIN"), "ctx.write sends no COPY"),
]
"""When it has written."""


@pytest.mark.parametrize("lane", ["plain", "async"])
def test_what_is_forbidden_fails_alone_and_leaves_nothing(bench: Bench, lane: str) -> None:
    acts = [*BEHIND, *(FIRST if lane == "plain" else ())]  # an async session begins at once

    def h(ctx: Any, payload: dict[str, int]) -> None:
        act, odd = divmod(payload["n"], 2)
        if not odd or act < len(BEHIND):
            write(ctx)
        if odd:
            acts[act][0](ctx)
            write(ctx)
            raise AssertionError

    bench.handler(max_attempts=1)(twin(h, is_async=lane == "async"))

    ids = run_many(bench, 2 * len(acts), give_back_after=60)

    assert bench.states(ids) == ["SUCCEEDED", "FAILED"] * len(acts)
    assert [bench.effects(task_id) for task_id in ids] == [1, 0] * len(acts)
    errors = [bench.task(task_id).error or "" for task_id in ids[1::2]]
    wrong = [
        (n, told, error)
        for n, ((_, told), error) in enumerate(zip(acts, errors, strict=True))
        if told not in error
    ]
    assert wrong == []
