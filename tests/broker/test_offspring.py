"""Processes that handlers start: which ways work in which kind of child."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.broker.celery_process import HOUSE
from tests.broker.conftest import House
from tests.environment import python_path

pytestmark = pytest.mark.test_all
OF_PYTHON = ("process", "pool", "spawned", "executor")
OTHERS = ("billiard", "billiard pool", "subprocess")
RESULTS = {"process": [0], "billiard": [0], "subprocess": [2]}
"""Of the others: what two processes of a pool make of 1 and 2."""
CASES = [
    *(("prefork", way) for way in (*OF_PYTHON, *OTHERS)),
    *(("threads", way) for way in ("spawned", "executor", "subprocess")),
    *(("work", way) for way in (*OF_PYTHON, *OTHERS)),
]


@pytest.fixture(scope="module")
def ends(house: House) -> Iterator[dict[tuple[str, str], object]]:
    """Try each way in a child of each kind; return the results, or the errors, of all."""
    environment = {"TASKS_APP_IMPORTS": "offspring_handlers", "TASKS_APP_SCAN_INTERVAL": "100ms"}
    house.worker("-Q", "prefork", children=1, ready=False, **environment)
    house.worker("-Q", "threads", "-P", "threads", children=1, ready=False, **environment)
    house.beat(**environment)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")}
    work = subprocess.Popen(
        [sys.executable, "-m", "tasks_app", "work", "-q", "work", "-c", "1"],
        env={**kept, **house.environment(**environment), "PYTHONPATH": python_path(HOUSE)},
        stderr=subprocess.DEVNULL,
    )
    try:
        created = {
            (kind, way): house.create("offspring", payload={"way": way}, queue=kind)[0]
            for kind, way in CASES
        }
        house.over(list(created.values()), 60)
        tasks = {case: house.task(task_id) for case, task_id in created.items()}
        yield {case: task.error or task.result for case, task in tasks.items()}
    finally:
        work.terminate()
        with suppress(subprocess.TimeoutExpired):
            work.wait(20)
        work.kill()
        work.wait()


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Leave the rows of all cases, which are made at once, alone."""


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_a_handler_starts_processes(
    ends: dict[tuple[str, str], object], kind: str, way: str
) -> None:
    refused = kind == "prefork" and way in OF_PYTHON
    said = "AssertionError: daemonic processes are not allowed to have children"
    assert ends[kind, way] == (said if refused else RESULTS.get(way, [2, 4]))
