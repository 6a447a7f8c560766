"""Scan position: where to go on reading due rows, behind those that were read last.

Finished tasks leave dead entries in the index of due rows; a read that begins behind them does not
pass them. A task that becomes due, or comes back, before that place is not seen from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tasks_app.pool.tables import NOW

Place: TypeAlias = tuple[float, int]
"""A row's scan_at, in seconds since 1970, and its id: where it stands among those like it."""
Places: TypeAlias = Mapping[tuple[str, int], Place]
"""Of queues and their priorities; of those without one all is read."""

SINCE = f"coalesce({NOW} - CAST(:within AS interval), '-infinity')"
"""Where to begin without a place: nothing that is due for longer is read."""
BEHIND = f"""(p.scan_at, p.id) > (
                    coalesce(to_timestamp((CAST(:after_at AS float8[]))[n.place]), {SINCE}),
                    coalesce((CAST(:after_id AS bigint[]))[n.place], 0))"""
"""The condition that the row stands behind the place of its queue and priority."""
NUMBERED = (
    "CROSS JOIN LATERAL (SELECT CAST(10 * (q.number - 1) + r.priority + 1 AS int) AS place) AS n"
)
"""Joins that to ``unnest(…) WITH ORDINALITY AS q(…, number)`` and the priorities ``r``."""


def place_values(queues: Sequence[str], places: Places | None) -> dict[str, Any]:
    """Return the values of these conditions; ``queues`` are in the order of their numbers."""
    each: list[Place | None] = []
    if places:
        each = [places.get((queue, priority)) for queue in queues for priority in range(10)]
    return {
        "after_at": [place and place[0] for place in each],
        "after_id": [place and place[1] for place in each],
    }
