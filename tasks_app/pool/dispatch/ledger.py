"""The ledger: one row for each message that we believe to be in the broker or with a child.

The row hides the message's ids from the scan, so dispatch writes nothing to the hot table. A row
that outlives its time is published again under the same id, after twice the wait each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any
from zlib import crc32

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.fragments.fences import array
from tasks_app.pool.tables import DISPATCH, NOW, PENDING, SCHEMA, admits_by_id

LONGEST_WAIT = timedelta(minutes=10)
SOONER = 10
"""A message that the broker does not have, when asked, is published again this many times sooner
than one that may still be in its queue."""
_SCANNER = 7_246_101_957_004_331_001 + crc32((SCHEMA or "").encode())
"""Key of the advisory lock that keeps two scanners of a pool apart. It saves work; no promise
depends on it."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One message as the ledger knows it."""

    id: int
    queue: str
    ids: tuple[int, ...]
    created_at: datetime


_COLUMNS = "id, queue, ids, created_at"
_LOCK = text("SELECT pg_try_advisory_xact_lock(:key)")
_READ = text(f"SELECT {_COLUMNS} FROM {DISPATCH} ORDER BY id")
_ADD = text(f"""
    INSERT INTO {DISPATCH} (queue, ids, created_at, publish_at)
    SELECT m.queue, (CAST(:ids AS bigint[]))[m.first : m.last], {NOW},
        {NOW} + CAST(:wait AS interval)
    FROM unnest(CAST(:queues AS text[]), CAST(:firsts AS int[]), CAST(:lasts AS int[]))
        WITH ORDINALITY AS m(queue, first, last, number)
    ORDER BY m.number RETURNING id, created_at
""")
_FINISH = text(f"""
    DELETE FROM {DISPATCH} d USING (SELECT set_config('synchronous_commit', 'off', true)) AS unsure
    WHERE d.id = ANY(CAST(:ids AS bigint[]))
""")
_TAKE_BACK = text(f"DELETE FROM {DISPATCH} WHERE id = ANY(:ids) RETURNING queue, ids")
_UNTAKEN = text(f"""
    SELECT EXISTS (
        SELECT FROM {DISPATCH} d
        WHERE d.queue = ANY(CAST(:queues AS text[])) AND d.publishes > 1
          AND d.created_at < {NOW} - CAST(:older AS interval)
          AND EXISTS (
            SELECT FROM {PENDING} p
            WHERE p.id = ANY(d.ids) AND {admits_by_id(Event.CLAIM)}
              AND p.scan_at <= d.created_at AND p.name = ANY(CAST(:names AS text[]))))
""")


def _again(which: str) -> TextClause:
    return text(f"""
    WITH late AS MATERIALIZED (
        SELECT d.id FROM {DISPATCH} d
        WHERE {which} AND d.queue = ANY(CAST(:queues AS text[]))
        ORDER BY d.id LIMIT :most FOR UPDATE SKIP LOCKED)
    UPDATE {DISPATCH} d
    SET publishes = d.publishes + 1, publish_at = {NOW} + {_wait("d.publishes")}
    FROM late WHERE d.id = late.id RETURNING d.id, d.queue, d.ids, d.created_at
    """)


def _wait(publishes: str) -> str:
    return f"""least(CAST(:wait AS interval) * 2 ^ least({publishes}, 20),
                               CAST(:longest AS interval))"""


# Published a while ago, and its first task, with which every child begins, is untouched.
_UNTOUCHED = f"""d.publish_at - {_wait("d.publishes - 1")} * {1 - 1 / SOONER} <= {NOW}
          AND EXISTS (SELECT FROM {PENDING} p WHERE p.id = d.ids[1]
                      AND p.state = '{State.PENDING}' AND p.scan_at <= d.created_at)"""
_OVERDUE, _LOST = _again(f"d.publish_at <= {NOW}"), _again(_UNTOUCHED)
_STALLED = text(f"SELECT DISTINCT queue FROM {DISPATCH} d WHERE {_UNTOUCHED} ORDER BY queue")


