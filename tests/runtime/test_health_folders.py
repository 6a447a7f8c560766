"""Folders of processes that ended are removed by others that start, and no others are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks_app.runtime import health_files
from tasks_app.runtime.health_files import Liveness, project_folder
from tasks_app.runtime.worker.supervisor import LONG_AGO_S, remove_abandoned

URL = "postgresql+psycopg://me@db1:5432/{}"
LATER = time.time() + 2 * LONG_AGO_S


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(health_files.RUN_DIR_VARIABLE, str(tmp_path / "run"))
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", URL.format("mine"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def folder_of(name: str, role: str = "worker", *, ended: bool) -> Path:
    """Another project's folder; its process has ended, or is this one."""
    code = f"from tasks_app.runtime.health_files import *; Liveness({role!r}, 'a', good_for_s=60)"
    script = f"m = {code.partition('; ')[2]}; m.beat(); Liveness('db', good_for_s=60).beat()"
    other = {**os.environ, "TASKS_APP_DATABASE_URL": URL.format(name)}
    show = f"{code.partition('; ')[0]}; {script}; print(project_folder())"
    done = subprocess.run(
        [sys.executable, "-c", show], env=other, check=True, capture_output=True, text=True
    )
    folder = Path(done.stdout.strip())
    if not ended:
        mine = Liveness(role, "b", good_for_s=60)
        mine.beat()
        (Path(project_folder()) / f"{role}-b").rename(folder / f"{role}-b")
    return folder


@pytest.mark.test_all
def test_a_folder_whose_processes_ended_long_ago_goes() -> None:
    gone, lives = folder_of("one", ended=True), folder_of("two", ended=False)
    remove_abandoned()
    soon = gone.exists()
    remove_abandoned(LATER)
    assert soon  # until then a probe says what became of the process
    assert not gone.exists()
    assert lives.exists()


def test_ones_own_folder_and_what_is_none_of_ours_stay(base: Path, tmp_path: Path) -> None:
    Liveness("worker", "a", good_for_s=60).beat()
    (base / "notes").mkdir()
    (base / "0123abcd").symlink_to(tmp_path)
    (base / "deadbeef").write_text("a file")
    remove_abandoned(LATER)
    assert Path(project_folder()).exists()
    assert {path.name for path in base.iterdir()} >= {"notes", "0123abcd", "deadbeef"}


@pytest.mark.test_all
def test_a_folder_of_somebody_else_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = folder_of("one", ended=True)
    monkeypatch.setattr(os, "getuid", lambda: theirs.stat().st_uid + 1)
    remove_abandoned(LATER)
    assert theirs.exists()


@pytest.mark.test_all
def test_two_at_once_and_one_that_was_killed_over_it_do_no_harm(base: Path) -> None:
    gone = [folder_of(f"db{number}", ended=True) for number in range(5)]
    (base / "taken-1-0123abcd").mkdir()
    code = "from tasks_app.runtime.worker.supervisor import *; remove_abandoned({})"
    both = [subprocess.Popen([sys.executable, "-c", code.format(LATER)]) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert not any(folder.exists() for folder in gone)
    assert list(base.glob("taken-*")) == []


@pytest.mark.test_all
def test_who_starts_in_a_folder_just_removed_makes_it_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = folder_of("one", ended=True)
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", URL.format("one"))
    mine = Liveness("worker", "c", good_for_s=60)
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", URL.format("mine"))
    remove_abandoned(LATER)
    removed = not gone.exists()
    mine.beat()
    assert removed
    assert [path.name for path in gone.iterdir()] == ["worker-c"]
