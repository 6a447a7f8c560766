"""The contract of an end: effects stand if and only if the outcome does; nothing is there twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import make_url, text
from sqlalchemy.orm import Session

from dev.torture.fault_proxy import FaultProxy
from tasks_app import NewTask, create_tasks
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.testing import drain
from tests.runtime.bench import EFFECT, Bench, run_many
from tests.runtime.ends.points import (
    SEEN,
    WAYS,
    Actor,
    Case,
    Setting,
    Trial,
    cases,
    differences,
    triggers,
)
from tests.runtime.handler_db.kept_connections import driver
from tests.runtime.handler_db.twins import twin
from tests.tiers import few

SETS = [
    *(("plain", "row"), ("async", "group")),
    *(("plain", each) for each in ("slow", "threads", "group", "none", "failures", "once")),
    *(("async", each) for each in ("row", "none", "once")),
    *(("pooled", each) for each in ("row", "group", "once")),
]
"""Who calls the handler, and what the task is; the first ones are of the first tier."""


@pytest.fixture
def stage(bench: Bench) -> Iterator[Bench]:
    """The workbench, where what runs write may fail when it ends."""
    with triggers(bench):
        yield bench


@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize(("lane", "circumstance"), few(2, SETS))
def test_effects_stand_if_and_only_if_the_outcome_does(
    stage: Bench, lane: str, circumstance: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By whatever way they are written, and wherever the end fails."""
    trial = Trial(stage, Setting(lane, circumstance))
    trial.create(cases())
    assert trial.faults(caplog) == []


@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize("lose", ["lose_request", "lose_reply_to"])
@pytest.mark.parametrize(
    ("lane", "circumstance"),
    few(1, [(lane, each) for each in ("row", "once") for lane in ("plain", "async", "pooled")]),
)
def test_an_unanswered_commit_stands_or_not(
    stage: Bench, lane: str, circumstance: str, lose: str
) -> None:
    """It is charged to nobody, and never settled without its effects."""
    trial = Trial(stage, Setting(lane, circumstance, took_place=lose == "lose_reply_to"))
    url = make_url(stage.url)
    ways = [*WAYS[2:], "write"]  # what shares a round trip is sent when all have been called
    with FaultProxy((url.host or "", url.port or 0), only=b"INTO effect") as proxy:
        trial.actor.at_answer = lambda: getattr(proxy, lose)(b"COMMIT\0")
        trial.create([Case(way, at) for way in ways for at in ("nowhere", "answer", "nowhere")])
        trial.run(url=url.set(port=proxy.port).render_as_string(hide_password=False))
        assert proxy.lost == len(ways)

    assert trial.differences() == []
    trial.run_what_is_left()
    assert trial.differences(at_last=True) == []
    assert trial.in_two_transactions() == []


OF_THE_KIT = ["nowhere", "cancelled", "handler", "late write"]
"""Where a drain in the test's transaction is like a worker; it has no COMMIT, and no rivals."""


@pytest.mark.timeout(120, method="thread")
def test_the_testing_kit_ends_runs_as_a_worker_does(stage: Bench) -> None:
    registry = Registry()
    with (
        stage.engine.connect() as connection,
        connection.begin(),
        Session(connection, join_transaction_mode="create_savepoint") as session,
    ):

        def aside(query: str, task_id: int) -> Any:
            return None if query == SEEN else connection.execute(text(query), {"id": task_id})

        handler("t", registry=registry, retry="1h")(Actor(aside, stage.runs).plain)
        table = [*cases(names=OF_THE_KIT), Case("session", "commit()"), Case("write", "COMMIT")]
        ids = create_tasks(session, [NewTask("t", {"case": list(case)}) for case in table])

        drain(session, registry=registry)

        found = differences(connection, dict(zip(ids, table, strict=True)), stage.runs, Setting())
        connection.rollback()
    assert found == []


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
    errors = [bench.error(task_id) for task_id in ids[1::2]]
    wrong = [
        (n, told, error)
        for n, ((_, told), error) in enumerate(zip(acts, errors, strict=True))
        if told not in error
    ]
    assert wrong == []
