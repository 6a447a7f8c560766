"""Claims whose outcome is not told yet: under which span that will be, and when the handler ended.

Most leave with their outcome. Those whose lease was lost never do, so the oldest make room.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Generic, TypeVar

C = TypeVar("C")
MOST = 10_000


@dataclass(slots=True)
class OpenRun(Generic[C]):
    """A claim, and perhaps its run."""

    parent: C
    ended_ns: int | None = None


class OpenRuns(Generic[C]):
    """One process's; its threads add to it."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._runs: dict[tuple[int, int], OpenRun[C]] = {}

    def keep(self, task_id: int, attempt: int, parent: C) -> None:
        with self._lock:
            self._runs[task_id, attempt] = OpenRun(parent)
            if len(self._runs) > self._most:
                del self._runs[next(iter(self._runs))]

    def parent(self, task_id: int, attempt: int) -> C | None:
        kept = self._runs.get((task_id, attempt))
        return None if kept is None else kept.parent

    def ended(self, task_id: int, attempt: int, at_ns: int) -> None:
        kept = self._runs.get((task_id, attempt))
        if kept is not None:
            kept.ended_ns = at_ns

    def pop(self, task_id: int, attempt: int) -> OpenRun[C] | None:
        return self._runs.pop((task_id, attempt), None)
