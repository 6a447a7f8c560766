"""Events: sent, waited for and read. What follows when one is sent is in ``events.sql``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.events import AwaitedEvent, EventNeed, StoredEvent
from tasks_app.pool.tables import (
    COMPLETED,
    ENTER_EVENT_WAITS,
    ERROR,
    EVENT,
    EVENT_WAIT,
    FLOW_STEP,
    LOCK_EVENTS,
    NOW,
    PENDING,
    SEND_EVENT,
    Clock,
    quoted,
)
from tasks_app.pool.task_groups import GOOD

_LOCK = text(f"SELECT {LOCK_EVENTS}(CAST(:keys AS text[]))")
_ENTER = text(f"""
    SELECT {ENTER_EVENT_WAITS}(CAST(:tasks AS bigint[]), CAST(:keys AS text[]),
        CAST(:timeouts AS interval[]))""")
_SEND = text(f"""
    SELECT {SEND_EVENT}(:key, CAST(:payload AS jsonb), CAST(:by AS text), CAST(:why AS text))""")


def lock(connection: Connection, keys: Collection[str]) -> None:
    """Lock events for tasks that begin to wait for them: nobody sends one meanwhile."""
    connection.execute(_LOCK, {"keys": list(keys)})


def enter_waits(connection: Connection, waits: Sequence[tuple[int, EventNeed]]) -> None:
    """Enter which events, locked ones, tasks wait for that were created in this transaction."""
    values = {
        "tasks": [task_id for task_id, _ in waits],
        "keys": [need.key for _, need in waits],
        "timeouts": [need.timeout or timedelta(0) for _, need in waits],  # see _enter of flows
    }
    connection.execute(_ENTER, values)


def send(connection: Connection, key: str, payload: str, by: str = "", why: str = "") -> bool:
    """Send an event with its payload, JSON text; False: it was sent before."""
    values = {"key": key, "payload": payload, "by": by, "why": why}
    return bool(connection.execute(_SEND, values).scalar())


class Awaited(NamedTuple):
    """What a run finds that waits for an event."""

    payload: Any  # None: it was not sent in time
    is_open: bool  # it still waits


_AWAIT = text(f"""
    INSERT INTO {EVENT_WAIT} AS w (task_id, key, timeout, until, not_before)
    VALUES (:id, :key, CAST(:timeout AS interval),
        {NOW} + CAST(:timeout AS interval), {NOW})
    ON CONFLICT (task_id, key) DO UPDATE SET timeout = excluded.timeout,
        until = CASE WHEN excluded.timeout IS NOT NULL THEN coalesce(w.until, excluded.until) END,
        not_before = coalesce(w.not_before, excluded.not_before)
    RETURNING w.until IS NULL OR w.until > {NOW} AS is_open""")


def await_one(
    connection: Connection, task_id: int, need: EventNeed, *, now: Clock = None
) -> Awaited:
    """Let a running task wait for an event; its time-out begins with the first of such calls."""
    values = {"id": task_id, "key": need.key, "timeout": need.timeout, "now": now}
    is_open = connection.execute(_AWAIT, values).scalar_one()
    if is_open:  # else who sends it need not wait for the end of the run
        lock(connection, [need.key])
    payload = read_payloads(connection, task_id)[need.key]
    return Awaited(payload, is_open and payload is None)


# Events and tasks are found one by one: the plan of a join would depend on guessed sizes. Rows are
# sorted here: an ORDER BY may read an index of all waits.
_OF_WAIT = f"""
    LEFT JOIN LATERAL (
        SELECT e.payload, e.sent_at FROM {EVENT} e WHERE e.key = w.key OFFSET 0) AS e ON true"""
_WAITS = text(f"""
    SELECT w.task_id, w.key, w.timeout, w.until, e.sent_at,
        e.sent_at IS NULL AND coalesce(w.until > {NOW}, true) AS is_open
    FROM {EVENT_WAIT} w {_OF_WAIT}
    WHERE w.task_id = ANY(CAST(:ids AS bigint[]))""")
_READ = text(f"""
    SELECT w.key, e.payload, coalesce(e.sent_at <= coalesce(w.until, e.sent_at), false) AS in_time
    FROM {EVENT_WAIT} w {_OF_WAIT} WHERE w.task_id = :id""")


def waits_of(
    connection: Connection, task_ids: Sequence[int], *, now: Clock = None
) -> dict[int, tuple[AwaitedEvent, ...]]:
    """Return what each of these tasks waits for, or has waited for."""
    found: dict[int, tuple[AwaitedEvent, ...]] = {}
    for row in _sorted(connection.execute(_WAITS, {"ids": list(task_ids), "now": now})):
        found[row.task_id] = (*found.get(row.task_id, ()), AwaitedEvent(*row[1:]))
    return found


def _sorted(rows: Iterable[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: row.key)


def read_payloads(connection: Connection, task_id: int) -> dict[str, Any]:
    """Return payloads of the events of a task, by key; None: it was not sent in time."""
    rows = _sorted(connection.execute(_READ, {"id": task_id}))
    return {row.key: row.payload if row.in_time else None for row in rows}


# Which tasks wait now: a step that has a time-out and is due, or runs, does not.
_WAITING = f"""
    CROSS JOIN LATERAL (
        SELECT count(*) AS waiting, min(w.since) AS since FROM {EVENT_WAIT} w CROSS JOIN LATERAL (
            SELECT FROM {PENDING} p WHERE p.id = w.task_id OFFSET 0) AS p
        WHERE w.key = e.key AND e.sent_at IS NULL AND coalesce(w.until > {NOW}, true)
        OFFSET 0) AS w"""
_STORED = f"""
    SELECT e.key, e.payload, e.sent_at, e.sent_by, e.why, w.waiting, w.since
    FROM {EVENT} e {_WAITING}"""
_FIND = text(f"""{_STORED}
    WHERE (CAST(:key AS text) IS NULL OR e.key = :key)
      AND CASE WHEN :waiting THEN e.sent_at IS NULL ELSE true END
      AND (w.waiting > 0 OR e.sent_at IS NOT NULL)
    ORDER BY e.sent_at IS NOT NULL, w.since, e.sent_at DESC LIMIT :most""")
_BY_KEY = text(f"{_STORED} WHERE e.key = ANY(CAST(:keys AS text[])) ORDER BY e.key")
MOST_COUNTED = 10_000
_COUNT = text(f"""
    SELECT coalesce(sum(w.waiting), 0) AS number, min(w.since) AS since, {NOW} AS now
    FROM (SELECT e.key, e.sent_at FROM {EVENT} e WHERE e.sent_at IS NULL LIMIT :most) AS e
    {_WAITING}""")


def find(
    connection: Connection,
    most: int = 100,
    *,
    key: str | None = None,
    waiting: bool = False,
    now: Clock = None,
) -> list[StoredEvent]:
    """Return events that tasks wait for, the longest wait first; then the sent ones, newest first.

    ``waiting``: only those that tasks wait for.
    """
    values = {"key": key, "waiting": waiting, "most": most, "now": now}
    return [StoredEvent(*row) for row in connection.execute(_FIND, values)]


def find_by_key(
    connection: Connection, keys: Collection[str], *, now: Clock = None
) -> list[StoredEvent]:
    """Return events with these keys, sent or not, by key."""
    if not keys:
        return []
    rows = connection.execute(_BY_KEY, {"keys": list(keys), "now": now})
    return [StoredEvent(*row) for row in rows]


class EventWaits(NamedTuple):
    number: int  # of up to MOST_COUNTED events
    oldest: timedelta | None  # how long ago the first of them began


def count_waits(connection: Connection, *, now: Clock = None) -> EventWaits:
    row = connection.execute(_COUNT, {"most": MOST_COUNTED, "now": now}).one()
    since: datetime | None = row.since
    return EventWaits(int(row.number), None if since is None else row.now - since)


# A wait stays while its task may run again, or is a step of a flow that is not forgotten.
_PRUNE_WAITS = text(f"""
    DELETE FROM {EVENT_WAIT} g WHERE (g.task_id, g.key) IN (
        SELECT s.task_id, s.key FROM {EVENT_WAIT} s
        WHERE s.since < {NOW} - interval '1h'
          AND (SELECT true FROM {PENDING} p WHERE p.id = s.task_id) IS NULL
          AND (SELECT true FROM {FLOW_STEP} f WHERE f.task_id = s.task_id) IS NULL
          AND (SELECT true FROM {ERROR} e WHERE e.id = s.task_id) IS NULL
          AND (SELECT true FROM {COMPLETED} c
               WHERE c.id = s.task_id AND c.finished_at >= s.since
                 AND c.state NOT IN ({quoted(*GOOD)}) LIMIT 1) IS NULL
        ORDER BY s.task_id, s.key LIMIT :most FOR UPDATE OF s SKIP LOCKED)
    RETURNING g.task_id""")
_OLD = text(f"""
    SELECT e.key FROM {EVENT} e
    WHERE (e.sent_at IS NULL OR e.sent_at < {NOW} - CAST(:older AS interval))
      AND (SELECT true FROM {EVENT_WAIT} w WHERE w.key = e.key LIMIT 1) IS NULL
    ORDER BY e.key LIMIT :most FOR UPDATE OF e SKIP LOCKED""")
# Another statement: who began to wait before the row was locked is seen.
_PRUNE = text(f"""
    DELETE FROM {EVENT} e WHERE e.key = ANY(CAST(:keys AS text[]))
      AND (SELECT true FROM {EVENT_WAIT} w WHERE w.key = e.key LIMIT 1) IS NULL""")


def prune(connection: Connection, older: timedelta, most: int, *, now: Clock = None) -> int:
    """Remove waits of tasks that are gone, and events that none waits for; return how many."""
    # Events that were sent stay for as long as ``older``, and while a wait of a task stays.
    values = {"older": older, "most": most, "now": now}
    waits = len(connection.execute(_PRUNE_WAITS, values).all())
    keys = connection.execute(_OLD, values).scalars().all()
    connection.execute(_PRUNE, {"keys": list(keys)})
    return max(waits, len(keys))
