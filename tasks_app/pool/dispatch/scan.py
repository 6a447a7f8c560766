"""Scan: which rows are due, in the order in which they run. Reads only.

A whole pass starts at the front of the index: a watermark would miss rows that commit late. One
probe for each priority keeps it cheap while millions of rows wait for a later day, on any version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.fragments.conditions import is_free
from tasks_app.pool.fragments.conditions import runs
from tasks_app.pool.fragments.scan_position import BEHIND, NUMBERED, SINCE, Places, place_values
from tasks_app.pool.tables import NOW, PENDING, UNGATED, has_pending


@dataclass(frozen=True, slots=True)
class DueRows:
    """Due rows of one queue, column by column: a pass may read twenty thousand."""

    queue: str
    ids: list[int]
    names: list[str]
    priorities: list[int]
    scan_at: list[float]
    """Seconds since 1970, as ``datetime.timestamp`` counts them."""
    barred: frozenset[int]
    """Those that are disabled or expired; to be swept."""
    gated: frozenset[int] = frozenset()
    """Those that gates stand before."""
    held: frozenset[int] = frozenset()
    """Those that a breaker holds; to be put aside."""

    def rows(self) -> Iterable[tuple[int, str, float]]:
        """Return id, name and scan_at of each."""
        return zip(self.ids, self.names, self.scan_at, strict=True)


_DUE = text(f"""
    SELECT q.queue, d.* FROM unnest(CAST(:queues AS text[]), CAST(:most AS int[]))
        WITH ORDINALITY AS q(queue, most, number)
    CROSS JOIN LATERAL (
        SELECT array_agg(p.id) AS ids, array_agg(p.name) AS names,
            array_agg(p.priority) AS priorities,
            array_agg(date_part('epoch', p.scan_at)) AS scan_at,
            array_agg(p.id) FILTER (WHERE NOT p.enabled OR p.expires_at <= {NOW}) AS barred,
            array_agg(p.id) FILTER (WHERE NOT ({UNGATED})) AS gated,
            array_agg(p.id) FILTER (WHERE NOT {is_free()}) AS held
        FROM (
            SELECT p.* FROM generate_series(0, 9) AS r(priority)
            {NUMBERED}
            CROSS JOIN LATERAL (
                SELECT p.id, p.name, p.scan_at, p.enabled, p.expires_at, p.priority, p.queue,
                    p.order_key, p.limit_key, p.parked_kind
                FROM {PENDING} p
                WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
                  AND p.scan_at <= {NOW}
                  AND {BEHIND}
                ORDER BY p.scan_at, p.id LIMIT q.most) AS p
            ORDER BY p.priority, p.scan_at, p.id LIMIT q.most) AS p) AS d
    WHERE {runs("q.queue")} AND {has_pending("q.queue", SINCE)} AND d.ids IS NOT NULL
""")


def due(
    connection: Connection,
    wanted: Mapping[str, int],
    *,
    after: Places | None = None,
    within: timedelta | None = None,
    now: datetime | None = None,
) -> list[DueRows]:
    """Return up to ``wanted`` due rows of each queue, by priority, then scan_at, then id.

    Queues that have none or stand still are left out. The rows of a queue and priority begin behind
    ``after``. What is due for longer than ``within`` is not read.
    """
    queues = list(wanted)
    values = {"queues": queues, "most": list(wanted.values()), "within": within, "now": now}
    values |= place_values(queues, after)
    return [
        DueRows(
            row.queue,
            row.ids,
            row.names,
            row.priorities,
            row.scan_at,
            frozenset(row.barred or ()),
            frozenset(row.gated or ()),
            frozenset(row.held or ()),
        )
        for row in connection.execute(_DUE, values)
    ]
