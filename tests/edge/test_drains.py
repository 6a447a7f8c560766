"""Workers that stop under load at random moments, while others take over. Prints its figures."""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app import NewTask, create_tasks
from tests.broker.conftest import House
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(600, method="thread")]

DRAINS = int(os.environ.get("TASKS_APP_TEST_DRAINS", "6"))
SEED = int(os.environ.get("TASKS_APP_TEST_SEED", "1"))
GRACE_S = 20.0
LATE_S = 2.0
CALM = {  # a machine under load is slow: nobody shall be rescued, nothing published twice
    "TASKS_APP_LEASE": "30s",
    "TASKS_APP_GIVE_BACK_AFTER": "1s",
    "TASKS_APP_IMPORTS": "house_handlers,stop_handlers",
}
QUICK, BRIEF, SLOW, LONG = 0.0, 0.2, 1.0, 4.0


class Load(threading.Thread):
    """A producer: bursts of tasks, fast and slow, sync and async."""

    def __init__(self, house: House, rng: random.Random, *, long: bool) -> None:
        super().__init__(daemon=True)
        self._house, self._rng, self._long = house, rng, long
        self._ends = threading.Event()

    def run(self) -> None:
        while not self._ends.wait(0.5):
            tasks = [self._task("load.sync", QUICK) for _ in range(self._rng.randint(2, 20))]
            tasks += [self._task("load.sync", BRIEF), self._task("load.async", BRIEF)]
            tasks += [self._task("load.async", SLOW)] if self._rng.random() < 0.5 else []
            tasks += [self._task("load.sync", SLOW)] if self._rng.random() < 0.3 else []
            tasks += [self._task("load.sync", LONG)] * (self._long and self._rng.random() < 0.2)
            self._rng.shuffle(tasks)
            with self._house.engine.begin() as connection:
                create_tasks(connection, tasks)

    def _task(self, name: str, seconds: float) -> Any:
        return NewTask(name, {"seconds": seconds})

    def end(self) -> None:
        self._ends.set()
        self.join(10)


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in which every handler notes that it was called."""
    path = tmp_path / "starts"
    path.touch()
    monkeypatch.setenv("STOP_STARTS", str(path))
    return path


HANDLERS = str(Path(__file__).parents[1] / "broker" / "house")
HOLDS = """
    SELECT count(*) FROM task_pending WHERE state = 'RUNNING' AND owner LIKE :node
    AND (payload->>'seconds')::float >= :seconds
"""
RELEASED = "SELECT extract(epoch FROM started_at - due_at) FROM task_completed WHERE attempt > 1"
FRESH = "SELECT extract(epoch FROM started_at - due_at) FROM task_completed WHERE attempt = 1"
"""The same of tasks that were never released: what this machine can do just now."""


def drain(
    house: House, folder: Path, number: int, how: signal.Signals, soft: float
) -> tuple[list[float], Counter[int]]:
    """Stop so many workers, one after the other; return how long each took, and its status."""
    (folder / "celeryconfig.py").write_text(f"worker_soft_shutdown_timeout = {soft}\n")
    configured = {**CALM, "PYTHONPATH": os.pathsep.join([str(folder), HANDLERS])}
    held = LONG if how is signal.SIGQUIT else QUICK
    rng = random.Random(SEED)
    load = Load(house, rng, long=held == LONG)
    house.worker(children=4, **CALM)
    house.beat(**CALM)
    load.start()
    took, statuses = [], Counter[int]()
    try:
        for _ in range(number):
            worker = house.worker(**configured)
            until(lambda w=worker: house.sql(HOLDS, node=f"{w.name}@%", seconds=held), 60)
            threading.Event().wait(rng.random())  # the random moment
            began = time.monotonic()
            os.kill(worker.pid, how)
            statuses[worker.wait(60)] += 1
            took.append(time.monotonic() - began)
    finally:
        load.end()
    until(lambda: house.sql("SELECT count(*) FROM task_pending") == 0, 120)
    return took, statuses


def lateness(house: House, which: str = RELEASED) -> list[float]:
    """Seconds between the instant at which tasks were due again and their start."""
    with house.engine.connect() as connection:
        return sorted(float(late) for late in connection.execute(text(which)).scalars())


def charged(house: House) -> int:
    return house.sql(
        "SELECT (SELECT count(*) FROM task_error) + (SELECT count(*) FROM task_attempt)"
        " + (SELECT count(*) FROM task_completed WHERE failures + crashes > 0)"
    )


def figures(what: str, values: list[float]) -> str:
    middle = statistics.median(values)
    late = sum(value > LATE_S for value in values)
    return f"{what}: {len(values)}, median {middle:.2f} s, max {max(values):.2f} s, {late} over 2 s"


def report(capsys: pytest.CaptureFixture[str], house: House, *lines: str) -> None:
    number = house.sql("SELECT count(*) FROM task_completed")
    with capsys.disabled():
        sys.stdout.write("\n  ".join(["", f"tasks done: {number}", *lines, ""]))


def test_sigterm_at_random_moments(
    house: House, tmp_path: Path, starts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    took, statuses = drain(house, tmp_path, DRAINS, signal.SIGTERM, 0.0)

    late, fresh = lateness(house), lateness(house, FRESH)
    runs = Counter(starts.read_text().split())
    effects = house.effects()
    done = house.sql("SELECT count(*) FROM task_completed")
    report(
        capsys, house,
        figures("SIGTERM drains", took), f"exit statuses: {dict(statuses)}",
        figures("released tasks, until they started elsewhere", late),
        figures("tasks never released, until they started", fresh),
        f"charged: {charged(house)}, started twice: {sum(n > 1 for n in runs.values())}",
    )  # fmt: skip
    assert statuses == {0: DRAINS}
    assert max(took) < GRACE_S
    assert charged(house) == 0
    assert set(runs.values()) == {1}
    assert effects == (done, done)
    assert max(late) <= max(LATE_S, *fresh)


def test_sigquit_with_a_grace_at_random_moments(
    house: House, tmp_path: Path, starts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number = max(1, DRAINS // 2)
    took, statuses = drain(house, tmp_path, number, signal.SIGQUIT, 0.5)

    late, fresh = lateness(house), lateness(house, FRESH)
    runs = Counter(starts.read_text().split())
    effects = house.effects()
    done = house.sql("SELECT count(*) FROM task_completed")
    let_go = sum(n - 1 for n in runs.values())
    report(
        capsys, house,
        figures("SIGQUIT with 0.5 s of grace", took), f"exit statuses: {dict(statuses)}",
        f"let go while they ran: {let_go}",
        figures("released tasks, until they started elsewhere", late),
        figures("tasks never released, until they started", fresh),
        f"charged: {charged(house)}",
    )  # fmt: skip
    assert statuses == {0: number}
    assert max(took) < GRACE_S
    assert charged(house) == 0
    assert let_go > 0
    assert effects == (done, done)
    assert max(late) <= max(LATE_S, *fresh)
