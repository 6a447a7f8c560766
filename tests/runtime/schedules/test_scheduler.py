"""The scheduler: tasks at their instants, policies, and rows that somebody spoilt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app.pool.tasks.cancel import cancel
from tests.factory import claimed_task
from tests.runtime.bench import Bench
from tests.runtime.timetable import NOON, S, fires, scheduled, scheduler, standing, tasks

M = 60 * S


def test_an_instant_makes_one_task_that_says_of_which(bench: Bench) -> None:
    schedule = scheduled(bench, queue="q")
    one = scheduler(bench)

    assert one.run_once(now=NOON + M - S) == 0
    assert one.run_once(now=NOON + M + S) == 1
    assert one.run_once(now=NOON + M + 2 * S) == 0

    (task,) = tasks(bench)
    assert (task.schedule_id, task.fire_at) == (schedule.id, (NOON + M).isoformat())
    assert task.due_at == task.created_at == NOON + M + S
    after = standing(bench)
    assert (after.last_run_at, after.next_run_at) == (NOON + M, NOON + 2 * M)
    assert (after.last_task_id, after.last_outcome) == (task.id, "made")
    assert one.next_in_s(now=NOON + M + S) == 59


def test_the_handler_gets_payload_and_instant(bench: Bench) -> None:
    @bench.handler()
    def note(ctx: Any, payload: Any) -> None:
        bench.runs.append((payload, ctx.headers))

    scheduled(bench, at=NOON + M)
    scheduler(bench).run_once(now=NOON + M)
    bench.drain()
    assert bench.runs == [({"of": "s"}, {"schedule": "s", "fire_at": (NOON + M).isoformat()})]


def test_jitter_moves_the_task_and_not_the_instant(bench: Bench) -> None:
    scheduled(bench, jitter=30, missed="fire_all")
    scheduler(bench).run_once(now=NOON + 20 * M)
    waits = [(task.due_at - NOON - 20 * M).total_seconds() for task in tasks(bench)]
    assert len(waits) == 20
    assert min(waits) >= 0
    assert max(waits) <= 30
    assert len(set(waits)) > 10


@pytest.mark.parametrize(
    ("missed", "made", "last"),
    [("skip", [], "missed"), ("fire_once", [120.0], "made"), ("fire_all", [60.0, 120.0], "made")],
)
def test_missed_instants_obey_a_policy(bench: Bench, missed: str, made: list, last: str) -> None:
    """Late by more than a minute, before the next one."""
    scheduled(bench, missed=missed, cron="1,2 * * * *")
    scheduler(bench).run_once(now=NOON + 10 * M)
    assert [at for at, *_ in fires(bench)] == made
    assert standing(bench).last_outcome == last
    assert standing(bench).next_run_at == NOON + 61 * M


def test_a_schedule_that_is_over_fires_no_more(bench: Bench) -> None:
    scheduled(bench, at=NOON + M)
    one = scheduler(bench)
    one.run_once(now=NOON + M)
    assert standing(bench).next_run_at is None
    assert one.next_in_s(now=NOON + M) is None
    assert one.run_once(now=NOON + 100 * M) == 0
    assert len(tasks(bench)) == 1


def test_thousands_of_missed_instants_are_made_in_parts(bench: Bench) -> None:
    scheduled(bench, every=1, missed="fire_all(3000)")
    one = scheduler(bench)
    one.run_once(now=NOON + 2000 * S)
    assert [task.fire_at for task in tasks(bench)] == [
        (NOON + n * S).isoformat() for n in range(1, 2001)
    ]


# -- overlap


def run_in(bench: Bench, *, now: datetime) -> None:
    scheduler(bench).run_once(now=now)


def end_the_oldest(bench: Bench) -> None:
    bench.do(cancel, tasks(bench)[0].id)


def test_skip_makes_none_while_one_is_there(bench: Bench) -> None:
    scheduled(bench, overlap="skip")
    for n in (1, 2, 3):
        run_in(bench, now=NOON + n * M)
    assert standing(bench).last_outcome == "skipped"
    end_the_oldest(bench)

    run_in(bench, now=NOON + 4 * M)

    assert fires(bench) == [
        (60, "made", True),
        (120, "skipped", False),
        (180, "skipped", False),
        (240, "made", True),
    ]


def test_queue_makes_the_second_when_the_first_is_over_and_never_two_at_once(bench: Bench) -> None:
    scheduled(bench, overlap="queue")
    for n in (1, 2, 3):
        run_in(bench, now=NOON + n * M)
    assert len(tasks(bench)) == 1
    waiting = standing(bench)
    assert (waiting.queued_at, waiting.next_run_at) == (NOON + 2 * M, NOON + 4 * M)
    assert scheduler(bench).next_in_s(now=NOON + 3 * M) == 1
    end_the_oldest(bench)

    run_in(bench, now=NOON + 3 * M + S)

    assert fires(bench) == [(60, "made", True), (120, "made", True), (180, "skipped", False)]
    assert [task.fire_at for task in tasks(bench)] == [(NOON + 2 * M).isoformat()]
    after = standing(bench)
    assert (after.queued_at, after.next_run_at) == (None, NOON + 4 * M)


def test_what_is_queued_at_the_end_is_made_all_the_same(bench: Bench) -> None:
    scheduled(bench, overlap="queue", ends_at=NOON + 2 * M)
    for n in (1, 2):
        run_in(bench, now=NOON + n * M)
    end_the_oldest(bench)
    run_in(bench, now=NOON + 50 * M)
    assert fires(bench) == [(60, "made", True), (120, "made", True)]
    assert scheduler(bench).next_in_s() is None


def test_replace_cancels_what_waits_and_tells_what_runs(bench: Bench) -> None:
    scheduled(bench, overlap="replace")
    run_in(bench, now=NOON + M)
    run_in(bench, now=NOON + 2 * M)
    (second,) = tasks(bench)
    bench.do(claimed_task, second.id)

    run_in(bench, now=NOON + 3 * M)

    running, waiting = tasks(bench)
    assert (running.id, running.state, waiting.state) == (second.id, "RUNNING", "PENDING")
    asked = "SELECT cancel_requested_at IS NOT NULL FROM task_pending WHERE id = :id"
    assert bench.sql(asked, id=second.id)
    assert bench.sql("SELECT state FROM task_completed") == "CANCELLED"


def test_allow_makes_one_each_time(bench: Bench) -> None:
    scheduled(bench)
    for n in (1, 2, 3):
        run_in(bench, now=NOON + n * M)
    assert len(tasks(bench)) == 3


def test_a_unique_key_that_is_taken_is_an_instant_skipped(bench: Bench) -> None:
    scheduled(bench, unique_key="k")
    run_in(bench, now=NOON + M)
    run_in(bench, now=NOON + 2 * M)
    assert fires(bench) == [(60, "made", True), (120, "skipped", False)]
    after = standing(bench)
    assert (after.last_outcome, after.last_run_at) == ("skipped", NOON + M)


# -- rows that somebody spoilt


@pytest.mark.parametrize(
    "spoil",
    [
        "expression = 'x'",
        "zone = 'Mars'",
        "missed = 'fire_all of them'",
        "options = '{\"max_attempts\": 0}'",
        'options = \'{"max_attempts": "many"}\'',
        'options = \'{"delay_s": "long"}\'',
        "options = '{\"headers\": 1}'",
        f"""options = '{{"biz_key": "{"x" * 300}"}}'""",
    ],
)
def test_a_spoilt_schedule_says_so_and_stops_no_other(bench: Bench, spoil: str) -> None:
    scheduled(bench, "bad", cron="* * * * *"), scheduled(bench, "good")
    bench.sql(f"UPDATE task_schedule SET {spoil} WHERE name = 'bad'")
    one = scheduler(bench)
    one.run_once(now=NOON + M)
    one.run_once(now=NOON + 2 * M)
    good, bad = standing(bench, "good"), standing(bench, "bad")
    assert {task.schedule_id for task in tasks(bench)} == {good.id}
    assert len(tasks(bench)) == 2
    assert (bad.last_outcome, bad.next_run_at) == ("broken", None)
    assert bad.remark


@pytest.mark.test_all
def test_a_schedule_that_must_wait_for_a_lock_stops_no_other(bench: Bench) -> None:
    """Somebody holds the row of the task that is to be replaced."""
    scheduled(bench, "stuck", overlap="replace"), scheduled(bench, "good")
    one = scheduler(bench)
    one.run_once(now=NOON + M)
    held = next(t for t in tasks(bench) if t.schedule_id == standing(bench, "stuck").id)

    with bench.engine.connect() as holder:
        lock = text("SELECT FROM task_pending WHERE id = :id FOR UPDATE")
        holder.execute(lock, {"id": held.id})
        one.run_once(now=NOON + 2 * M)
        assert standing(bench, "good").next_run_at == NOON + 3 * M
        assert standing(bench, "stuck").next_run_at == NOON + 2 * M
    one.run_once(now=NOON + 2 * M)

    assert standing(bench, "stuck").next_run_at == NOON + 3 * M


# -- who runs it


def test_a_worker_without_a_broker_fires_and_runs(bench: Bench) -> None:
    bench.succeeding()
    scheduled(bench)  # of a year ago: one that was missed
    bench.drain()
    assert len(bench.runs) == 1


def test_a_waiting_worker_wakes_up_for_the_instant(bench: Bench) -> None:
    """Its own interval would be a minute."""
    bench.handler()(lambda ctx: bench.runs.append(datetime.now(UTC)) or work.child.inflight.stop())
    work = bench.work(scan_interval=60)
    now = datetime.now(UTC)
    scheduled(bench, at=now + timedelta(seconds=0.7), now=now)
    work.run()
    (ran,) = bench.runs
    assert timedelta(0) <= ran - now - timedelta(seconds=0.7) < timedelta(seconds=20)
