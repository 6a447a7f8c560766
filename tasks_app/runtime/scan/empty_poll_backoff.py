"""Lulls: a kind of tasks of which the pool has none is looked for rarely while there are others.

To find none, a claim reads all that is due of the other kind: beside a hundred thousand tasks that
takes as long as to claim a thousand of them.
"""

from __future__ import annotations

import time

SLOW_S = 0.005
"""A look that is faster is no burden."""
REST = 20
"""Slow looks that find nothing take a twentieth of the time …"""
LONGEST_REST_S = 5.0
"""… unless they are so slow that what is new would wait too long."""


class EmptyPollBackoff:
    """The looks for one kind of tasks."""

    def __init__(self) -> None:
        self._until = 0.0
        self._lately_s = 0.0
        """How long the last look took, if it found nothing."""

    @property
    def lasts(self) -> bool:
        """Whether to look for others only, as long as there are some."""
        return time.monotonic() < self._until

    def looked(self, began: float, *, found: int) -> None:
        """Learn from a look that is over.

        One slow look says nothing: the machine, or the database, may have stood still meanwhile.
        """
        now = time.monotonic()
        took = min(now - began, self._lately_s)
        self._lately_s = 0.0 if found else now - began
        rest = min(REST * took, LONGEST_REST_S) if took > SLOW_S and not found else 0.0
        self._until = now + rest
