"""Cancel: lock first, then read. In one statement it would lose against a concurrent claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.operations import NO_AUTHOR, Author
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.fragments.move_rows import WAIT, WITH_ITS_DATE, move_out
from tasks_app.pool.fragments.transition_log import log_operator_action
from tasks_app.pool.statistics.parts import add_counts
from tasks_app.pool.tables import ALL, NOW, PENDING, Clock, admits, admits_by_id
from tasks_app.pool.task_groups import LOCKED, lock_groups
from tasks_app.pool.tasks.amend import wake_next_in_line


class Cancelled(StrEnum):
    CANCELLED = "cancelled"  # it was pending, and is in the completed pool now
    REQUESTED = "requested"  # it runs, for the last time: its run is interrupted
    RUNNING = "running"  # it goes on: only what waits was to be cancelled
    ALREADY_OVER = "already over"
    NOT_FOUND = "not found"


@dataclass(frozen=True, slots=True)
class CancelledMany:
    cancelled: int
    requested: int
    ids: tuple[int, ...] = field(default=(), compare=False)  # of both, lowest first


def _lock(which: str) -> TextClause:
    # groups first: otherwise this would wait for members that are ending
    groups = f"SELECT p.batch_id FROM {PENDING} p WHERE p.batch_id IS NOT NULL AND {which}"
    return text(f"""
    WITH {lock_groups(groups)}
    SELECT p.id, p.state, p.order_key, p.name, p.queue FROM {PENDING} p WHERE {which} AND {LOCKED}
    ORDER BY p.id {WAIT}""")


_LOCK_ONE = _lock("p.id = :id")
_LOCK_MANY = _lock("""(CAST(:name AS text) IS NULL OR p.name = :name)
    AND (CAST(:biz_key AS text) IS NULL OR p.biz_key = :biz_key)""")
_LOCK_THESE = _lock("p.id = ANY(CAST(:ids AS bigint[]))")
_MOVE = move_out(
    f"""
    SELECT {WITH_ITS_DATE}, '{State.CANCELLED}' AS goes_to,
        p.due_at AS back_at, p.failures, p.crashes, p.retry_level,
        NULL::jsonb AS result, NULL AS kind, NULL AS message, NULL AS traceback,
        NULL AS encrypted_message, NULL::bytea AS fingerprint,
        NULL::integer AS run_ms, '{Event.CANCEL}' AS event
    FROM {PENDING} p WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)}
    ORDER BY p.id {WAIT}
""",
    waits=True,
    origin=None,  # its lines say who wanted it
)
_REQUEST = text(f"""
    UPDATE {PENDING} p SET cancel_requested_at = coalesce(p.cancel_requested_at, {NOW}),
        kill_at = least(p.kill_at, {NOW} + CAST(:kill_after AS interval))
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits(Event.CANCEL)}
      AND p.state = '{State.RUNNING}'""")
_ELSEWHERE = text(f"SELECT state FROM {ALL} WHERE id = :id")


def cancel(
    connection: Connection,
    task_id: int,
    *,
    by: Author = NO_AUTHOR,
    kill_after: timedelta | None = None,
    only_waiting: bool = False,
    now: Clock = None,
) -> Cancelled:
    """Cancel one task; waits for its row. ``kill_after``: the process of its run may be killed."""
    locked = connection.execute(_LOCK_ONE, {"id": task_id}).all()
    if not locked:
        known = connection.execute(_ELSEWHERE, {"id": task_id}).first()
        return Cancelled.ALREADY_OVER if known else Cancelled.NOT_FOUND
    if only_waiting and locked[0].state == State.RUNNING:
        return Cancelled.RUNNING
    done = _cancel(connection, locked, by, now, kill_after)
    return Cancelled.CANCELLED if done.cancelled else Cancelled.REQUESTED


def cancel_many(
    connection: Connection,
    *,
    name: str | None,
    biz_key: str | None,
    by: Author = NO_AUTHOR,
    now: Clock = None,
) -> CancelledMany:
    """Cancel all pending and running tasks with this name and biz_key; None matches any."""
    locked = connection.execute(_LOCK_MANY, {"name": name, "biz_key": biz_key}).all()
    return _cancel(connection, locked, by, now)


def cancel_these(
    connection: Connection, ids: Sequence[int], *, by: Author = NO_AUTHOR, now: Clock = None
) -> CancelledMany:
    locked = connection.execute(_LOCK_THESE, {"ids": sorted(ids)}).all()
    return _cancel(connection, locked, by, now)


def _cancel(
    connection: Connection,
    locked: Any,
    by: Author,
    now: Clock,
    kill_after: timedelta | None = None,
) -> CancelledMany:
    waiting = [row for row in locked if row.state == State.PENDING]
    pending = [row.id for row in waiting]
    running = [row.id for row in locked if row.state == State.RUNNING]
    log_operator_action(connection, Event.CANCEL, pending, by, target=State.CANCELLED, now=now)
    log_operator_action(connection, Event.CANCEL, running, by, now=now)
    if pending:
        connection.execute(_MOVE(), {"ids": pending, "now": now})
        counted = [(row.name, row.queue, CountedOutcome.CANCELLED) for row in waiting]
        add_counts(connection, counted, now=now)
    wake_next_in_line(connection, {row.order_key for row in waiting if row.order_key}, now=now)
    if running:
        connection.execute(_REQUEST, {"ids": running, "kill_after": kill_after, "now": now})
    return CancelledMany(len(pending), len(running), tuple(row.id for row in locked))
