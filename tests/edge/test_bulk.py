"""Ten thousand rows, workers that run them meanwhile, and operators who are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from multiprocessing import get_context
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, text

from tasks_app import NewTask, create_tasks
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.operations import audit
from tasks_app.pool.runs.claim_next import claim_next
from tasks_app.pool.runs.settle import settle_group, settle_one
from tasks_app.runtime.api.bulk import run_bulk, start_bulk
from tests.factory import claimer, count, ending
from tests.waiting import until

pytestmark = pytest.mark.timeout(900)

TASKS, WORKERS, OPERATORS, KILLS = 10_000, 2, 2, 10
SPAWN = get_context("spawn")
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


def operate(url: str, token: int) -> None:
    """Go on with a bulk, over all that is left."""
    done = run_bulk(create_engine(url), token, by=f"pid {os.getpid()}")
    assert done is not None
    assert not done.more


class Crowd:
    """Processes of this test; all are ended with it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._all: list[Any] = []

    def start(self, what: Any, argument: int) -> Any:
        process = SPAWN.Process(target=what, args=(self._url, argument))
        process.start()
        self._all.append(process)
        return process

    def end(self) -> None:
        for process in self._all:
            process.kill()
            process.join()


def steps_of(engine: Engine, token: int) -> list[audit.AuditLine]:
    with engine.connect() as connection:
        return audit.steps(connection, token)[1:]


def left(engine: Engine) -> list[Any]:
    """What still waits or runs."""
    with engine.connect() as connection:
        query = (
            "SELECT state, owner, count(*), min(id), max(due_at) FROM task_pending GROUP BY 1, 2"
        )
        return list(connection.execute(text(query)))


def fail_all(engine: Engine) -> None:
    """Run all that is due once; all of it fails."""
    child = claimer("t")
    while True:
        with engine.begin() as connection:
            taken = claim_next(connection, ["default"], 500, child, uuid4())
            settle_group(connection, [ending(task, Event.FAIL, cause=BAD) for task in taken])
        if not taken:
            return


def wait_for_steps(engine: Engine, token: int, more_than: int, operators: list[Any]) -> bool:
    """Whether another step was committed; False: it is over."""

    def steps() -> list[Any]:
        assert any(operator.is_alive() for operator in operators), "nobody goes on"
        found = steps_of(engine, token)
        return found if len(found) > more_than or (found and found[-1].after is None) else []

    return until(steps, 60)[-1].after is not None


def finish(engine: Engine, url: str, token: int, crowd: Crowd) -> int:
    """Let operators go on together, kill one of them now and then, and replace them."""
    dice, killed = random.Random(token), 0
    operators = [crowd.start(operate, token) for _ in range(OPERATORS)]
    while wait_for_steps(engine, token, len(steps_of(engine, token)), operators):
        if killed < KILLS:
            victim = operators.pop(dice.randrange(OPERATORS))
            os.kill(victim.pid, signal.SIGKILL)
            killed += 1
            operators.append(crowd.start(operate, token))
    for operator in operators:
        operator.join()
        assert operator.exitcode == 0
    return killed


def test_ten_thousand_are_cancelled_while_workers_take_them_and_operators_are_killed(
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


def test_ten_thousand_failed_ones_are_requeued_once_while_workers_fail_them_again(
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


def test_ten_thousand_held_ones_are_released_in_stages_and_none_runs_before(
    engine: Engine, database_url: str
) -> None:
    with engine.begin() as connection:
        ids = create_tasks(connection, [NewTask("t")] * TASKS)
    held = run_bulk(engine, start_bulk(engine, "hold", name="t", by="first"))
    crowd = Crowd(database_url)
    try:
        for seed in range(WORKERS):
            crowd.start(work, seed)
        token = start_bulk(engine, "release", name="t", by="first")
        ten = run_bulk(engine, token, first=10, by="first")
        until(lambda: len(begun(engine)) == 10, 60, "the first stage")
        killed = finish(engine, database_url, token, crowd)
        until(lambda: not left(engine), 600, "the last run")
    finally:
        crowd.end()

    assert held is not None
    assert ten is not None
    assert (held.number, ten.number) == (TASKS, 10)
    assert killed >= 3
    steps = steps_of(engine, token)
    released = {one: line.at for line in steps for one in line.ids}
    assert sorted(released) == sorted(ids)
    assert sum(line.number for line in steps) == TASKS
    runs = begun(engine)
    assert len(runs) == TASKS
    early = [one for one, started_at in runs.items() if started_at < released[one]]
    assert early == []
    print(f"\n{killed=} steps={len(steps)}")


def begun(engine: Engine) -> dict[int, Any]:
    """When each task was claimed."""
    with engine.connect() as connection:
        query = "SELECT id, started_at FROM task_all WHERE started_at IS NOT NULL"
        return {row.id: row.started_at for row in connection.execute(text(query))}
