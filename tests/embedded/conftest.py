"""Folders that the servers' user may enter, and a stack for tests that only look."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tasks_app.embedded.stack import Stack, down, temporary
from tests.tiers import starts_processes

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    """A folder in which PostgreSQL has been before."""
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
