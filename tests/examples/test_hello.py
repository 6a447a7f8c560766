"""The task of one's own that the demo proposes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

pytestmark = pytest.mark.test_all


def test_hello_creates_a_task_that_a_worker_carries_out(
    engine: Engine, database_url: str, examples: Path
) -> None:
    environment = {
        **os.environ,
        "TASKS_APP_DATABASE_URL": database_url,
        "TASKS_APP_IMPORTS": "hello",
        "PYTHONPATH": str(examples),
    }
    script, worker = [str(examples / "hello.py")], ["-m", "tasks_app", "work", "--drain"]

    said = run(script, environment)
    run(worker, environment)

    with engine.connect() as connection:
        [(state, result)] = connection.execute(text("SELECT state, result FROM task_all"))
    assert "tasks-app show" in said
    assert state == "SUCCEEDED"
    assert result == {"said": "Hello, world! This is attempt 1."}


def run(arguments: list[str], environment: dict[str, str]) -> str:
    ended = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
