"""What statements of handlers say: ends of the transaction, and what no look would find."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from tasks_app.runtime.handler_db.statements import ends_transaction, stays_in_session
from tests.runtime.bench import Bench, effect
from tests.runtime.handler_db.twins import twin

BACKEND = text("SELECT pg_backend_pid()")


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        " commit work",
        "END",
        "/* now */ COMMIT AND CHAIN",
        "-- now\nCOMMIT",
        "ROLLBACK",
        "abort",
        "PREPARE TRANSACTION 'x'",
        "SELECT 1; COMMIT",
        "SELECT 1; -- now\n ROLLBACK; SELECT 2",
    ],
)
def test_the_end_of_the_transaction_is_recognised(statement: str) -> None:
    assert ends_transaction(statement)


@pytest.mark.parametrize(
    "statement",
    ["LOAD 'auto_explain'", "/* why */ load 'x'", "SELECT dblink_connect('x', 'dbname=y')"],
)
def test_what_neither_a_look_finds_nor_a_reset_takes_back_is_recognised(statement: str) -> None:
    assert stays_in_session(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "SAVEPOINT a",
        "RELEASE SAVEPOINT a",
        "ROLLBACK TO SAVEPOINT a",
        "rollback work to a",
        "SELECT 1; ROLLBACK TO a",
        "INSERT INTO settings (key) VALUES ('set')",
        "INSERT INTO notes VALUES ('first; commit')",
        "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN NULL; END $$",
        "UPDATE commits SET n = 1",
        "SELECT ended FROM ends",
        "SELECT load FROM machines",
    ],
)
def test_everyday_statements_say_nothing_of_the_kind(statement: str) -> None:
    assert not ends_transaction(statement)
    assert not stays_in_session(statement)


@pytest.mark.usefixtures("cold_connections")
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("statement", "stays"),
    [
        ("SELECT 1", True),
        ("SET LOCAL lock_timeout = 7", True),
        ("SET lock_timeout = 7", True),
        ("CREATE TEMP TABLE left_behind ()", False),
        ("LOAD 'plpgsql'", False),
        ("SELECT 1 AS dblink_connect", False),
    ],
)
def test_a_connection_is_lent_again_only_as_it_was(
    bench: Bench, statement: str, *, stays: bool, is_async: bool
) -> None:
    """Settings are taken back; what cannot be costs the connection."""

    def h(ctx: Any) -> int:
        ctx.session.execute(text(statement))
        return int(ctx.session.scalar(BACKEND))

    bench.handler()(twin(h, is_async=is_async))
    ids = [bench.create() for _ in range(2)]

    bench.drain(async_connections=1)

    first, second = (bench.task(task_id).result for task_id in ids)
    assert bench.states(ids) == ["SUCCEEDED"] * 2
    assert (first == second) is stays


def test_a_thread_gets_no_session_when_the_task_is_over(bench: Bench) -> None:
    kept: list[Any] = []

    @bench.handler()
    def h(ctx: Any) -> None:
        effect(ctx)
        kept.extend([ctx, ctx.session])

    task_id = bench.run_one()
    context, session = kept

    with pytest.raises(RuntimeError, match="The run is over"):
        _ = context.session
    with pytest.raises(Exception, match="permanently closed"):
        session.execute(text("SELECT 1"))
    assert bench.effects(task_id) == 1
