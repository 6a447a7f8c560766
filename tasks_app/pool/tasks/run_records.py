"""Checkpoint: what a run keeps for the next attempt, written in the transaction of its effects."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import State
from tasks_app.pool.task_groups import GOOD
from tasks_app.pool.tables import COMPLETED, ERROR, NOW, PENDING, PROGRESS, quoted


class Note(NamedTuple):
    """What to keep."""

    checkpoint: str | None
    """JSON text; None: none."""
    changed: bool
    """False: the checkpoint stays as it is."""
    fraction: float | None
    note: str | None


class SavedProgress(NamedTuple):
    """What is kept of a task."""

    checkpoint: dict[str, Any] | None
    fraction: float | None
    note: str | None
    at: datetime


_KEEP = text(f"""
    WITH held AS MATERIALIZED (
        SELECT p.id, p.cancel_requested_at FROM {PENDING} p
        WHERE p.id = :id AND p.attempt = :attempt AND p.lease_token = :token
          AND p.state = '{State.RUNNING}'
        FOR NO KEY UPDATE OF p),
    kept AS (
        INSERT INTO {PROGRESS} AS g (task_id, checkpoint, fraction, note, at)
        SELECT h.id, CAST(:checkpoint AS jsonb), CAST(:fraction AS real), CAST(:note AS text), {NOW}
        FROM held h WHERE CAST(:changed AS boolean) OR CAST(:fraction AS real) IS NOT NULL
        ON CONFLICT (task_id) DO UPDATE SET
            checkpoint = CASE WHEN CAST(:changed AS boolean) THEN EXCLUDED.checkpoint
                ELSE g.checkpoint END,
            fraction = coalesce(EXCLUDED.fraction, g.fraction),
            note = coalesce(EXCLUDED.note, g.note), at = EXCLUDED.at)
    SELECT h.cancel_requested_at IS NOT NULL AS cancelled FROM held h
""")
_READ = text(f"SELECT checkpoint, fraction, note, at FROM {PROGRESS} WHERE task_id = :id")
_PRUNE = text(f"""
    DELETE FROM {PROGRESS} g WHERE g.task_id = ANY(ARRAY(
        SELECT s.task_id FROM {PROGRESS} s
        WHERE s.at < {NOW} - interval '1h'
          AND (SELECT true FROM {PENDING} p WHERE p.id = s.task_id) IS NULL
          AND (SELECT true FROM {ERROR} e WHERE e.id = s.task_id) IS NULL
          AND (SELECT true FROM {COMPLETED} c
               WHERE c.id = s.task_id AND c.finished_at >= s.at AND c.state NOT IN ({quoted(*GOOD)})
               LIMIT 1) IS NULL
        ORDER BY s.task_id LIMIT :most FOR UPDATE OF s SKIP LOCKED))
    RETURNING g.task_id
""")


def keep(
    connection: Connection, fence: Fence, note: Note, *, now: datetime | None = None
) -> bool | None:
    """Write progress, and lock the row of a run until the commit, which is to follow at once.

    Return whether somebody wants the run to stop; None: the fence is lost, so do not commit.
    """
    values = {"id": fence.task_id, "attempt": fence.attempt, "token": fence.token, "now": now}
    row = connection.execute(_KEEP, {**values, **note._asdict()}).first()
    return None if row is None else bool(row.cancelled)


def read(connection: Connection, task_id: int) -> SavedProgress | None:
    """Return what is kept of a task, or None."""
    row = connection.execute(_READ, {"id": task_id}).first()
    return None if row is None else SavedProgress(*row)


def prune(connection: Connection, most: int, *, now: datetime | None = None) -> int:
    """Forget what was kept of tasks that ended well, or are nowhere any more; return how many.

    What was cancelled, has expired or failed may be requeued, and goes on where it was.
    """
    return len(connection.execute(_PRUNE, {"most": most, "now": now}).all())
