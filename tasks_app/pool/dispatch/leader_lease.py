"""Leases of duties: which process scans or maintains, until when, by the database's clock.

Leadership only saves work. Two leaders at once do the work twice and no harm, as a task is claimed
once. So a lease may be short, and no process waits for one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.pool.connection.execute import Rows, Statement, fetch, to_psycopg_sql
from tasks_app.pool.tables import BECAUSE, DEPTHS, LEASE, NOW, REFUSED, Clock

SCAN, MAINTAIN = "scan", "maintain"


class Rank(IntEnum):
    """A holder of higher rank takes the lease without waiting for its end."""

    WORK = 0  # ``tasks-app work``: it publishes nothing, so it holds no lease, only writes a mark
    STANDBY = 1  # a worker that stands in
    BEAT = 2  # beat, or another scheduler


@dataclass(frozen=True, slots=True)
class Lease:
    holder: str
    token: UUID
    rank: int
    free: bool  # released, or expired
    idle: timedelta | None  # since the duty was last done; None: never
    left: timedelta  # until it expires; 0 if it is free
    notes: dict[str, Any]  # from one holder to the next

    @property
    def refused_since(self) -> datetime | None:
        """Since when the broker refuses the leader's messages; None: it accepts them."""
        since = self.notes.get(REFUSED)
        return datetime.fromisoformat(since) if isinstance(since, str) else None

    @property
    def refused_because(self) -> str:
        why = self.notes.get(BECAUSE)
        return why if isinstance(why, str) else ""

    @property
    def depths(self) -> dict[str, int]:
        """How many messages the leader last saw in the broker, by queue; only queues with some."""
        depths = self.notes.get(DEPTHS)
        return depths if isinstance(depths, dict) else {}

    def open_to(self, token: UUID, rank: int) -> bool:
        """Whether :func:`hold` would succeed now."""
        return self.free or self.token == token or self.rank < rank


_FREE = f"coalesce(l.held_until <= {NOW}, true)"
# in the order of Lease
_COLUMNS = f"""
    l.holder, l.token, l.rank, {_FREE} AS free,
    {NOW} - l.done_at AS idle, greatest(l.held_until - {NOW}, interval '0') AS left,
    CAST(l.notes AS text) AS notes
"""
# Runs each second of an idle pool: SQLAlchemy would take longer than the server.
_READ = to_psycopg_sql(f"SELECT {_COLUMNS} FROM {LEASE} l WHERE l.name = :name")


def read_lease(connection: Connection, name: str, *, now: Clock = None) -> Lease | None:
    """Return the duty's lease; None: it was never held."""
    return _lease(fetch(connection, Statement(_READ, {"name": name, "now": now})))


def _lease(rows: Rows) -> Lease | None:
    if not rows:
        return None
    holder, token, rank, free, idle, left, notes = rows[0]
    return Lease(holder, token, rank, free, idle, left, json.loads(notes))


_HOLD = to_psycopg_sql(f"""
    INSERT INTO {LEASE} AS l (name, holder, token, rank, held_since, held_until)
    VALUES (:name, :holder, :token, :rank, {NOW}, {NOW} + CAST(:ttl AS interval))
    ON CONFLICT (name) DO UPDATE SET
        holder = EXCLUDED.holder, token = EXCLUDED.token, rank = EXCLUDED.rank,
        held_since = CASE WHEN l.token = EXCLUDED.token THEN l.held_since
                          ELSE EXCLUDED.held_since END,
        held_until = EXCLUDED.held_until
    WHERE l.token = EXCLUDED.token OR l.rank < EXCLUDED.rank OR {_FREE}
    RETURNING {_COLUMNS}""")


def acquire_lease(
    connection: Connection,
    name: str,
    *,
    holder: str,
    token: UUID,
    rank: int,
    ttl: timedelta,
    now: Clock = None,
) -> Lease | None:
    """Acquire or renew the lease; None: another process holds it."""
    # One statement: it waits for a concurrent writer of the row, and decides by what that wrote.
    values = {"holder": holder, "token": token, "rank": int(rank), "ttl": ttl}
    return _lease(fetch(connection, Statement(_HOLD, {"name": name, **values, "now": now})))


_RELEASE = text(f"UPDATE {LEASE} SET held_until = NULL WHERE name = :name AND token = :token")


def release_lease(connection: Connection, name: str, token: UUID) -> None:
    connection.execute(_RELEASE, {"name": name, "token": token})


