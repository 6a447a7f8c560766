"""One owner per folder: a lock that the kernel releases when its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from tasks_app.embedded.errors import AlreadyOwnedError

if TYPE_CHECKING:
    from pathlib import Path

# `is_held` holds the lock for a moment; `acquire` waits longer than that.
PATIENCE_S = 0.3

_held: set[int] = set()


class FolderLock:
    """An exclusive ``flock``; two of the same path exclude each other even in one process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def is_mine(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def acquire(self) -> None:
        """Take the lock; nothing happens if this object has it.

        Raises:
            AlreadyOwnedError: somebody else holds it.
        """
        if self._descriptor is not None:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + PATIENCE_S
        while not _try(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise AlreadyOwnedError(refusal(self._path))
            time.sleep(0.02)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor
        _held.add(descriptor)

    def release(self) -> None:
        """Release it; the file stays, because removing it would race with the next holder."""
        if self._descriptor is not None:
            _held.discard(self._descriptor)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # for copies in forked children too
            os.close(self._descriptor)
            self._descriptor = None


def is_held(path: Path) -> bool:
    """Say whether any object in any process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def refusal(path: Path) -> str:
    """Return two sentences: who owns the folder, and what to do."""
    holder = path.read_text(encoding="ascii").strip() or "unknown"
    return (
        f"Process {holder} already runs the servers in {path.parent}. "
        "Stop it with `tasks-app down`, or name another folder."
    )


def _close_in_child() -> None:
    """Keep a forked child from holding the lock when its parent is gone."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


def _try(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


os.register_at_fork(after_in_child=_close_in_child)
