"""The lock that makes one owner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks_app.embedded.folder import (
    AlreadyOwnedError,
    EmbeddedError,
    FolderLock,
    StackState,
    Started,
    Urls,
    read_state,
    write_private,
)
from tasks_app.embedded.servers import open_folder

STATE = StackState(
    os.getpid(), True, Urls("a", "b"), (Started("Valkey", "9.1", 0.1, 1234, 5, "there"),)
)


@pytest.fixture
def lock(tmp_path: Path) -> FolderLock:
    lock = FolderLock(tmp_path)
    lock.acquire()
    return lock


@pytest.mark.test_all
def test_it_excludes_others_until_it_is_released(lock: FolderLock, tmp_path: Path) -> None:
    second = FolderLock(tmp_path)

    with pytest.raises(AlreadyOwnedError):
        second.acquire()
    lock.release()
    second.acquire()

    second.release()


def test_others_read_what_its_holder_published(lock: FolderLock, tmp_path: Path) -> None:
    assert read_state(tmp_path) is None

    lock.publish(STATE)

    assert read_state(tmp_path) == read_state(tmp_path) == STATE
    lock.release()
    assert read_state(tmp_path) is None


def test_who_watches_servers_of_a_dead_owner_is_no_owner(lock: FolderLock, tmp_path: Path) -> None:
    lock.publish(STATE)
    watcher = os.dup(lock.descriptor)

    os.close(lock._exclusive)  # as at its death, and so the other one
    os.close(lock.descriptor)

    assert read_state(tmp_path) is None
    os.close(watcher)


@pytest.mark.test_all
def test_a_child_does_not_keep_it_when_it_is_released(lock: FolderLock, tmp_path: Path) -> None:
    """As a forked one has it; here one that was given it."""
    command, keep = [sys.executable, "-c", "input()"], [lock.descriptor]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=keep) as child:
        lock.release()

        lock.acquire()

        child.communicate(b"\n")
    lock.release()


def test_a_folder_that_was_removed_is_not_owned_any_more(lock: FolderLock, tmp_path: Path) -> None:
    assert lock.is_current
    (tmp_path / "lock").unlink()
    assert not lock.is_current
    (tmp_path / "lock").touch()
    assert not lock.is_current


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedError, match="cannot be used"):
        open_folder(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_root_writes_is_the_folders_owners(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    write_private(tmp_path / "facts.json", {})
    assert (tmp_path / "facts.json").stat().st_uid == 65534
