"""What a process counts, and what it writes: each end once; and what the totals say."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import psutil
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.handlers.outcomes import Fail, Skip, Snooze
from tasks_app.domain.statistics import MOST_KEYS, OTHER, CountedOutcome
from tasks_app.domain.tasks.run import Fence, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.statistics.roll_up import roll_up
from tasks_app.pool.statistics.totals import totals
from tasks_app.runtime.api.tasks import cancel_task
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.leader.rescuer import Sweeper
from tasks_app.runtime.statistics import TASK_COUNTS, CountKeeper, CountReport, TaskCounts
from tests.clock import until
from tests.pool.test_statistics import KEPT
from tests.runtime.bench import Bench
from tests.runtime.labour import PAST
from tests.runtime.worker.test_supervisor import children, work

PARTS = "SELECT name, outcome, sum(number)::int FROM task_count_part GROUP BY 1, 2 ORDER BY 1, 2"


@pytest.fixture(autouse=True)
def _nothing_counted() -> Iterator[None]:
    TASK_COUNTS.forget()
    yield
    TASK_COUNTS.forget()


def parts(bench: Bench) -> dict[tuple[str, CountedOutcome], int]:
    return {(name, CountedOutcome(outcome)): total for name, outcome, total in bench.rows(PARTS)}


def settle(counts: TaskCounts, one: Settlement, state: State = State.SUCCEEDED) -> None:
    counts.settled([one], {one.fence.task_id: state})


@pytest.mark.test_all
@pytest.mark.parametrize("threads", [0, 3])
def test_every_end_of_a_run_is_counted_once(bench: Bench, threads: int) -> None:
    bench.succeeding("good")
    bench.raising(LookupError("x"), "bad", retry="0s", max_attempts=2)
    bench.raising(Fail("x"), "fatal")
    bench.raising(Skip("x"), "moot")
    bench.raising(Snooze(timedelta(hours=1)), "later")
    for name, number in (("good", 40), ("bad", 3), ("fatal", 2), ("moot", 1), ("later", 1)):
        for _ in range(number):
            bench.create(name)
    bench.drain(concurrency=threads + 1)
    expected = {
        ("good", CountedOutcome.DONE): 40,
        ("bad", CountedOutcome.RETRIED): 3,
        ("bad", CountedOutcome.FAILED): 3,
        ("fatal", CountedOutcome.FAILED): 2,
        ("moot", CountedOutcome.SKIPPED): 1,
        ("later", CountedOutcome.SNOOZED): 1,
    }
    assert parts(bench) == expected


def test_what_a_task_waited_and_ran(bench: Bench) -> None:
    bench.succeeding()
    bench.sql("UPDATE task_pending SET due_at = now() - interval '10 s' WHERE id = :id",
              id=bench.create())  # fmt: skip
    bench.drain()
    wait_ms, bucket = bench.sql("SELECT wait_ms FROM task_count_part"), 14
    assert 10_000 <= wait_ms < 16_000
    assert bench.sql("SELECT waits FROM task_count_part") == [0] * bucket + [1]
    assert bench.sql("SELECT (runs)[1:20] FROM task_count_part")[-1] == 1


def test_an_unanswered_commit_counts_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is lost behind the COMMIT; the next write repeats the totals."""
    counts, database = TaskCounts(), Database(bench.url)
    report = CountReport(database, counts)
    one = Settlement(_fence(1), Event.SUCCEED, 0, 0, task=_Task())  # type: ignore[arg-type]
    settle(counts, one)
    with monkeypatch.context() as patched:
        _lose_answers(patched, database)
        with pytest.raises(DBAPIError):
            report.write_counts(last=True)
    assert parts(bench) == {
        ("t", CountedOutcome.DONE): 1
    }  # it has committed, and we were told otherwise
    settle(counts, one)
    report.write_counts(last=True)
    report.write_counts(last=True)
    database.dispose()
    assert parts(bench) == {("t", CountedOutcome.DONE): 2}


def _lose_answers(patched: pytest.MonkeyPatch, database: Database) -> None:
    begin = database.begin

    @contextmanager
    def unanswered():  # type: ignore[no-untyped-def]
        with begin() as connection:
            yield connection
            wrote = connection.execute(text("SELECT count(*) FROM task_count_part")).scalar()
        if wrote:
            raise DBAPIError("COMMIT", None, Exception("server closed the connection"))

    patched.setattr(database, "begin", unanswered)


@pytest.mark.test_all
def test_a_child_that_is_killed_loses_an_interval_which_is_healed(bench: Bench) -> None:
    ids = [bench.create("ok") for _ in range(300)]
    parent = work(bench, "-c", "1")
    until(lambda: bench.states(ids[-1:]) == ["SUCCEEDED"], 30)
    until(lambda: set(bench.states(ids)) == {"SUCCEEDED"}, 30)
    (victim,) = children(parent)
    victim.send_signal(signal.SIGKILL)
    until(lambda: not psutil.pid_exists(victim.pid) or victim not in children(parent), 30)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(30) == 0
    assert sum(parts(bench).values()) <= 300
    # An hour later, all of it is in the counters; tables say so, whatever the parts had.
    hour = bench.sql("SELECT date_trunc('hour', min(finished_at), 'UTC') FROM task_completed")
    database = bench.database()
    keeper = CountKeeper(bench.settings(), database, "test")
    now = hour
    for _ in range(30):
        now += timedelta(minutes=10)
        keeper.run_once(now=now + timedelta(days=1, hours=-2))
    counted = (
        "SELECT sum(number)::int FROM task_count WHERE span = 60 AND name = 'ok' AND outcome = 1"
    )
    assert bench.sql(counted) == 300


