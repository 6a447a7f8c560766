"""The pool from afar: which queues wait, and for what, by one probe of the index each."""

from __future__ import annotations

from tasks_app.domain.states import State
from tasks_app.pool.tables import PENDING

_OF_QUEUE = f"SELECT p.queue FROM {PENDING} p WHERE p.state = '{State.PENDING}'"
WAITS = f"""waits(queue) AS (
    ({_OF_QUEUE} ORDER BY p.queue LIMIT 1)
    UNION ALL
    SELECT ({_OF_QUEUE} AND p.queue > waits.queue ORDER BY p.queue LIMIT 1)
    FROM waits WHERE waits.queue IS NOT NULL)"""
"""A CTE, to follow WITH RECURSIVE: the queues that have PENDING rows, and a null at the end."""
FIRST_OF_WAITS = f"""waits CROSS JOIN generate_series(0, 9) AS r(priority)
    CROSS JOIN LATERAL (
        SELECT p.scan_at FROM {PENDING} p
        WHERE p.queue = waits.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
        ORDER BY p.scan_at, p.id LIMIT 1) AS first"""
"""What is to be looked at first, of each of them and of each priority."""
HAS_GATE = "(g.running_below IS NOT NULL OR g.waiting_below IS NOT NULL)"
"""The condition that the queue ``g`` has a gate."""
