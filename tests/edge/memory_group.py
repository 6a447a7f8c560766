"""A memory cgroup of our own, of version 1 or 2: what a container's memory limit is made of."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.clock import until

ROOTS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


class MemoryGroup:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        one = (folder / "memory.limit_in_bytes").exists()
        self.version = 1 if one else 2
        self._limit = folder / ("memory.limit_in_bytes" if one else "memory.max")
        self._usage = folder / ("memory.usage_in_bytes" if one else "memory.current")
        self._events = folder / ("memory.oom_control" if one else "memory.events")
        if not one:
            (folder / "memory.oom.group").write_text("1")

    def add(self, pid: int) -> None:
        """Take a process in; what it forks from now on belongs to it, too."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def leave_room(self, size: int) -> None:
        self._limit.write_text(str(int(self._usage.read_text()) + size))

    def lift(self) -> None:
        self._limit.write_text("-1" if self.version == 1 else "max")

    @property
    def kills(self) -> int:
        """How often the kernel killed here because the memory ran out."""
        lines = dict(line.split() for line in self._events.read_text().splitlines())
        return int(lines["oom_kill"])

    def kill(self) -> None:
        """End every process in it, as ``memory.oom.group`` does in version 2."""
        while pids := self._pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _pids(self) -> list[int]:
        return [int(pid) for pid in (self._folder / "cgroup.procs").read_text().split()]

    def remove(self) -> None:
        self.kill()
        until(self._removed, 10, f"the end of {self._folder}")

    def _removed(self) -> bool:
        with suppress(OSError):
            self._folder.rmdir()
        return not self._folder.exists()


@contextmanager
def memory_group() -> Iterator[MemoryGroup | None]:
    """Make one for the block; None: this machine lets us have none."""
    group = next(filter(None, map(_made_in, ROOTS)), None)
    try:
        yield group
    finally:
        if group is not None:
            group.remove()


def _made_in(root: Path) -> MemoryGroup | None:
    folder = root / f"tasks_app-test-{os.getpid()}"
    try:
        if (root / "cgroup.subtree_control").exists():
            (root / "cgroup.subtree_control").write_text("+memory")
        folder.mkdir()
    except OSError:
        return None
    try:
        return MemoryGroup(folder)
    except OSError:
        folder.rmdir()
        return None
