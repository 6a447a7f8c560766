"""Which queues have PENDING rows, and how urgent: one probe of the index for each."""

from __future__ import annotations

from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import PENDING

_FIRST = f"SELECT p.queue, p.priority, p.scan_at FROM {PENDING} p WHERE p.state = '{State.PENDING}'"
_ORDER = "ORDER BY p.queue, p.priority, p.scan_at, p.id LIMIT 1"
WAITS = f"""waits(queue, priority, scan_at) AS (
    ({_FIRST} {_ORDER})
    UNION ALL
    SELECT next.* FROM waits CROSS JOIN LATERAL (
        {_FIRST} AND (p.queue, p.priority) > (waits.queue, waits.priority) {_ORDER}) AS next)"""
"""A CTE, behind WITH RECURSIVE: the first row of each queue and priority that has any."""
HAS_GATE = "(g.running_below IS NOT NULL OR g.waiting_below IS NOT NULL)"
"""The condition that the queue ``g`` has a gate."""
