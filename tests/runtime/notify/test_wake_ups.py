"""``tasks-app work`` in real processes, whose scan comes too late for all that is seen here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil
import pytest
from sqlalchemy.orm import Session

from tasks_app import create_task
from tasks_app.embedded.servers import Postgres
from tasks_app.pool.dispatch.notifications import install_trigger, remove_trigger
from tests.runtime.bench import Bench
from tests.runtime.notify.conftest import until_quiet
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

HOUSE = Path(__file__).parents[2] / "broker" / "house"
LATE_S, SOON_S = 60, 10
"""The scan's interval, and how soon a task starts that somebody told of."""
Work = Callable[..., subprocess.Popen]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def work(bench: Bench, log: Path) -> Work:
    """Starts one; it is killed when the test ends."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")}
    ours = {
        "TASKS_APP_DATABASE_URL": bench.url,
        "TASKS_APP_IMPORTS": "house_handlers",
        "TASKS_APP_SCAN_INTERVAL": f"{LATE_S}s",
        "PYTHONPATH": str(HOUSE),
    }

    def start(*arguments: str, **variables: str) -> subprocess.Popen:
        with log.open("ab") as stderr:
            parent = _start(stderr, {**kept, **ours, **variables}, *arguments)
        bench.at_end(lambda: _end(parent))
        return parent

    return start


def _start(stderr: IO[bytes], environment: dict[str, str], *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "tasks_app", "work", *arguments]
    return subprocess.Popen(command, env=environment, stderr=stderr)


def _end(parent: subprocess.Popen) -> None:
    with suppress(psutil.NoSuchProcess):
        for process in (*psutil.Process(parent.pid).children(), parent):
            process.kill()
    parent.wait()


def starts_soon(bench: Bench) -> None:
    """Create tasks on a session, each while all workers sleep."""
    for _ in range(3):
        until_quiet(bench)
        with Session(bench.engine) as session, session.begin():
            task_id = create_task(session, "plain")
        until(lambda task=task_id: bench.state(task) == "SUCCEEDED", SOON_S, "the run")


@pytest.mark.usefixtures("hinting")
def test_a_committed_task_starts_long_before_the_scan(
    bench: Bench, work: Work, listeners: Callable[[], int]
) -> None:
    parent = work("-c", "2")
    until(lambda: listeners() == 2, 30, "LISTEN of both")

    starts_soon(bench)

    began = time.monotonic()
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(30) == 0
    assert time.monotonic() - began < SOON_S
    assert listeners() == 0


@pytest.mark.usefixtures("hinting")
def test_it_listens_again_after_a_restart_of_the_database(
    bench: Bench, work: Work, listeners: Callable[[], int], postgres: Postgres, log: Path
) -> None:
    work("-c", "1")
    until(listeners, 30)

    bench.engine.dispose()
    postgres.stop()
    postgres.start()
    bench.engine.dispose()

    until(listeners, 60, "LISTEN")
    starts_soon(bench)
    said = log.read_text()
    assert said.count("does not wake this process") == 1
    assert said.count("wakes this process again") == 1


def test_sql_wakes_by_the_trigger(bench: Bench, work: Work, listeners: Callable[[], int]) -> None:
    with bench.engine.begin() as connection:
        install_trigger(connection)
    try:
        work("-c", "1")
        until(listeners, 30)

        for _ in range(3):
            until_quiet(bench)
            task_id = bench.sql("SELECT task_create('plain')")
            until(lambda task=task_id: bench.state(task) == "SUCCEEDED", SOON_S, "the run")
    finally:
        with bench.engine.begin() as connection:
            remove_trigger(connection)


def test_without_hints_nobody_listens(
    bench: Bench, work: Work, listeners: Callable[[], int]
) -> None:
    work("-c", "1", TASKS_APP_HINTS="off", TASKS_APP_SCAN_INTERVAL="100ms")

    task_id = bench.create("plain")

    until(lambda: bench.state(task_id) == "SUCCEEDED", 30)
    assert listeners() == 0
