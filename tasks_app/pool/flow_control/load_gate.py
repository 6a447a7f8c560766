"""Load gates: a queue stands still while others have much to do. The leader opens and shuts them.

A claim that counted what runs would cost more than its tasks, so it reads the last answer.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.fragments.conditions import runs
from tasks_app.pool.fragments.queue_probe import HAS_GATE, WAITS
from tasks_app.pool.tables import NOW, PENDING, QUEUE

# Queues that stand still themselves do not count among those that wait: two gates would each keep
# the other shut. No more running rows are read than shut the gate.
_LOOK = text(f"""
    WITH RECURSIVE {WAITS},
    oldest AS MATERIALIZED (
        SELECT waits.queue, min(waits.scan_at) AS since FROM waits
        WHERE {runs("waits.queue")} GROUP BY waits.queue),
    judged AS MATERIALIZED (
        SELECT g.queue, CASE
            WHEN CASE WHEN g.running_below IS NOT NULL THEN g.running_below <= (
                SELECT count(*) FROM (
                    SELECT FROM {PENDING} p
                    WHERE p.state = '{State.RUNNING}' AND p.queue <> g.queue
                    LIMIT g.running_below) AS busy) END THEN 'running'
            WHEN CASE WHEN g.waiting_below IS NOT NULL THEN g.waiting_below <= {NOW} - (
                SELECT min(o.since) FROM oldest o WHERE o.queue <> g.queue) END THEN 'waiting'
            END AS shut
        FROM {QUEUE} g WHERE {HAS_GATE})
    UPDATE {QUEUE} g SET shut = j.shut FROM judged j
    WHERE g.queue = j.queue AND g.shut IS DISTINCT FROM j.shut AND {HAS_GATE}
    RETURNING g.queue, g.shut
""")


def look_at_gates(connection: Connection, *, now: datetime | None = None) -> dict[str, str | None]:
    """Open and shut gates; return why each that changed is shut, or None."""
    return {row.queue: row.shut for row in connection.execute(_LOOK, {"now": now})}
