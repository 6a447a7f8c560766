"""Operators who go on with one bulk together, and are killed now and then."""

from __future__ import annotations

import os
import random
import signal
from multiprocessing import get_context
from typing import Any

from sqlalchemy import Engine, create_engine, text

from tasks_app.pool.operations import audit
from tasks_app.runtime.api.bulk import run_bulk
from tests.clock import until

OPERATORS, KILLS = 2, 4
SPAWN = get_context("spawn")


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
    with engine.connect() as connection:
        query = (
            "SELECT state, owner, count(*), min(id), max(due_at) FROM task_pending GROUP BY 1, 2"
        )
        return list(connection.execute(text(query)))


def wait_for_steps(engine: Engine, token: int, more_than: int, operators: list[Any]) -> bool:
    """Whether another step was committed; False: it is over."""

    def steps() -> list[Any]:
        assert any(operator.is_alive() for operator in operators), "nobody goes on"
        found = steps_of(engine, token)
        return found if len(found) > more_than or (found and found[-1].after is None) else []

    return until(steps, 200)[-1].after is not None


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