def test_threads_lose_nothing() -> None:
    counts = TaskCounts()
    counts.set_time(1e9, 0.0)
    one = Settlement(_fence(1), Event.SUCCEED, 0, 0, task=_Task(), run_ms=1, began=0.0)  # type: ignore[arg-type]

    def count() -> None:
        for _ in range(5_000):
            settle(counts, one)

    with ThreadPoolExecutor() as threads:
        for _ in range(4):
            threads.submit(count)
    assert sum(part.number for part in counts.unwritten()) == 20_000


def _fence(task_id: int) -> Fence:
    return Fence(task_id, 1, UUID(int=0))


class _Task:
    name, queue, due_s = "t", "q", 1e9 - 2.0


def test_runs_that_ended_before_the_time_was_known_are_counted_then() -> None:
    counts = TaskCounts(clock=lambda: 100.0)
    settle(
        counts, Settlement(_fence(1), Event.SUCCEED, 0, 0, None, None, None, None, 7, _Task(), 90.0)
    )  # type: ignore[arg-type]
    assert counts.unwritten() == []
    counts.set_time(1e9, 92.0)
    (part,) = counts.unwritten()
    assert (part.minute, part.number, part.wait_ms, part.run_ms) == ((10**9 + 8) // 60, 1, 0, 7)


def test_beyond_the_most_keys_the_rest_is_one() -> None:
    counts = TaskCounts()
    counts.set_time(1e9, 0.0)
    for n in range(MOST_KEYS + 20):
        task = _Task()
        task.name = f"t{n}"
        settle(counts, Settlement(_fence(1), Event.SUCCEED, 0, 0, task=task))  # type: ignore[arg-type]
    numbers = {part.name: part.number for part in counts.unwritten()}
    assert len(numbers) == MOST_KEYS + 1
    assert numbers[OTHER] == 20


def test_minutes_that_are_written_and_over_are_forgotten() -> None:
    now = [0.0]
    counts = TaskCounts(clock=lambda: now[0])
    counts.set_time(1e9, 0.0)
    for minute in range(3):
        now[0] = minute * 60.0
        settle(counts, Settlement(_fence(1), Event.SUCCEED, 0, 0, task=_Task()))  # type: ignore[arg-type]
        counts.mark_written(counts.unwritten())
    assert len(counts._minutes) == len(counts._written) == 1
    now[0] = 30 * 60.0  # nothing was written for long
    settle(counts, Settlement(_fence(1), Event.SUCCEED, 0, 0, task=_Task()))  # type: ignore[arg-type]
    assert len(counts._minutes) == 1


def test_sweeps_and_cancels_are_counted_with_their_transaction(bench: Bench) -> None:
    late = bench.create("late")
    bench.sql("UPDATE task_pending SET expires_at = :past WHERE id = :id", past=PAST, id=late)
    bench.create("off", enabled=False)
    gone, kept = bench.create("gone"), bench.create("kept")
    database = Database(bench.url)
    Sweeper(database).run_once()
    bench.do(cancel_task, gone)
    with bench.engine.connect() as connection:
        cancel_task(connection, kept)  # rolled back
    database.dispose()
    assert parts(bench) == {
        ("late", CountedOutcome.EXPIRED): 1,
        ("off", CountedOutcome.SKIPPED): 1,
        ("gone", CountedOutcome.CANCELLED): 1,
    }


def test_one_keeper_a_minute(bench: Bench) -> None:
    database = Database(bench.url)
    one, other = (CountKeeper(bench.settings(), database, name) for name in ("a", "b"))
    now = bench.sql("SELECT now()")
    assert one.run_once(now=now)
    assert not other.run_once(now=now + timedelta(seconds=59))
    assert other.run_once(now=now + timedelta(seconds=60))
    database.dispose()


FENCE_LOST = "UPDATE task_pending SET lease_token = gen_random_uuid() WHERE id = :id"


def told(bench: Bench) -> dict[CountedOutcome, int]:
    """Return the totals once the minute is over."""
    with bench.engine.begin() as connection:
        connection.execute(text("UPDATE task_count_part SET at = at - interval '1 hour'"))
        roll_up(connection, None, KEPT)
        found = Counter[CountedOutcome]()
        for each in totals(connection):
            found[each.outcome] += each.number
        return found


def test_an_id_that_comes_twice_is_counted(bench: Bench) -> None:
    bench.succeeding()
    ids = [bench.create() for _ in range(3)]
    bench.execute(ids)
    bench.execute(ids)
    assert told(bench) == {CountedOutcome.DONE: 3, CountedOutcome.DUPLICATE: 3}


@pytest.mark.parametrize("through", ["the settle of a group", "its own transaction"])
def test_a_write_of_who_lost_the_lease_is_counted(bench: Bench, through: str) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        if "own" in through:
            ctx.connection.execute(text("SELECT 1"))
        bench.sql(FENCE_LOST, id=ctx.task_id)

    bench.execute([bench.create()])
    assert told(bench) == {CountedOutcome.STALE: 1}
