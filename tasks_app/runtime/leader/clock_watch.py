"""A watch on the database's clock: whether it went forward by more than time did.

At a failover another machine's clock goes on. If it is ahead by more than a lease, every lease is
over at once, and nobody is dead.
"""

from __future__ import annotations

import time


class ClockWatch:
    """Of one who judges leases; it knows what it was told, and when."""

    def __init__(self, tolerated_s: float) -> None:
        self._tolerated_s = tolerated_s
        self._told: tuple[float, float] | None = None

    def jumped_s(self, said_s: float, asked_at: float) -> float:
        """Return how far the clock jumped since it was last asked; 0: no farther than tolerated.

        ``said_s`` is its answer to a question asked at ``asked_at`` by ``time.monotonic``. A slow
        answer is no jump; a clock that goes back makes leases longer, which does no harm.
        """
        told, self._told = self._told, (said_s, asked_at)
        if told is None:
            return 0.0
        passed_s = time.monotonic() - told[1]
        ahead_s = said_s - told[0] - passed_s
        return ahead_s if ahead_s > self._tolerated_s else 0.0
