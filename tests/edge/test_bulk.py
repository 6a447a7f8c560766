"""Thousands of rows, workers that run them meanwhile, and operators who are killed."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, text

from tasks_app import NewTask, create_tasks
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.claim import claim_next
from tasks_app.pool.runs.heartbeats import live_workers
from tasks_app.pool.runs.settle import settle_group, settle_one
from tasks_app.runtime.api.bulk import run_bulk, start_bulk
from tests.edge.bulk_operators import Crowd, finish, left, steps_of
from tests.edge.gated_runs import Workers
from tests.factory import LEASE, claimer, count, ending
from tests.waiting import until

pytestmark = pytest.mark.timeout(900)

TASKS, WORKERS = 3_000, 2
BAD = Cause("shop.Away", "nobody there")


def work(url: str, seed: int) -> None:
    """Claim and end tasks until there is none: some fail, some succeed."""
    engine, dice = create_engine(url), random.Random(seed)
    child = claimer("t", owner=f"w{seed}")
    while True:
        with engine.begin() as connection:
            taken = claim_next(connection, ["default"], 5, child, uuid4())
        ends = [
            ending(task, Event.FAIL, cause=BAD) if dice.random() < 0.3 else ending(task)
            for task in taken
        ]
        with engine.begin() as connection:
            went = settle_group(connection, ends)
        for end in ends:
            if end.fence.task_id not in went:  # the other worker's claim looked at its row
                with engine.begin() as connection:
                    settle_one(connection, end)
        time.sleep(0.02)  # or they would have run all of them before the first is cancelled


def fail_all(engine: Engine) -> None:
    """Run all that is due once; all of it fails."""
    child = claimer("t")
    while True:
        with engine.begin() as connection:
            taken = claim_next(connection, ["default"], 500, child, uuid4())
            settle_group(connection, [ending(task, Event.FAIL, cause=BAD) for task in taken])
        if not taken:
            return


def test_thousands_are_cancelled_while_workers_take_them_and_operators_are_killed(
    engine: Engine, database_url: str
) -> None:
    with engine.begin() as connection:
        ids = create_tasks(connection, [NewTask("t")] * TASKS)
    crowd = Crowd(database_url)
    try:
        for seed in range(WORKERS):
            crowd.start(work, seed)
        token = start_bulk(engine, "cancel", name="t", by="first")
        ten = run_bulk(engine, token, first=10, by="first")
        killed = finish(engine, database_url, token, crowd)
    finally:
        crowd.end()

    assert ten is not None
    assert ten.number == 10
    assert killed >= 3
    told = [one for line in steps_of(engine, token) for one in line.ids]
    assert len(told) == len(set(told))
    answers = sum((Counter(line.answers) for line in steps_of(engine, token)), Counter())
    with engine.connect() as connection:
        cancelled = set(
            connection.execute(
                text("SELECT id FROM task_completed WHERE state = 'CANCELLED'")
            ).scalars()
        )
        asked = set(
            connection.execute(
                text("SELECT id FROM task_pending WHERE cancel_requested_at IS NOT NULL")
            ).scalars()
        )
        there = count(connection)
    assert there == len(ids)
    assert cancelled <= set(told)
    assert answers["cancelled"] + answers["requested"] == len(told)
    assert answers["cancelled"] <= len(cancelled) <= len(told)
    assert asked <= set(told)
    print(f"\n{answers=} {killed=} steps={len(steps_of(engine, token))}")


def test_thousands_that_failed_are_requeued_once_while_workers_fail_them_again(
    engine: Engine, database_url: str
) -> None:
    """Each comes back once, so its attempts are two: what failed again is not requeued again."""
    with engine.begin() as connection:
        create_tasks(connection, [NewTask("t")] * TASKS)
    fail_all(engine)
    crowd = Crowd(database_url)
    try:
        token = start_bulk(engine, "requeue", name="t", error_kind="Away", by="first")
        ten = run_bulk(engine, token, first=10, by="first")
        for seed in range(WORKERS):
            crowd.start(work, seed)
        killed = finish(engine, database_url, token, crowd)
        until(lambda: not left(engine), 600, "the last run")
    finally:
        crowd.end()

    assert ten is not None
    assert ten.answers == {"requeued": 10}
    assert killed >= 3
    steps = steps_of(engine, token)
    told = [one for line in steps for one in line.ids]
    assert len(told) == len(set(told)) == TASKS
    assert sum(line.number for line in steps) == TASKS
    with engine.connect() as connection:
        attempts = connection.execute(
            text("SELECT attempt, count(*) AS n FROM task_all GROUP BY attempt")
        ).all()
    assert [tuple(row) for row in attempts] == [(2, TASKS)]
    print(f"\n{killed=} steps={len(steps)}")


def release_in_stages(engine: Engine, url: str, workers: Workers, crowd: Crowd) -> tuple[int, int]:
    """Return the bulk that did it, and how many operators were killed."""
    with engine.connect() as connection:
        until(lambda: len(live_workers(connection, LEASE)) == WORKERS, 120, "a worker")
    token, released = start_bulk(engine, "release", name="gated", by="first"), 0
    for stage in (10, 190, 400):
        done = run_bulk(engine, token, first=stage, by="first")
        assert done is not None
        released += done.number
        until(lambda n=released: len(workers.runs()) == n, 120, f"the stage of {stage}")
    killed = finish(engine, url, token, crowd)
    until(lambda: not left(engine), 600, "the last run")
    return token, killed


@pytest.mark.test_all
def test_thousands_held_are_released_in_stages_beside_real_workers(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    """None is lost, none runs before its release, none runs twice."""
    with engine.begin() as connection:
        ids = create_tasks(connection, [NewTask("gated", {"key": "held"})] * TASKS)
    held = run_bulk(engine, start_bulk(engine, "hold", name="gated", by="first"))
    crowd, workers = Crowd(database_url), Workers(database_url, tmp_path, WORKERS)
    try:
        token, killed = release_in_stages(engine, database_url, workers, crowd)
    finally:
        crowd.end()
        workers.stop()

    assert held is not None
    assert held.number == TASKS
    assert killed >= 3
    steps = steps_of(engine, token)
    released_at = {one: line.at.timestamp() for line in steps for one in line.ids}
    assert sum(line.number for line in steps) == TASKS
    runs = workers.runs()
    assert sorted(run.task_id for run in runs) == sorted(released_at) == sorted(ids)
    assert [run for run in runs if run.began / 1e9 < released_at[run.task_id]] == []
    with engine.connect() as connection:
        ends = connection.execute(
            text("SELECT state, attempt, count(*) FROM task_all GROUP BY 1, 2")
        )
        assert ends.all() == [("SUCCEEDED", 1, TASKS)]
    print(f"\n{killed=} steps={len(steps)}")
