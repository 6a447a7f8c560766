"""How ids are grouped into messages: as many as a child carries out in a moment, in their order.

One child carries out a message. Hundreds of fast tasks share one. A slow task has its own, unless
the child runs several at once, so that nothing waits behind it that another child could run.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import Connection

from tasks_app.pool.dispatch.run_times import paces

MESSAGE_S = 0.4
"""How much of a child's time a message likely takes; between two the child waits milliseconds."""
UNKNOWN_S = MESSAGE_S / 2
"""For names of which nobody has run a task yet: a few go out, and then it is known."""


def grouped(
    tasks: Iterable[tuple[int, str]], paces: Mapping[str, float], *, messages: int, largest: int
) -> list[list[int]]:
    """Return the ids of at most so many messages; what does not fit waits for the next pass."""
    groups: list[list[int]] = []
    full_s = 0.0
    for task_id, name in tasks:
        takes_s = paces.get(name, UNKNOWN_S)
        if not groups or len(groups[-1]) >= largest or full_s + takes_s > MESSAGE_S + 1e-9:
            if len(groups) == messages:
                break
            groups.append([])
            full_s = 0.0
        groups[-1].append(task_id)
        full_s += takes_s
    return groups


GOOD_FOR_S = 0.5


MOST_NAMES = 10_000


class KnownRunTimes:
    """Seconds by name. One that nobody has learned yet is asked for again each time."""

    def __init__(self) -> None:
        self._of_name: dict[str, tuple[float, float]] = {}

    def of(self, connection: Connection, names: Collection[str]) -> dict[str, float]:
        now = time.monotonic()
        stale = [n for n in names if self._of_name.get(n, (0.0, -GOOD_FOR_S))[1] + GOOD_FOR_S < now]
        if stale:
            if len(self._of_name) > MOST_NAMES:
                self._of_name.clear()
                stale = list(names)
            self._of_name |= {n: (s, now) for n, s in paces(connection, stale).items()}
        return {name: self._of_name[name][0] for name in names if name in self._of_name}
