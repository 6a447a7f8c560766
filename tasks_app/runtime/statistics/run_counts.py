"""Run counts: how many runs came to which state, over all processes of a worker.

Each group of outcomes is a line in a file: what a process wrote stays when it is killed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from tasks_app.domain.tasks.states import State


class RunCounts:
    """One process's; its threads may count at once."""

    def __init__(self) -> None:
        self._file = -1

    def into(self, path: Path) -> None:
        """Count into this file from now on, behind what others wrote there."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def add(self, states: Collection[State]) -> None:
        """Count what the database has answered, for a waiting parent."""
        if self._file >= 0:
            lines = [f"{state} {number}\n" for state, number in Counter(states).items()]
            with suppress(OSError):  # a full disk costs the count, and no outcome
                os.write(self._file, "".join(lines).encode())


RUN_COUNTS = RunCounts()


def read_counts(path: Path) -> Counter[State]:
    sums: Counter[State] = Counter()
    for line in path.read_text().splitlines():
        state, _, number = line.partition(" ")
        sums[State(state)] += int(number)
    return sums
