"""The package in a project that stays on Celery 5.5, SQLAlchemy 2.0, psycopg 3.2, redis-py 5.2."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tasks_app import get_task
from tests.docs.reading import PROJECT
from tests.releases import NO_INDEX

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(600, method="thread")]

KEPT = {"celery": "5.5", "kombu": "5.5", "SQLAlchemy": "2.0", "psycopg": "3.2", "redis": "5.2"}
VERSIONS = """
from importlib.metadata import version
import tasks_app.celery
assert "tasks_app.execute" in tasks_app.celery.app.tasks
print(*(".".join(version(name).split(".")[:2]) for name in {names}))
"""


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TASKS_APP_", "PYTHON"))}
    return subprocess.run(
        command,
        env={**kept, **environment},
        cwd=PROJECT if "hatchling" in command else "/",
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment's programs, where our wheel was installed with pip."""
    folder = tmp_path_factory.mktemp("older")
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("tasks_app-*.whl")
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{name}=={kept}.*\n" for name, kept in KEPT.items()))
    programs = folder / "venv" / "bin"
    assert run(sys.executable, "-m", "venv", "--without-pip", folder / "venv").returncode == 0
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    if run(*pip, "download", "--no-deps", "--retries", "0", "-d", folder, "cronsim").returncode:
        pytest.skip(NO_INDEX)
    into = ("--python", programs / "python", "install", "--quiet", "--no-compile")
    installed = run(*pip, *into, "-c", constraints, wheel)
    assert installed.returncode == 0, installed.stderr
    return programs


def test_a_task_is_created_and_worked(programs: Path, database_url: str, engine: Engine) -> None:
    hello = PROJECT / "examples" / "hello.py"
    environment = {
        "TASKS_APP_DATABASE_URL": database_url,
        "TASKS_APP_IMPORTS": "hello",
        "PYTHONPATH": str(hello.parent),
    }

    created = run(programs / "python", "-W", "error", hello, **environment)
    worked = run(programs / "tasks-app", "work", "--drain", **environment)

    assert created.returncode == 0, created.stderr
    assert worked.returncode == 0, worked.stderr
    (number,) = re.findall(r"Task (\d+) is in the pool", created.stdout)
    with engine.connect() as connection:
        task = get_task(connection, int(number))
    assert task is not None
    assert task.result == {"said": "Hello, world! This is attempt 1."}


def test_celery_loads_the_app(programs: Path) -> None:
    names = [*KEPT]
    loaded = run(
        programs / "python", "-W", "error", "-c", VERSIONS.format(names=names),
        TASKS_APP_DATABASE_URL="postgresql+psycopg://nobody@127.0.0.1:1/none",
        TASKS_APP_BROKER_URL="redis://127.0.0.1:1/0",
    )  # fmt: skip

    assert loaded.stderr == ""
    assert loaded.stdout.split() == [*KEPT.values()]
