"""Code of one version on the schema of another: it runs, or one sentence says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from tasks_app.pool.schema import migrate, newest
from tests.broker.celery_process import HOUSE, CeleryProcess
from tests.broker.conftest import House
from tests.cli.shell import Shell
from tests.releases import NEXT, NO_RELEASE, code_of, last_release, next_release

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(600, method="thread")]
MAY_STILL = f"The schema has version {NEXT}; this code is of {newest()}, and may still run on it."


@pytest.fixture
def house(shared_engine: Engine, broker, tmp_path: Path) -> Iterator[House]:
    """A house whose database has the schema of this code, until somebody migrates it."""
    with shared_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("DROP DATABASE IF EXISTS versions WITH (FORCE)"))
        connection.execute(text("CREATE DATABASE versions"))
    engine = create_engine(shared_engine.url.set(database="versions"))
    with engine.begin() as connection:
        migrate(connection)
    house = House(engine, engine.url.render_as_string(hide_password=False), broker, tmp_path)
    yield house
    house.end()
    engine.dispose()


def of(folder: Path) -> dict[str, str]:
    """Let a process run this code instead of ours."""
    return {"PYTHONPATH": f"{folder}{os.pathsep}{HOUSE}"}


def worker(house: House, **environment: str) -> CeleryProcess:
    """Start one, which also scans; other tests may be at work on this machine."""
    process = house.worker(ready=False, **environment)
    house.ready(process, timeout_s=120)
    return process


def command(house: House, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``tasks-app``."""
    return subprocess.run(
        [sys.executable, "-m", "tasks_app", *arguments],
        cwd=HOUSE,
        env={**os.environ, **house.environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def load(house: House) -> Iterator[list[int]]:
    """Create tasks all the time."""
    ids: list[int] = []
    over = threading.Event()

    def produce() -> None:
        while not over.wait(0.1):
            ids.extend(house.create("ok", 2))

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield ids
    finally:
        over.set()
        thread.join()


def work_goes_on(house: House, ids: list[int]) -> None:
    """Wait for the end of what there is by now; each task had its effect, once."""
    now = list(ids) or house.create("ok", 5)
    ended = house.over(now, 120)
    assert ended == {"SUCCEEDED": len(now)}
    effects, tasks = house.effects()
    assert effects == tasks


def last_words(house: House, *arguments: str, **environment: str) -> str:
    """Start it; return the last line of what it said before it ended by itself."""
    process = house.start(*arguments, **environment)
    assert process.wait(120) != 0
    assert "Traceback" not in process.log()
    return process.log().strip().splitlines()[-1]


def test_this_code_runs_on_the_next_schema_under_load(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = of(next_release(tmp_path / "next", oldest=newest()))
    shell = Shell(monkeypatch, HOUSE, **house.environment())
    before = worker(house)

    with load(house) as ids:
        too_early = command(house, "work", **later)
        migrated = command(house, "migrate", **later)
        work_goes_on(house, ids)  # by those that were at work
        before.stop()
        restarted = worker(house)
        work_goes_on(house, ids)
        worker(house, **later)
        restarted.stop()
        work_goes_on(house, ids)
    again, listed = shell("migrate"), shell("list")

    assert too_early.stderr.strip() == (
        f"The schema has version {newest()}; {NEXT} is needed. Run: tasks-app migrate"
    )
    assert f"The schema went from {newest()} to {NEXT}" in migrated.stdout, migrated.stderr
    assert MAY_STILL in restarted.log()
    assert again.returncode == 0
    assert f"{MAY_STILL} Upgrade tasks_app soon. Nothing to migrate" in again.stdout
    assert listed.returncode == 0


def test_a_schema_that_this_code_may_not_run_on_is_one_sentence(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = of(next_release(tmp_path / "next", oldest=NEXT))
    shell = Shell(monkeypatch, HOUSE, **house.environment())
    assert command(house, "migrate", **later).returncode == 0
    said = (
        f"This code is older than the schema: the schema has version {NEXT} and needs code of "
        f"{NEXT} or newer, this code is of {newest()}. Upgrade tasks_app."
    )

    for process in ("worker", "beat"):
        assert said in last_words(house, process)
    for arguments in (["migrate"], ["migrate", "--check"], ["list"], ["create", "ok"], ["work"]):
        done = shell(*arguments)
        assert (done.returncode, done.stderr.strip(), done.stdout) == (1, said, "")
    assert said.partition(". ")[0] in shell("doctor").stdout


def test_the_last_release_runs_on_the_schema_of_this_code(house: House, tmp_path: Path) -> None:
    commit = last_release()
    folder = code_of(commit, tmp_path / "last")
    if folder is None:
        pytest.skip(f"{NO_RELEASE}: git knows no commit {commit} here. Fetch all of its history.")
    task_id = command(house, "create", "ok").stdout.split()[0]

    done = command(house, "work", "--drain", **of(folder))

    assert done.returncode == 0, done.stderr
    assert house.sql(f"SELECT state FROM task_all WHERE id = {task_id}") == "SUCCEEDED"


def test_this_code_refuses_the_schema_of_the_last_release(house: House, tmp_path: Path) -> None:
    """Unless nothing was migrated since."""
    commit = last_release()
    folder = code_of(commit, tmp_path / "last")
    if folder is None:
        pytest.skip(f"{NO_RELEASE}: git knows no commit {commit} here. Fetch all of its history.")
    house.sql("DROP SCHEMA public CASCADE")
    house.sql("CREATE SCHEMA public")
    assert command(house, "migrate", **of(folder)).returncode == 0
    version = house.sql("SELECT version_num FROM tasks_app_version")

    done = command(house, "work", "--drain")

    if version == newest():
        assert done.returncode == 0
    else:
        assert done.stderr.strip() == (
            f"The schema has version {version}; {newest()} is needed. Run: tasks-app migrate"
        )
