"""The log of transitions, and the sub-status: what is kept of a task's moves and words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app import (
    Fail,
    InvalidTaskError,
    NewTask,
    Retry,
    Skip,
    Snooze,
    cancel_task,
    create_group,
    get_task,
    requeue_task,
)
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import SchemaError
from tasks_app.pool.dispatch.set_aside import sweep
from tasks_app.pool.fragments.transition_log import LOG, Logged, Moving
from tasks_app.pool.operations.grants import check_may_run
from tasks_app.pool.retention import delete_old_lines
from tasks_app.pool.runs import claim, leases, settle, settle_success
from tasks_app.pool.runs.leases import rescue_expired
from tasks_app.pool.tasks.browse import find_tasks
from tests.factory import some
from tests.runtime.bench import Bench, effect

SECRET = "4929-1234-5678"
LINES = "SELECT event, from_state, to_state, attempt, detail FROM task_transition ORDER BY id"


@pytest.fixture(autouse=True)
def _clean(bench: Bench) -> Iterator[None]:
    yield
    LOG.level = Logged.OFF


def lines(bench: Bench) -> list[tuple[Any, ...]]:
    return bench.rows(LINES)


def outcomes(bench: Bench) -> None:
    """Declare a handler for each way in which a run may end."""

    bench.writing("effect")

    @bench.handler("async")
    async def asynchronous(ctx: Any) -> None:
        await ctx.session.execute(text("SELECT 1"))

    @bench.handler("snoozes")
    def snoozes(ctx: Any) -> None:
        if ctx.attempt == 1:
            raise Snooze("0s", SECRET)

    bench.succeeding("plain")
    bench.raising(Retry(SECRET, after="1h"), "retries")
    bench.raising(ValueError(SECRET), "fails", max_attempts=1)
    bench.raising(Skip(SECRET), "skips")


WAYS = ["effect", "async", "plain", "snoozes", "retries", "fails", "skips"]


def run_all(bench: Bench, level: str) -> dict[str, int]:
    outcomes(bench)
    ids = {name: bench.create(name, {"card": SECRET}) for name in WAYS}
    bench.drain(transitions=level)
    return ids


@pytest.mark.test_all
def test_all_has_lines_for_each_claim_and_its_end(bench: Bench) -> None:
    ids = run_all(bench, "all")
    member = bench.create("plain")
    bench.do(create_group, [NewTask("plain"), NewTask("effect")])
    bench.drain(transitions="all")

    assert bench.sql("SELECT count(*) FROM task_transition WHERE event = 'create'") == len(ids) + 3
    claims = bench.sql("SELECT sum(attempt) FROM task_all")
    assert bench.sql("SELECT count(*) FROM task_transition WHERE event = 'claim'") == claims
    assert bench.sql("SELECT count(*) FROM task_transition WHERE from_state = 'RUNNING'") == claims
    of = {
        name: bench.sql(
            "SELECT array_agg(event || ' ' || from_state || ' ' || to_state ORDER BY id)"
            " FROM task_transition WHERE task_id = :id AND from_state = 'RUNNING'",
            id=task_id,
        )
        for name, task_id in ids.items()
    }
    for name in ("effect", "async", "plain"):
        assert of[name] == ["succeed RUNNING SUCCEEDED"]
    assert of["snoozes"] == ["snooze RUNNING PENDING", "succeed RUNNING SUCCEEDED"]
    assert of["retries"] == ["retry RUNNING PENDING"]
    assert of["fails"] == ["fail RUNNING FAILED"]
    assert of["skips"] == ["skip RUNNING SKIPPED"]
    assert bench.state(member) == "SUCCEEDED"
    told = "owner IS NOT NULL AND started_at <= at"
    comes_back = "(to_state = 'PENDING') = (due_at IS NOT NULL)"
    ends = "FROM task_transition WHERE from_state = 'RUNNING'"
    assert bench.sql(f"SELECT bool_and({told} AND {comes_back}) {ends}")
    of_all = "bool_and(who = 'producer' OR who LIKE 'group %')"
    made = f"SELECT {of_all} FROM task_transition WHERE attempt = 0"
    assert bench.sql(made)
    assert SECRET not in str(lines(bench))


@pytest.mark.test_all
def test_failures_leaves_successes_out(bench: Bench) -> None:
    run_all(bench, "failures")
    assert sorted(line[0] for line in lines(bench)) == ["fail", "retry", "skip", "snooze"]


def test_off_writes_nothing_and_sends_nothing_more(bench: Bench) -> None:
    run_all(bench, "off")
    moving = [each for each in vars(settle).values() if isinstance(each, Moving)]
    sent = [statement().text for statement in (*moving, leases._GROUP, leases.EXPIRED)]
    sent += [sql.decode() for (_, logs), (_, sql) in settle_success._WORDS.items() if not logs]
    sent += [each.value[False] for each in claim.Claims]
    sent.append(claim._NEXT.text)
    assert len(sent) >= 13
    assert not [statement for statement in sent if "task_transition" in statement]
    assert lines(bench) == []


def test_what_is_given_back_rescued_or_swept_has_a_line(bench: Bench) -> None:
    @bench.handler("lost")
    def lost(ctx: Any) -> None:
        """Never called."""

    bench.child(start=False, transitions="failures")
    ids = [bench.create("lost"), bench.create("lost")]
    late = bench.create("late", enabled=False)
    bench.sql(
        "UPDATE task_pending SET state = 'RUNNING', attempt = 1, owner = 'gone', "
        "lease_token = gen_random_uuid(), lease_until = now() - interval '1s', started_at = now(), "
        "max_attempts = 3, at_most_once = false "
        "WHERE name = 'lost'"
    )
    with bench.engine.begin() as connection:
        rescue_expired(connection, lease=timedelta(seconds=1), max_crashes=5)
        sweep(connection, [late])
        assert cancel_task(connection, ids[0]) == "cancelled"

    assert [line[:4] for line in lines(bench)] == [
        ("rescue", "RUNNING", "PENDING", 1),
        ("rescue", "RUNNING", "PENDING", 1),
        ("skip", "PENDING", "SKIPPED", 0),
    ]


def test_a_move_that_rolls_back_has_no_line(bench: Bench) -> None:
    LOG.level = Logged.FAILURES
    late = bench.create("late", enabled=False)
    with bench.engine.connect() as connection:
        sweep(connection, [late])
        connection.rollback()
    assert lines(bench) == []


def test_old_lines_go_and_young_ones_stay(bench: Bench) -> None:
    insert = (
        "INSERT INTO task_transition (task_id, at, attempt, event, from_state, to_state)"
        " SELECT n, now() - n * interval '1d', 1, 'fail', 'RUNNING', 'FAILED'"
        " FROM generate_series(40, 21, -1) n"
    )
    bench.sql(insert)
    with bench.engine.begin() as connection:
        steps = [delete_old_lines(connection, timedelta(days=30), most=6) for _ in range(3)]
    assert steps == [(6, True), (5, False), (0, False)]
    assert bench.sql("SELECT min(task_id) || '-' || max(task_id) FROM task_transition") == "21-29"


def test_a_role_that_may_not_write_it_is_told_at_the_start(bench: Bench) -> None:
    with bench.engine.connect() as connection:
        connection.execute(text("CREATE ROLE trail_reader"))
        connection.execute(
            text(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON task_pending, task_completed, task_error,"
                " task_attempt, task_worker TO trail_reader"
            )
        )
        connection.execute(text("SET LOCAL ROLE trail_reader"))
        check_may_run(connection)
        with pytest.raises(SchemaError, match="it lacks INSERT on task_transition"):
            check_may_run(connection, logs=True)
        connection.rollback()


def test_a_level_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="transitions"):
        Settings(transitions="some")  # type: ignore[arg-type]


WAITS = "waiting for bank"


def sub_status(bench: Bench, task_id: int) -> str | None:
    task = some(bench.do(get_task, task_id))
    return task.sub_status


@pytest.mark.test_all
@pytest.mark.parametrize(
    "outcome", [None, Snooze("1h"), Retry("no", after="1h"), Skip("no"), Fail("no"), ValueError()]
)
@pytest.mark.parametrize("way", ["plain", "session", "async", "at_most_once"])
def test_a_sub_status_is_kept_in_any_end(bench: Bench, way: str, outcome: Exception | None) -> None:
    def say(ctx: Any) -> None:
        ctx.set_sub_status("asking")
        ctx.set_sub_status(WAITS)
        if outcome is not None:
            raise outcome

    if way == "async":

        @bench.handler("t", retry="1h")
        async def asynchronous(ctx: Any) -> None:
            await ctx.session.execute(text("SELECT 1"))
            say(ctx)
    else:

        @bench.handler("t", retry="1h", at_most_once=way == "at_most_once")
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
def test_a_sub_status_stays_through_retries_pools_and_a_requeue(bench: Bench) -> None:
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


def test_a_commit_on_the_way_shows_a_sub_status(bench: Bench) -> None:
    seen = []

    @bench.handler("t")
    def handle(ctx: Any) -> None:
        ctx.set_sub_status(WAITS)
        ctx.commit()
        seen.append(sub_status(bench, ctx.task_id))

    bench.run_one("t")
    assert seen == [WAITS]


@pytest.mark.test_all
def test_runs_that_end_together_have_each_their_sub_status(bench: Bench) -> None:
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
def test_a_sub_status_beyond_storage_is_refused(bench: Bench, wrong: Any) -> None:
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
