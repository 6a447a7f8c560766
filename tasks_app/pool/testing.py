"""Let time pass for a pool: its instants are moved into the past, by as much as shall have passed.

How long ago something was, or how long it still takes, is all that most of the pool asks. Schedules
ask which day and hour it is: they are fired for the instants in between instead, and how much has
passed in all is kept for them, in a row of the leases, which an emptied pool and a rollback lose.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.pool.tables import BREAKER, GATE, KEY, LEASE, PAUSE, PENDING, SCHEDULE

_TRAVELLED = "tasks_app: travelled"
_OF_TASKS = (
    *("due_at", "scan_at", "created_at", "started_at", "expires_at"),
    *("cancel_requested_at", "lease_until", "outage_since", "held_due_at", "changed_at"),
)
_MOVED = {
    PENDING: _OF_TASKS,
    KEY: ("until",),
    PAUSE: ("since", "resume_at"),
    GATE: ("look_at", "filled_at"),
    BREAKER: ("since", "look_at", "let_at"),
}


def _moves(name: str, columns: tuple[str, ...], condition: str = "true") -> str:
    sets = ", ".join(f"{column} = {column} - CAST(:span AS interval)" for column in columns)
    return f"UPDATE {name} SET {sets} WHERE {condition}"


_SHIFT = [text(_moves(name, columns)) for name, columns in _MOVED.items()]
_SHIFT_FIRED = text(_moves(PENDING, _OF_TASKS, "created_at > statement_timestamp()"))
_ADD = text(f"""
    INSERT INTO {LEASE} AS l (name, holder, token, rank, notes)
    VALUES ('{_TRAVELLED}', 'tests', gen_random_uuid(), 0,
        jsonb_build_object('s', CAST(:s AS float8)))
    ON CONFLICT (name) DO UPDATE SET notes = jsonb_build_object(
        's', CAST(l.notes ->> 's' AS float8) + CAST(:s AS float8))
    RETURNING CAST(notes ->> 's' AS float8), statement_timestamp()
""")
_NEXT = text(f"""
    SELECT min(s.next_run_at) FROM {SCHEDULE} s
    WHERE s.enabled AND s.next_run_at <= :until
      AND (CAST(:after AS timestamptz) IS NULL OR s.next_run_at > :after)
""")


def shift(connection: Connection, span: timedelta) -> tuple[timedelta, datetime]:
    """Move all instants; return how much has passed in all, and what time it is really."""
    for statement in _SHIFT:
        connection.execute(statement, {"span": span})
    seconds, now = connection.execute(_ADD, {"s": span.total_seconds()}).one()
    return timedelta(seconds=seconds), now


def next_instant(
    connection: Connection, until: datetime, after: datetime | None = None
) -> datetime | None:
    """Return the first instant of any schedule up to ``until``, behind ``after``."""
    found: datetime | None = connection.execute(
        _NEXT, {"until": until, "after": after}
    ).scalar_one()
    return found


def shift_fired(connection: Connection, passed: timedelta) -> None:
    """Move the tasks that schedules made for instants to come."""
    connection.execute(_SHIFT_FIRED, {"span": passed})