_DONE = to_psycopg_sql(f"""
    UPDATE {LEASE} l SET done_at = {NOW}, notes = notes || CAST(:notes AS jsonb), held_until = CASE
        WHEN l.token = :token AND NOT {_FREE} THEN {NOW} + CAST(:ttl AS interval)
        ELSE l.held_until END
    WHERE l.name = :name RETURNING l.token = :token AND NOT {_FREE}""")


def record_duty(
    connection: Connection,
    name: str,
    token: UUID,
    ttl: timedelta,
    depths: Mapping[str, int] | None = None,
    *,
    now: Clock = None,
) -> bool:
    """Record that the duty was done just now, by any process; return whether this one holds it."""
    # This renews the lease, so that a frequent duty costs one write each time. ``depths``: how
    # many messages were in the broker, by queue; None: unknown.
    notes = json.dumps({} if depths is None else {DEPTHS: depths})
    values = {"name": name, "token": token, "ttl": ttl, "notes": notes, "now": now}
    return any(renewed for (renewed,) in fetch(connection, Statement(_DONE, values)))


_MARK = text(f"""
    INSERT INTO {LEASE} AS l (name, holder, token, rank, done_at)
    VALUES (:name, :holder, gen_random_uuid(), {Rank.WORK:d}, {NOW})
    ON CONFLICT (name) DO UPDATE SET holder = EXCLUDED.holder, rank = EXCLUDED.rank,
        held_until = NULL, done_at = EXCLUDED.done_at
    WHERE {_FREE}""")


def record_duty_without_lease(
    connection: Connection, name: str, holder: str, *, now: Clock = None
) -> None:
    """Record that this process does the duty without a lease, unless the lease is held."""
    connection.execute(_MARK, {"name": name, "holder": holder, "now": now})


_NOTE = text(f"""
    UPDATE {LEASE} SET notes = notes || CAST(:notes AS jsonb)
    WHERE name = :name AND token = :token""")


def add_notes(connection: Connection, name: str, token: UUID, notes: Mapping[str, str]) -> bool:
    """Add notes for the next holder; False: the lease is lost."""
    values = {"name": name, "token": token, "notes": json.dumps(notes)}
    return connection.execute(_NOTE, values).rowcount == 1


_REFUSED = text(f"""
    UPDATE {LEASE} SET notes = jsonb_build_object(CAST(:note AS text), {NOW}) || notes
        || jsonb_build_object('{BECAUSE}', CAST(:why AS text))
    WHERE name = :name RETURNING notes ->> CAST(:note AS text)""")
_TAKEN = text(f"UPDATE {LEASE} SET notes = notes - CAST(:notes AS text[]) WHERE name = :name")


def record_refusal(connection: Connection, name: str, why: str, *, now: Clock = None) -> str | None:
    """Record that the broker refuses messages, and why; return since when, under any leader."""
    values = {"name": name, "note": REFUSED, "why": why, "now": now}
    return connection.execute(_REFUSED, values).scalar()


def clear_refusal(connection: Connection, name: str) -> None:
    connection.execute(_TAKEN, {"name": name, "notes": [REFUSED, BECAUSE]})


_FOREIGN = "tasks_app: strangers"
_COUNT_FOREIGN = text(f"""
    UPDATE {LEASE} SET notes = notes || jsonb_build_object(CAST(:note AS text), jsonb_build_object(
        'at', {NOW}, 'number', :number
            + coalesce(CAST(notes -> CAST(:note AS text) ->> 'number' AS bigint), 0)))
    WHERE name = :name""")
_FOREIGN_SINCE = text(f"""
    SELECT CAST(s.note ->> 'number' AS bigint), CAST(s.note ->> 'at' AS timestamptz)
    FROM (SELECT notes -> CAST(:note AS text) AS note FROM {LEASE} WHERE name = :name) s
    WHERE CAST(s.note ->> 'at' AS timestamptz) > {NOW} - CAST(:within AS interval)""")


def count_foreign_messages(
    connection: Connection, name: str, number: int, *, now: Clock = None
) -> None:
    values = {"name": name, "note": _FOREIGN, "number": number, "now": now}
    connection.execute(_COUNT_FOREIGN, values)


def recent_foreign_messages(
    connection: Connection, name: str, within: timedelta
) -> tuple[int, datetime] | None:
    """Return the number of messages of other pools, and the time of the last; None: none lately."""
    values = {"name": name, "note": _FOREIGN, "within": within, "now": None}
    row = connection.execute(_FOREIGN_SINCE, values).first()
    return None if row is None else (row[0], row[1])
