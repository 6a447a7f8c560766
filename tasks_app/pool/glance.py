"""Glance: is there anything to rescue, to publish or to wake up for? One read, of an idle pool.

It may say yes where a look finds nothing to do; it never says no where there is something.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.states import State
from tasks_app.pool.tables import DISPATCH, GATE, NOW, PENDING, SCHEDULE

_OF_QUEUE = f"SELECT p.queue FROM {PENDING} p WHERE p.state = '{State.PENDING}'"


@dataclass(frozen=True, slots=True)
class Glance:
    """What a pool looks like from afar."""

    out: bool
    """A message is in the ledger."""
    expired: bool
    """A lease is over."""
    next_due: timedelta | None
    """Until the first row is to be looked at, below zero if it is; None: nothing waits."""
    next_fire_s: float | None = None
    """Until the first schedule is to be looked at, in seconds."""
    next_look_s: float | None = None
    """Until the first gate is to be looked at, in seconds."""

    def is_quiet(self, within: timedelta) -> bool:
        """Tell whether nobody has anything to do for so long."""
        near = self.next_due is not None and self.next_due <= within
        return not (self.out or self.expired or near)


# From queue to queue and from priority to priority by one probe of the index each.
_GLANCE = text(f"""
    WITH RECURSIVE waits(queue) AS (
        ({_OF_QUEUE} ORDER BY p.queue LIMIT 1)
        UNION ALL
        SELECT ({_OF_QUEUE} AND p.queue > waits.queue ORDER BY p.queue LIMIT 1)
        FROM waits WHERE waits.queue IS NOT NULL)
    SELECT EXISTS (SELECT FROM {DISPATCH}) AS out,
        EXISTS (SELECT FROM {PENDING} p
                WHERE p.state = '{State.RUNNING}' AND p.lease_until < {NOW}) AS expired,
        (SELECT min(first.scan_at) - {NOW}
         FROM waits CROSS JOIN generate_series(0, 9) AS r(priority)
         CROSS JOIN LATERAL (
            SELECT p.scan_at FROM {PENDING} p
            WHERE p.queue = waits.queue AND p.priority = r.priority
              AND p.state = '{State.PENDING}'
            ORDER BY p.scan_at, p.id LIMIT 1) AS first) AS next_due,
        CAST(EXTRACT(EPOCH FROM (SELECT min(s.look_at) FROM {SCHEDULE} s WHERE s.enabled) - {NOW})
            AS float) AS next_fire_s,
        CAST(EXTRACT(EPOCH FROM (SELECT min(t.look_at) FROM {GATE} t WHERE t.look_at IS NOT NULL)
            - {NOW}) AS float) AS next_look_s
""")


def glance(connection: Connection, *, now: datetime | None = None) -> Glance:
    """Look from afar."""
    row = connection.execute(_GLANCE, {"now": now}).one()
    return Glance(row.out, row.expired, row.next_due, row.next_fire_s, row.next_look_s)
