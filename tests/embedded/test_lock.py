"""The lock that makes one owner."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tasks_app.embedded import AlreadyOwnedError
from tasks_app.embedded.lock import FolderLock, is_held
from tests.tiers import starts_processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.test_all
def test_it_excludes_others_until_it_is_released(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path / "lock"), FolderLock(tmp_path / "lock")

    first.acquire()
    with pytest.raises(AlreadyOwnedError):
        second.acquire()
    first.release()
    second.acquire()

    assert second.is_mine
    assert not first.is_mine
    second.release()


def test_looking_at_it_does_not_take_it(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "lock")
    assert not is_held(tmp_path / "lock")

    lock.acquire()

    assert is_held(tmp_path / "lock")
    lock.release()
    assert not is_held(tmp_path / "lock")


OWNER_WITH_CHILD = """
import os, pathlib, signal, sys
from tasks_app.embedded.lock import FolderLock
lock = FolderLock(pathlib.Path(sys.argv[1]))
lock.acquire()
if os.fork() == 0:
    print("child", flush=True)
    sys.stdin.read()
else:
    signal.sigwait({signal.SIGUSR1})
    lock.release()
    print("released", flush=True)
    signal.pause()
"""


@pytest.fixture
@starts_processes
def owner(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """Hold the lock in a process whose child lives until its input is closed."""
    command = [sys.executable, "-c", OWNER_WITH_CHILD, str(tmp_path / "lock")]
    # Blocked from birth, so that the signal cannot come before the wait for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        assert process.stdout.readline() == b"child\n"
        assert is_held(tmp_path / "lock")
        yield process
        process.kill()


def test_a_forked_child_does_not_keep_it_when_it_is_released(
    owner: subprocess.Popen, tmp_path: Path
) -> None:
    owner.send_signal(signal.SIGUSR1)

    assert owner.stdout.readline() == b"released\n"
    assert not is_held(tmp_path / "lock")


def test_a_forked_child_does_not_keep_it_when_its_parent_is_killed(
    owner: subprocess.Popen, tmp_path: Path
) -> None:
    owner.kill()
    owner.wait()

    assert not is_held(tmp_path / "lock")
