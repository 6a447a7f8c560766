"""Folders that the servers' user may enter, a stack to look at, and ways to ask it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import redis

from tasks_app.embedded.folder import StackState
from tasks_app.embedded.stack import Stack, down, temporary
from tests import clock
from tests.tiers import starts_processes


@pytest.fixture(scope="session")
@starts_processes
def seed() -> Iterator[Path]:
    """A folder after its first start, to be copied: initdb thirty times is 15 s."""
    with temporary() as up:
        up.down()
        yield up.folder


@pytest.fixture
@starts_processes
def folder(new_folder: Path, seed: Path) -> Path:
    # With `cp`, which is five times as fast as `shutil.copytree` and keeps the owner.
    subprocess.run(["cp", "-Rp", seed / "pg", seed / "pg.json", new_folder], check=True)
    return new_folder


@pytest.fixture
@starts_processes
def new_folder() -> Iterator[Path]:
    """Not `tmp_path`: pytest closes that to other users, and root's servers run as one."""
    path = Path(tempfile.mkdtemp(prefix="tasks_app-test-"))
    path.chmod(0o711)
    yield path
    down(path)
    for leftover in (path / "pg", path / "valkey", path):  # the first two may be links
        shutil.rmtree(leftover.resolve(), ignore_errors=True)


@pytest.fixture(scope="module")
@starts_processes
def stack() -> Iterator[Stack]:
    """Shared: look, but leave it running."""
    with temporary() as up:
        yield up


PATIENCE_S = 30


def sql(url: str, statement: str) -> Any:
    """Run one statement; return the first value of its first row, if it has rows."""
    with psycopg.connect(url.replace("+psycopg", ""), connect_timeout=5) as connection:
        cursor = connection.execute(statement)
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def broker(url: str, *command: str) -> Any:
    client = redis.Redis.from_url(url, decode_responses=True)
    try:
        return client.execute_command(*command)
    finally:
        client.close()


def until(holds: Callable[[], Any]) -> Any:
    return clock.until(holds, PATIENCE_S)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pids(state: StackState | Stack) -> list[int]:
    return [started.pid for started in state.started]


def spoil(data: Path) -> None:
    manifest = data / "appendonlydir" / "appendonly.aof.manifest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("nonsense")
    for path in (manifest.parent, manifest):
        path.chmod(0o777)
