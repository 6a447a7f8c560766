"""Audit: one line for each action of an operator. Lines are added and read, never changed.

A bulk is opened by a line with its selection. Each of its steps writes one more line, in the step's
own transaction: so the lines always agree with the rows, and say where the next step begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.explain.facts import StandingHold
from tasks_app.domain.operations import BulkAction, SignedName
from tasks_app.domain.tasks.error_text import storable_text
from tasks_app.pool.tables import AUDIT

MOST_IDS = 500  # of a line; a larger single action keeps this many as a sample
LONGEST_WHO = 200
# In ``what`` of a step whose tasks become due one after the other: when the next one does.
NEXT_AT = "next_at"
# What a role writes; the database adds the rest.
TOLD = (
    *("who", "action", "what", "patch", "bulk", "until", "after"),
    *("number", "ids", "answers", "left_out"),
)


def note(
    connection: Connection,
    action: str,
    what: Mapping[str, Any] | None = None,
    *,
    who: str = "",
    number: int | None = None,
    ids: Sequence[int] = (),
    **more: Any,
) -> int:
    """Write a line and return its id; ``number`` is that of the ids unless given."""
    if isinstance(who, SignedName) and who.why:
        what = {"why": who.why, **(what or {})}
    values: dict[str, Any] = {
        "who": storable_text(who, LONGEST_WHO),
        "action": action,
        "what": what or {},
        "number": len(ids) if number is None else number,
        "ids": list(ids[:MOST_IDS]),
        **more,
    }
    json_of = {"what", "patch", "answers", "left_out"}
    given = ", ".join(f"CAST(:{n} AS jsonb)" if n in json_of else f":{n}" for n in values)
    query = text(f"INSERT INTO {AUDIT} ({', '.join(values)}) VALUES ({given}) RETURNING id")
    written = {n: json.dumps(v) if n in json_of and v is not None else v for n, v in values.items()}
    return int(connection.execute(query, written).scalar_one())


@dataclass(frozen=True, slots=True)
class AuditLine:
    id: int
    at: datetime
    role: str  # the role in the database
    who: str  # as the caller said
    action: str
    what: dict[str, Any]  # the selection, or another object of the action
    bulk: int | None  # the line that opened the bulk
    until: int | None  # opens a bulk: its highest id
    after: int | None  # of a bulk: the next step takes ids above it; None: it is over
    number: int  # how many rows changed
    ids: list[int]
    answers: dict[str, int]
    left_out: dict[str, list[int]]  # ids of unchanged tasks, by reason
    why: str | None = None  # as the caller said; of a step, when the bulk was opened


_REACHED = text(f"""
    SELECT after, CAST(what ->> '{NEXT_AT}' AS timestamptz) AS next_at FROM (
        SELECT id, after, what FROM {AUDIT} WHERE id = :token
        UNION ALL
        (SELECT id, after, what FROM {AUDIT} WHERE bulk = :token ORDER BY id DESC LIMIT 1)) lines
    ORDER BY id DESC LIMIT 1
""")
_WHY = f"""coalesce(l.what ->> 'why', (SELECT o.what ->> 'why' FROM {AUDIT} o WHERE o.id = l.bulk))
    AS why"""
_COLUMNS = ", ".join(_WHY if f.name == "why" else f"l.{f.name}" for f in fields(AuditLine))
NEWEST = 100_000  # lines in which a task or person is searched; no index has them


@dataclass(frozen=True, slots=True)
class OpenBulk:
    token: int
    at: datetime
    action: str
    what: dict[str, Any]
    patch: dict[str, Any] | None
    until: int
    after: int | None
    next_at: datetime | None = None  # when the next task becomes due, if they do one by one


def lock_bulk(connection: Connection, token: int) -> OpenBulk | None:
    """Lock a bulk until the transaction ends, and return it; None: there is none."""
    lock = text("SELECT pg_advisory_xact_lock(hashtext('task_audit'), CAST(:token AS integer))")
    connection.execute(lock, {"token": token % 2**31})
    query = text(f"SELECT id, at, action, what, patch, until FROM {AUDIT} WHERE id = :token")
    row = connection.execute(query, {"token": token}).first()
    if row is None or row.until is None:
        return None
    reached = connection.execute(_REACHED, {"token": token}).one()
    return OpenBulk(*row, *reached)


def find(
    connection: Connection, *, action: str | None = None, before: int | None = None, most: int = 20
) -> list[AuditLine]:
    """Return lines with ids below ``before``, newest first."""
    query = text(f"""
        SELECT {_COLUMNS} FROM {AUDIT} l
        WHERE (CAST(:action AS text) IS NULL OR action = :action)
          AND (CAST(:before AS bigint) IS NULL OR id < :before)
        ORDER BY id DESC LIMIT :most
    """)
    rows = connection.execute(query, {"action": action, "before": before, "most": most})
    return [AuditLine(*row) for row in rows]


def find_among_newest(
    connection: Connection,
    *,
    who: str | None = None,
    task_id: int | None = None,
    action: str | None = None,
    before: int | None = None,
    most: int = 20,
) -> list[AuditLine]:
    """Return lines by a part of ``who`` and by a task, of the NEWEST, newest first."""
    values = {"who": who, "task_id": task_id, "action": action, "before": before, "most": most}
    query = text(f"""
        SELECT {_COLUMNS} FROM (
            SELECT * FROM {AUDIT}
            WHERE CAST(:before AS bigint) IS NULL OR id < :before
            ORDER BY id DESC LIMIT {NEWEST}) AS l
        WHERE (CAST(:action AS text) IS NULL OR action = :action)
          AND (CAST(:who AS text) IS NULL OR strpos(lower(who), lower(:who)) > 0)
          AND (CAST(:task_id AS bigint) IS NULL OR :task_id = ANY(ids))
        ORDER BY id DESC LIMIT :most
    """)
    return [AuditLine(*row) for row in connection.execute(query, values)]


def last_hold(connection: Connection, task_id: int) -> StandingHold | None:
    """Return who held a task last, and why; None: none of the NEWEST lines says so."""
    query = text(f"""
        SELECT l.at, l.who, l.role, {_WHY}
        FROM (SELECT * FROM {AUDIT} ORDER BY id DESC LIMIT {NEWEST}) AS l
        WHERE action = '{BulkAction.HOLD}' AND :task_id = ANY(ids) ORDER BY id DESC LIMIT 1
    """)
    row = connection.execute(query, {"task_id": task_id}).first()
    return None if row is None else StandingHold(row.at, row.who or row.role, row.why)


def steps(connection: Connection, token: int) -> list[AuditLine]:
    """Return a line and the steps of its bulk, oldest first."""
    query = text(f"""
        SELECT {_COLUMNS} FROM {AUDIT} l WHERE id = :token OR bulk = :token ORDER BY id
    """)
    return [AuditLine(*row) for row in connection.execute(query, {"token": token})]
