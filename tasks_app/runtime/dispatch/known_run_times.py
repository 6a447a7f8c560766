"""The paces that a dispatcher knows: read from the database, and remembered for some seconds."""

from __future__ import annotations

import time
from collections.abc import Collection

from sqlalchemy import Connection

from tasks_app.pool.dispatch.run_times import paces

GOOD_FOR_S = 0.5
MOST_NAMES = 10_000


class KnownRunTimes:
    """Seconds by name. One that nobody has learned yet is asked for again each time."""

    def __init__(self) -> None:
        self._of_name: dict[str, tuple[float, float]] = {}

    def of(self, connection: Connection, names: Collection[str]) -> dict[str, float]:
        """Return what is known of these names."""
        now = time.monotonic()
        stale = [n for n in names if self._of_name.get(n, (0.0, -GOOD_FOR_S))[1] + GOOD_FOR_S < now]
        if stale:
            if len(self._of_name) > MOST_NAMES:
                self._of_name.clear()
                stale = list(names)
            self._of_name |= {n: (s, now) for n, s in paces(connection, stale).items()}
        return {name: self._of_name[name][0] for name in names if name in self._of_name}
