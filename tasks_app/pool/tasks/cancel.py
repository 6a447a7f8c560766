"""Cancel: lock first, then look. As one clever statement it loses against a concurrent claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.operations import NOBODY, Author
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.fragments.move_rows import WAIT, WITH_ITS_DATE, move_out
from tasks_app.pool.fragments.transition_log import log_operator_action
from tasks_app.pool.statistics.parts import add_counts
from tasks_app.pool.tables import ALL, NOW, PENDING, admits, admits_by_id
from tasks_app.pool.task_groups import LOCKED, lock_groups
from tasks_app.pool.tasks.amend import wake_next_in_line


class Cancelled(StrEnum):
    """What a cancel did."""

    CANCELLED = "cancelled"  # it was pending and lies in the completed pool now
    REQUESTED = "requested"  # it runs; it was told, and will not run again
    ALREADY_OVER = "already over"
    NOT_FOUND = "not found"


@dataclass(frozen=True, slots=True)
class CancelledMany:
    """How many tasks met which answer."""

    cancelled: int
    requested: int
    ids: tuple[int, ...] = field(default=(), compare=False)  # of both, lowest first


def _lock(which: str) -> TextClause:
    """Groups are locked first: else a member that ends just now would have to be waited for."""
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
_TELL = text(f"""
    UPDATE {PENDING} p SET cancel_requested_at = coalesce(p.cancel_requested_at, {NOW})
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits(Event.CANCEL)}
      AND p.state = '{State.RUNNING}'""")
_ELSEWHERE = text(f"SELECT state FROM {ALL} WHERE id = :id")


def cancel(
    connection: Connection, task_id: int, *, by: Author = NOBODY, now: datetime | None = None
) -> Cancelled:
    """Cancel one task, wherever it is; waits for its row."""
    locked = connection.execute(_LOCK_ONE, {"id": task_id}).all()
    if not locked:
        known = connection.execute(_ELSEWHERE, {"id": task_id}).first()
        return Cancelled.ALREADY_OVER if known else Cancelled.NOT_FOUND
    done = _carry_out(connection, locked, by, now)
    return Cancelled.CANCELLED if done.cancelled else Cancelled.REQUESTED


def cancel_many(
    connection: Connection,
    *,
    name: str | None,
    biz_key: str | None,
    by: Author = NOBODY,
    now: datetime | None = None,
) -> CancelledMany:
    """Cancel all pending and running tasks with this name and biz_key; None matches any."""
    locked = connection.execute(_LOCK_MANY, {"name": name, "biz_key": biz_key}).all()
    return _carry_out(connection, locked, by, now)


def cancel_these(
    connection: Connection, ids: Sequence[int], *, by: Author = NOBODY, now: datetime | None = None
) -> CancelledMany:
    locked = connection.execute(_LOCK_THESE, {"ids": sorted(ids)}).all()
    return _carry_out(connection, locked, by, now)


def _carry_out(
    connection: Connection, locked: Any, by: Author, now: datetime | None
) -> CancelledMany:
    pending = [row.id for row in locked if row.state == State.PENDING]
    running = [row.id for row in locked if row.state == State.RUNNING]
    log_operator_action(connection, Event.CANCEL, pending, by, target=State.CANCELLED, now=now)
    log_operator_action(connection, Event.CANCEL, running, by, now=now)
    if pending:
        connection.execute(_MOVE(), {"ids": pending, "now": now})
        ended = [row for row in locked if row.state == State.PENDING]
        add_counts(
            connection, [(r.name, r.queue, CountedOutcome.CANCELLED) for r in ended], now=now
        )
    keys = {row.order_key for row in locked if row.order_key and row.state == State.PENDING}
    wake_next_in_line(connection, keys, now=now)
    if running:
        connection.execute(_TELL, {"ids": running, "now": now})
    return CancelledMany(len(pending), len(running), tuple(row.id for row in locked))
