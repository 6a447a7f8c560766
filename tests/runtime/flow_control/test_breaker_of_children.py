"""A breaker that processes share opens at its threshold, although calls fail at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.celery_process import HOUSE
from tests.runtime.bench import Bench
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(200)]

CHILDREN, LEAST, TASKS = 4, 40, 400
CREATE = (
    "SELECT count(task_create('pay', CAST(:payload AS jsonb))) FROM generate_series(1, :number)"
)


@pytest.fixture
def calls(bench: Bench, tmp_path: Path) -> Iterator[Path]:
    """The file that notes the calls of four children of one ``tasks-app work``."""
    log = tmp_path / "calls"
    log.touch()
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")},
        "TASKS_APP_DATABASE_URL": bench.url,
        "TASKS_APP_IMPORTS": "outage_handlers",
        "CALL_LOG": str(log),
        "PYTHONPATH": str(HOUSE),
    }
    command = [sys.executable, "-m", "tasks_app", "work", f"--concurrency={CHILDREN}"]
    worker = subprocess.Popen(command, env=environment)
    try:
        yield log
    finally:
        worker.terminate()
        worker.wait(60)


def test_few_more_calls_go_out_than_its_threshold(bench: Bench, calls: Path) -> None:
    """While 40 are missing, two of each child may wait for their second; and one is under way."""
    until(lambda: bench.sql("SELECT count(*) FROM task_worker") == CHILDREN, 60, "children")
    bench.sql(CREATE, payload='{"up": true}', number=400)  # so they know that it is fast
    until(lambda: bench.sql("SELECT sum(good) FROM task_breaker_count") == 400, 60, "reports")
    bench.sql("DELETE FROM task_breaker_count")
    bench.sql(CREATE, payload="{}", number=TASKS)

    def gone_out() -> int:
        return len(calls.read_text().splitlines())

    held = "SELECT count(*) FROM task_breaker_held"
    until(lambda: gone_out() + bench.sql(held) == TASKS, 60, "an end")

    assert LEAST <= gone_out() <= LEAST + CHILDREN * 3
    assert bench.sql("SELECT state FROM task_breaker") == "open"
    assert bench.sql("SELECT count(*) FROM task_pending WHERE failures > 0") == 0
