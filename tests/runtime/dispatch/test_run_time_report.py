"""What a child learned of its tasks' pace reaches the dispatcher, and seldom costs a write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from tasks_app.runtime.db.database import Database
from tasks_app.runtime.run_times import FASTEST_S, FEW_RUNS, RunTimeReport
from tests.runtime.bench import Bench
from tests.waiting import until


class Report:
    """A report on paces that the test sets, and a look at the table."""

    def __init__(self, bench: Bench, clock: Any, **options: Any) -> None:
        self.bench = bench
        self.clock = clock
        self.paces: dict[str, float] = {}
        database = Database(bench.url)
        bench.at_end(database.dispose)
        self.report = RunTimeReport(
            database,
            lambda: dict(self.paces),
            bench.registry,
            clock=lambda: clock.now,
            **options,
        )

    def after(self, seconds: float, **paces: float) -> dict[str, float]:
        """Learn, look again so much later; return what was written just then."""
        self.clock.now += seconds
        self.paces |= paces
        self.bench.sql("UPDATE task_pace SET updated_at = 'epoch'")
        self.report.report()
        with self.bench.engine.connect() as connection:
            rows = connection.execute(
                text("SELECT name, run_s FROM task_pace WHERE updated_at > 'epoch'")
            )
            return {row.name: row.run_s for row in rows}


@pytest.fixture
def clock() -> Any:
    return SimpleNamespace(now=1000.0)


def test_a_new_name_is_told_at_once_and_a_small_change_never(bench: Bench, clock: Any) -> None:
    report = Report(bench, clock)

    assert report.after(0, a=0.1) == {"a": 0.1}
    assert report.after(1, b=0.2) == {"b": 0.2}
    assert report.after(100, a=0.11, b=0.19) == {}


def test_a_change_by_a_fifth_is_told_after_ten_seconds_and_a_great_one_at_once(
    bench: Bench, clock: Any
) -> None:
    report = Report(bench, clock)
    report.after(0, a=0.1, b=0.1)

    assert report.after(1, a=0.13) == {}
    assert report.after(1, b=0.3) == {"b": 0.3}
    assert report.after(0.2, b=0.1) == {}
    assert report.after(0, new=0.1) == {"new": 0.1}
    report.after(0.2)
    assert report.after(1, b=0.1) == {"b": 0.1}
    assert report.after(10, b=0.115) == {"a": 0.13}


def test_a_first_run_that_had_to_connect_is_corrected_without_a_pause(
    bench: Bench, clock: Any
) -> None:
    report = Report(bench, clock)

    assert report.after(0, a=0.1) == {"a": 0.1}
    assert report.after(0.01, a=0.02) == {}
    assert report.after(0.01, a=0.001) == {"a": 0.001}


def test_differences_that_make_no_other_messages_are_no_news(bench: Bench, clock: Any) -> None:
    report = Report(bench, clock)

    assert report.after(0, a=1e-6) == {"a": FASTEST_S}
    assert report.after(100, a=1e-4) == {}


def test_what_a_child_runs_beside_each_other_takes_a_part_of_its_time(
    bench: Bench, clock: Any
) -> None:
    """So that one message holds as many as run at once, however long each of them takes."""

    @bench.handler("async")
    async def waits(ctx: Any) -> None: ...

    bench.succeeding("sync")
    report = Report(bench, clock, threads=8, async_concurrency=100)

    assert report.after(0, **{"async": 60.0, "sync": 0.1}) == {"async": 0.004, "sync": 0.0125}


@pytest.mark.test_all
def test_a_write_that_failed_is_still_news(bench: Bench, clock: Any) -> None:
    report = Report(bench, clock)
    with bench.engine.begin() as connection:
        connection.execute(text("LOCK task_pace IN SHARE MODE"))
        report.paces["a"] = 0.1
        with pytest.raises(OperationalError):
            report.report.report()

    assert report.after(1) == {"a": 0.1}


def test_a_child_tells_what_it_ran(bench: Bench) -> None:
    bench.succeeding()
    child = bench.child()

    child.execute([bench.create() for _ in range(FEW_RUNS)])

    assert until(lambda: bench.sql("SELECT run_s FROM task_pace WHERE name = 't'"), 5) is not None
