"""Wake: tell those next in line for resources to ask again. A hint: it may come to nobody.

Only whoever stands in line is told, after what frees the resources has committed: ``NOTIFY`` takes
a lock of the whole server until its transaction ends, so it is in none that writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.locks import LockMode
from tasks_app.pool.connection.listening import driver_of, is_pooled
from tasks_app.pool.locks import DEAD
from tasks_app.pool.tables import LOCK_HOLDER, LOCK_PART, NOW

CHANNEL = "tasks_app_locks"

_WAKE = text(f"""
    SELECT h.token, pg_notify('{CHANNEL}', CAST(h.token AS text))
    FROM {LOCK_HOLDER} h WHERE h.fence IS NULL AND h.lease_until > {NOW} AND h.id IN (
        SELECT p.holder_id FROM {LOCK_PART} p
        WHERE p.resource = ANY(CAST(:resources AS text[])) AND NOT EXISTS (
            SELECT FROM {LOCK_PART} q JOIN {LOCK_HOLDER} h ON h.id = q.holder_id
            WHERE q.resource = p.resource AND q.holder_id <> p.holder_id AND NOT {DEAD}
              AND (h.fence IS NOT NULL OR q.holder_id < p.holder_id)
              AND (q.mode <> p.mode OR q.mode = '{LockMode.EXCLUSIVE}'
                OR (q.mode = '{LockMode.COUNTED}' AND h.fence IS NULL))))
""")
_LISTEN = text(f"LISTEN {CHANNEL}")


def wake(
    connection: Connection, resources: Sequence[str], *, now: datetime | None = None
) -> list[Any]:
    """Notify the first in line for each of the resources, and all that get along with it.

    Of those who count only the first is told: one release makes room for one.
    """
    values = {"resources": list(resources), "now": now}
    return list(connection.execute(_WAKE, values).scalars())


def listen(connection: Connection) -> bool:
    """Hear of wake-ups on an AUTOCOMMIT connection of psycopg; False: it cannot."""
    if connection.dialect.driver != "psycopg" or is_pooled(connection):
        return False
    connection.execute(_LISTEN)
    return True


def woken(connection: Connection, for_s: float) -> Iterator[str]:
    """Yield the tokens that are told to ask again, for so long."""
    for notification in driver_of(connection).notifies(timeout=for_s):
        yield notification.payload
