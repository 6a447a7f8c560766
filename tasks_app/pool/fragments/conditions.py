"""Which queues and names may not be published or claimed just now.

Judged by the database's clock, so that nothing need be written when a window ends. Claims ask once
for each statement, over tables of a few rows.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.waiting_reason import WaitingKind
from tasks_app.pool.fragments.parked import is_parked_as
from tasks_app.pool.tables import BREAKER, CALENDAR, EVERY_QUEUE, NOW, PAUSE, QUEUE, WINDOW

STOPS = f"(z.resume_at IS NULL OR z.resume_at > {NOW})"
"""The condition that the pause ``z`` holds."""

_HANDS = f"({NOW} AT TIME ZONE w.zone)"
_MIDNIGHT_BETWEEN = "CASE WHEN w.closes <= w.opens THEN interval '1 day' ELSE interval '0' END"


def _open_since(day: str) -> str:
    """Return the condition that the window ``w`` opened on this day, and has not closed."""
    return f"""(
        {_HANDS} >= {day} + w.opens AND {_HANDS} < {day} + w.closes + {_MIDNIGHT_BETWEEN}
        AND extract(isodow FROM {day}) = ANY(w.days)
        AND (w.calendar IS NULL OR NOT {day} = ANY(
            CAST((SELECT k.days FROM {CALENDAR} k WHERE k.name = w.calendar) AS date[]))))"""


_TODAY = f"CAST({_HANDS} AS date)"
OPEN = f"({_open_since(_TODAY)} OR {_open_since(f'({_TODAY} - 1)')})"
"""The condition that the window ``w`` is open; two clocks that show the same are the same."""

_STANDS_STILL = f"""
    SELECT z.queue FROM {PAUSE} z WHERE {STOPS}
    UNION ALL SELECT g.queue FROM {QUEUE} g WHERE g.shut IS NOT NULL
    UNION ALL SELECT w.queue FROM {WINDOW} w GROUP BY w.queue HAVING NOT bool_or({OPEN})
"""
_READ = text(f"SELECT DISTINCT s.queue FROM ({_STANDS_STILL}) AS s")


def is_free() -> str:
    """Return the condition that no breaker holds the row ``p``; names are read once a statement."""
    held = f"ARRAY(SELECT unnest(b.names) FROM {BREAKER} b WHERE b.state <> 'closed')"
    return f"(NOT p.name = ANY({held}) OR {is_parked_as(WaitingKind.LET_THROUGH)})"


def runs(queue: str) -> str:
    """Return the condition that the queue does not stand still; read once for each statement."""
    return f"NOT ARRAY[{queue}, '{EVERY_QUEUE}'] && ARRAY({_STANDS_STILL})"


ALL_RUN = f"""NOT EXISTS (SELECT FROM {PAUSE} z WHERE {STOPS})
    AND NOT EXISTS (SELECT FROM {QUEUE} g WHERE g.shut IS NOT NULL)
    AND NOT EXISTS (SELECT FROM {WINDOW})
    AND NOT EXISTS (SELECT FROM {BREAKER} b WHERE b.state <> 'closed')"""
"""The condition that no queue and no name stands still, or does at other hours."""


LOOK_EVERY_S = 1.0
"""How often a long run asks whether its queue stands still."""


def stands_still(connection: Connection, queue: str) -> bool:
    """Whether nothing of the queue may be claimed just now."""
    return not standing_still(connection).isdisjoint({EVERY_QUEUE, queue})


def standing_still(connection: Connection, *, now: datetime | None = None) -> set[str]:
    """Return the queues that stand still; ``*`` among them: every one."""
    return set(connection.execute(_READ, {"now": now}).scalars())