def scanner_lock(connection: Connection) -> bool:
    """Become the only scanner until this transaction ends; False if somebody else scans."""
    return bool(connection.execute(_LOCK, {"key": _SCANNER}).scalar())


def read(connection: Connection) -> list[Dispatch]:
    """Return all messages that are out, oldest first."""
    return list(map(_dispatch, connection.execute(_READ)))


def add(
    connection: Connection,
    queue: str,
    ids: Sequence[int],
    wait: timedelta,
    *,
    now: datetime | None = None,
) -> Dispatch:
    """Enter a message; COMMIT before it is published. It is overdue after ``wait``."""
    return add_all(connection, [(queue, ids)], wait, now=now)[0]


def add_all(
    connection: Connection,
    messages: Sequence[tuple[str, Sequence[int]]],
    wait: timedelta,
    *,
    now: datetime | None = None,
) -> list[Dispatch]:
    """Enter messages, queue and ids of each, in one statement."""
    if not messages:
        return []
    lasts = list(accumulate(len(ids) for _, ids in messages))
    values = {
        "queues": [queue for queue, _ in messages],
        "ids": array(int(task_id) for _, ids in messages for task_id in ids),
        "firsts": [1, *(last + 1 for last in lasts[:-1])],
        "lasts": lasts,
        "wait": wait,
        "now": now,
    }
    rows = connection.execute(_ADD, values)
    return [
        Dispatch(row.id, queue, tuple(ids), row.created_at)
        for row, (queue, ids) in zip(rows, messages, strict=True)
    ]


def finish(connection: Connection, *dispatch_ids: int) -> None:
    """Forget messages: finished, given back, never published, or their child was reaped.

    The transaction's COMMIT does not wait for the disk: a message that a crash of the database
    brings back is published again, and finds nothing to claim.
    """
    connection.execute(_FINISH, {"ids": list(dispatch_ids)})


def take_back(connection: Connection, dispatch_ids: Sequence[int]) -> dict[str, list[int]]:
    """Forget messages like :func:`finish`; return what they held, by queue."""
    held: dict[str, list[int]] = {}
    if dispatch_ids:
        for queue, ids in connection.execute(_TAKE_BACK, {"ids": list(dispatch_ids)}):
            held.setdefault(queue, []).extend(ids)
    return held


def untaken(
    connection: Connection,
    queues: Sequence[str],
    names: Sequence[str],
    older: timedelta,
    *,
    now: datetime | None = None,
) -> bool:
    """Tell whether a message of these queues was published twice and its tasks still wait.

    A child that was idle all that time would have received it if its worker listened to the broker.
    """
    values = {"queues": list(queues), "names": list(names), "older": older, "now": now}
    return bool(connection.execute(_UNTAKEN, values).scalar())


def overdue(
    connection: Connection,
    queues: Sequence[str],
    wait: timedelta,
    *,
    lost: bool = False,
    most: int = 100,
    now: datetime | None = None,
) -> list[Dispatch]:
    """Return messages to publish again, and put off their next time; COMMIT before publishing.

    With ``lost`` the queues are empty in the broker: what nobody has begun with comes sooner.
    """
    values = {
        "queues": list(queues),
        "wait": wait,
        "longest": LONGEST_WAIT,
        "most": most,
        "now": now,
    }
    return list(map(_dispatch, connection.execute(_LOST if lost else _OVERDUE, values)))


def stalled(connection: Connection, wait: timedelta, *, now: datetime | None = None) -> list[str]:
    """Return the queues with messages that nobody has begun with for a while.

    They wait in the broker, or behind a busy child; or the broker has lost them.
    """
    values = {"wait": wait, "longest": LONGEST_WAIT, "now": now}
    return list(connection.execute(_STALLED, values).scalars())


def _dispatch(row: Any) -> Dispatch:
    return Dispatch(row.id, row.queue, tuple(row.ids), row.created_at)
