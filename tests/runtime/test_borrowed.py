"""Connections that handlers borrow: nobody ends their transaction, and no setting stays in them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text
from tasks_app.runtime.borrowed import Trace, trace_of

from tests.runtime.bench import Bench, effect

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
    ],
)
def test_the_end_of_the_transaction_is_recognised(statement: str) -> None:
    assert trace_of(statement) is Trace.END


@pytest.mark.parametrize(
    "statement",
    [
        "SET search_path TO tenant_5",
        "set session lock_timeout = 1",
        "SET ROLE somebody",
        "RESET ALL",
        "LISTEN x",
        "LOAD 'x'",
        "CREATE TEMP TABLE x (id int)",
        "CREATE OR REPLACE TEMPORARY VIEW x AS SELECT 1",
        "SELECT 1 AS id INTO TEMP x",
        "PREPARE x AS SELECT 1",
        "DECLARE x CURSOR WITH HOLD FOR SELECT 1",
        "SELECT set_config('app.tenant', '5', false)",
        "SELECT pg_try_advisory_lock(1)",
    ],
)
def test_what_stays_in_the_session_is_recognised(statement: str) -> None:
    assert trace_of(statement) is Trace.SESSION


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "SAVEPOINT a",
        "RELEASE SAVEPOINT a",
        "ROLLBACK TO SAVEPOINT a",
        "rollback work to a",
        "INSERT INTO settings (key) VALUES ('set')",
        "UPDATE commits SET n = 1",
        "SELECT ended FROM ends",
        "SELECT temp FROM weather",
    ],
)
def test_everyday_statements_leave_no_trace(statement: str) -> None:
    assert trace_of(statement) is Trace.TRANSACTION


@pytest.mark.parametrize(
    "statement",
    [
        "SET LOCAL lock_timeout = 1",
        "/* why */ set transaction READ ONLY",
        "SET CONSTRAINTS ALL DEFERRED",
    ],
)
def test_what_holds_until_the_end_of_the_transaction_is_recognised(statement: str) -> None:
    assert trace_of(statement) is Trace.SETTING


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
def test_the_end_as_text_is_refused_and_nothing_stays(bench: Bench, word: str) -> None:
    @bench.handler(max_attempts=1)
    def h(ctx: Any) -> None:
        effect(ctx)
        ctx.session.execute(text(word))

    task_id = bench.create()

    bench.drain()

    assert (bench.state(task_id), bench.effects(task_id)) == ("FAILED", 0)
    assert "commits together" in (bench.task(task_id).error or "")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("statement", "stays"),
    [("SELECT 1", True), ("SET LOCAL lock_timeout = 7", True), ("SET lock_timeout = 7", False)],
)
def test_a_connection_is_lent_again_only_as_it_was(
    bench: Bench, statement: str, *, stays: bool, is_async: bool
) -> None:
    @bench.handler("sync")
    def sync(ctx: Any) -> int:
        ctx.session.execute(text(statement))
        return int(ctx.session.scalar(BACKEND))

    @bench.handler("async")
    async def asynchronous(ctx: Any) -> int:
        await ctx.session.execute(text(statement))
        return int(await ctx.session.scalar(BACKEND))

    ids = [bench.create("async" if is_async else "sync") for _ in range(2)]

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

    task_id = bench.create()

    bench.drain()
    context, session = kept

    with pytest.raises(RuntimeError, match="The task is over"):
        _ = context.session
    with pytest.raises(Exception, match="permanently closed"):
        session.execute(text("SELECT 1"))
    assert bench.effects(task_id) == 1
