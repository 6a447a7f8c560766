"""Lost steps: they are under way by their status, and no task of theirs is left.

Their join failed, was cancelled or swept, so nobody wrote how they ended. The tasks of a step
follow each other without a gap: the last of one kind leaves in the statement that inserts the next,
or under the lock of the instance. So a step that has no task under that lock will never have one.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.batch.records import ACTIVE, BatchStatus
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import BATCH, BATCH_STEP, COMPLETED, ERROR, PENDING

_UNDER_WAY = ", ".join(f"'{status}'" for status in sorted(ACTIVE))
_ACTIVE = f"s.batch_id = b.id AND s.status IN ({_UNDER_WAY})"
_LOST = f"""{_ACTIVE} AND NOT EXISTS (
    SELECT FROM {PENDING} p WHERE p.biz_key = 'batch:' || b.id
      AND starts_with(p.name || ':', b.job || ':' || s.step || ':'))"""
_SUSPECTS = text(f"""
    SELECT b.id FROM {BATCH} b WHERE b.ended_at IS NULL
      AND (EXISTS (SELECT FROM {BATCH_STEP} s WHERE {_LOST})
        OR NOT EXISTS (SELECT FROM {BATCH_STEP} s WHERE {_ACTIVE}))
    ORDER BY b.id LIMIT :most
""")
_HOLD = text(f"""
    SELECT status FROM {BATCH} WHERE id = :batch_id AND ended_at IS NULL FOR UPDATE SKIP LOCKED
""")
_STEPS = text(f"""
    SELECT s.step FROM {BATCH} b, {BATCH_STEP} s WHERE b.id = :batch_id AND {_LOST} ORDER BY s.step
""")
_OF = """
    t.biz_key = 'batch:' || b.id AND t.finished_at >= b.started_at
      AND t.name = ANY(ARRAY(SELECT concat_ws(':', b.job, CAST(:step AS text), w)
                             FROM unnest(ARRAY['plan', 'join', 'reduce']) AS w))
      AND t.payload ->> 'run' = CAST(b.run AS text)"""
_CAUSE = text(f"""
    SELECT f.name, f.state, f.error FROM {BATCH} b, LATERAL (
        SELECT t.name, t.state, t.error, t.finished_at FROM {ERROR} t WHERE {_OF}
        UNION ALL
        SELECT t.name, t.state, t.error, t.finished_at FROM {COMPLETED} t
        WHERE {_OF} AND t.state <> '{State.SUCCEEDED}') AS f
    WHERE b.id = :batch_id ORDER BY f.finished_at DESC LIMIT 1
""")


class LostCause(NamedTuple):
    """The last plan, join or reduce of this run that did not succeed."""

    name: str
    state: State
    error: str | None

    def __str__(self) -> str:
        word = self.name.rpartition(":")[2]
        return f"Its {word} ended {self.state}" + (f": {self.error}" if self.error else "")


def suspects(connection: Connection, most: int) -> list[int]:
    """Return instances that seem to have lost steps; check again under their lock."""
    return list(connection.execute(_SUSPECTS, {"most": most}).scalars())


def hold(connection: Connection, batch_id: int) -> BatchStatus | None:
    """Lock an instance that has not ended; None: it has, or somebody else has locked it."""
    status = connection.execute(_HOLD, {"batch_id": batch_id}).scalar()
    return None if status is None else BatchStatus(status)


def steps(connection: Connection, batch_id: int) -> list[str]:
    """Return the lost steps of an instance that the caller has locked."""
    return list(connection.execute(_STEPS, {"batch_id": batch_id}).scalars())


def cause(connection: Connection, batch_id: int, step: str) -> LostCause | None:
    """Return why a step does not go on; None: the pools do not know."""
    row = connection.execute(_CAUSE, {"batch_id": batch_id, "step": step}).first()
    return None if row is None else LostCause(row.name, State(row.state), row.error)
