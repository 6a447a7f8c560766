"""Tasks that declare locks, on processes that are killed: no two of them are inside at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tasks_app import NewTask, create_tasks
from tests.clock import until
from tests.edge.gated_runs import Run, Workers, overlaps
from tests.factory import rows_of, run_sql

TASKS = int(os.environ.get("DECLARED_TASKS", "2000"))
LOCKS = 100
_LEFT = "SELECT count(*) FROM task_pending"
_ATTEMPTS = "SELECT attempt, count(*) FROM task_completed GROUP BY attempt ORDER BY attempt"
_LONGEST = """
    SELECT extract(epoch FROM max(ended_at - asked_at)), count(*) FROM task_lock_wait
    WHERE outcome = 'granted'"""


@pytest.fixture
def workers(database_url: str, tmp_path: Path) -> Iterator[Workers]:
    gang = Workers(database_url, tmp_path, 4)
    yield gang
    gang.stop()


def create(engine: Engine, number: int, locks: int, seconds: float) -> None:
    keys = [f"k{n % locks}" for n in range(number)]
    tasks = [NewTask("gated", {"key": key, "seconds": seconds}, locks=key) for key in keys]
    with engine.begin() as connection:
        create_tasks(connection, tasks)


def done(engine: Engine, workers: Workers, number: int) -> list[Run]:
    until(lambda: workers.begun() > 0, 60)
    began = time.monotonic()
    until(lambda: run_sql(engine, _LEFT) == 0, 500)
    took, runs = time.monotonic() - began, workers.runs()
    attempts = dict(rows_of(engine, _ATTEMPTS))
    longest, waits = rows_of(engine, _LONGEST)[0]
    print(
        f"\n{number} tasks in {took:.1f} s, {number / took:.0f} grants/s, {len(workers.killed)} "
        f"kills, attempts {attempts}, {waits} waited, the longest {longest or 0:.1f} s"
    )
    assert overlaps(runs) == 0
    assert run_sql(engine, "SELECT count(*) FROM task_completed") == number
    assert run_sql(engine, "SELECT sum(grants) FROM task_lock") >= number
    return runs


@pytest.mark.timeout(900)
def test_each_runs_once_and_none_beside_another(engine: Engine, workers: Workers) -> None:
    create(engine, TASKS, LOCKS, 0.001)
    done(engine, workers, TASKS)
    assert dict(rows_of(engine, _ATTEMPTS)) == {1: TASKS}


@pytest.mark.timeout(900)
def test_children_are_killed_and_still_none_is_beside_another(
    engine: Engine, workers: Workers
) -> None:
    create(engine, TASKS, LOCKS, 0.001)
    with workers.kills(every=max(20, TASKS // 40)):
        done(engine, workers, TASKS)
    assert workers.killed


@pytest.mark.timeout(300)
def test_twenty_of_a_second_take_twenty(engine: Engine, workers: Workers) -> None:
    create(engine, 20, 1, 1.0)
    runs = done(engine, workers, 20)
    took = (runs[-1].ended - runs[0].began) / 1e9
    print(f"from the first to the last: {took:.2f} s")
    assert took < 30  # a busy machine; who is denied and tried again takes longer
    assert dict(rows_of(engine, _ATTEMPTS)) == {1: 20}
    order = [run.task_id for run in runs]
    assert order == sorted(order)
