"""The sub-status: what a handler says of its task's state, and for how long it stays."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from tasks_app import Fail, InvalidTaskError, Retry, Skip, Snooze, get_task, requeue_task
from tasks_app.pool.tasks.browse import find_tasks
from tests.factory import some
from tests.runtime.bench import Bench, effect

WAITS = "waiting for bank"


def sub_status(bench: Bench, task_id: int) -> str | None:
    task = some(bench.do(get_task, task_id))
    return task.sub_status


@pytest.mark.test_all
@pytest.mark.parametrize(
    "outcome", [None, Snooze("1h"), Retry("no", after="1h"), Skip("no"), Fail("no"), ValueError()]
)
@pytest.mark.parametrize("way", ["plain", "session", "async", "at_most_once"])
def test_it_is_kept_however_a_run_ends(bench: Bench, way: str, outcome: Exception | None) -> None:
    def say(ctx: Any) -> None:
        ctx.set_sub_status("asking")
        ctx.set_sub_status(WAITS)
        if outcome is not None:
            raise outcome

    if way == "async":

        @bench.handler("t")
        async def asynchronous(ctx: Any) -> None:
            await ctx.session.execute(text("SELECT 1"))
            say(ctx)
    else:

        @bench.handler("t", at_most_once=way == "at_most_once")
        def handle(ctx: Any) -> None:
            if way == "session":
                effect(ctx)
            say(ctx)

    task_id = bench.run_one("t")

    assert sub_status(bench, task_id) == WAITS
    assert bench.sql("SELECT count(*) FROM task_all WHERE attempt = 1 AND state <> 'RUNNING'") == 1
    with bench.engine.connect() as connection:
        assert [task.id for task in find_tasks(connection, sub_status=WAITS)] == [task_id]
        assert find_tasks(connection, sub_status="asking") == []


@pytest.mark.test_all
def test_it_stays_through_retries_pools_and_a_requeue_until_another_is_said(bench: Bench) -> None:
    said = [WAITS, None, "", "paid"]

    @bench.handler("t", max_attempts=2)
    def handle(ctx: Any) -> None:
        word = said[ctx.attempt - 1]
        if word is not None:
            ctx.set_sub_status(word)
        if ctx.attempt < 3:
            raise Retry("not yet", after="0s")
        if ctx.attempt == 3:
            raise Fail("no")

    task_id = bench.run_one("t")
    assert bench.state(task_id) == "FAILED"
    assert sub_status(bench, task_id) == WAITS
    for expected, state in ((None, "FAILED"), ("paid", "SUCCEEDED")):
        bench.do(requeue_task, task_id)
        bench.drain()
        assert (sub_status(bench, task_id), bench.state(task_id)) == (expected, state)


def test_a_commit_on_the_way_shows_it(bench: Bench) -> None:
    seen = []

    @bench.handler("t")
    def handle(ctx: Any) -> None:
        ctx.set_sub_status(WAITS)
        ctx.commit()
        seen.append(sub_status(bench, ctx.task_id))

    bench.run_one("t")
    assert seen == [WAITS]


@pytest.mark.test_all
def test_many_runs_that_end_together_say_each_their_own(bench: Bench) -> None:
    @bench.handler("t")
    def handle(ctx: Any, payload: dict[str, Any]) -> None:
        if payload["n"] % 3:
            ctx.set_sub_status(f"part {payload['n']}")

    ids = {n: bench.create("t", {"n": n}) for n in range(20)}
    bench.drain()
    assert {n: sub_status(bench, task_id) for n, task_id in ids.items()} == {
        n: f"part {n}" if n % 3 else None for n in ids
    }
    assert bench.sql("SELECT count(*) FROM task_completed WHERE state = 'SUCCEEDED'") == 20


@pytest.mark.parametrize("wrong", ["x" * 201, "a\0b", "\ud800", None, 7])
def test_what_cannot_be_stored_is_refused_at_once(bench: Bench, wrong: Any) -> None:
    refused = []

    @bench.handler("t")
    def handle(ctx: Any) -> None:
        try:
            ctx.set_sub_status(wrong)
        except InvalidTaskError as error:
            refused.append(str(error))

    bench.run_one("t")

    assert len(refused) == 1
    assert refused[0].startswith("sub_status ")
