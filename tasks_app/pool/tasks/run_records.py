"""What a run writes besides its outcome: checkpoints, kept steps, sub-status and log lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import State
from tasks_app.pool.fragments.move_rows import array
from tasks_app.pool.tables import (
    COMPLETED,
    ERROR,
    LOG_LINES,
    NOW,
    PENDING,
    PROGRESS,
    STEP,
    Clock,
    quoted,
)
from tasks_app.pool.task_groups import GOOD


class Note(NamedTuple):
    checkpoint: str | None  # JSON text; None: none
    changed: bool  # False: the checkpoint stays as it is
    fraction: float | None
    note: str | None
    step: str | None = None  # the name of a step that is kept, too
    result: str | None = None  # its result, JSON text


class SavedProgress(NamedTuple):
    checkpoint: dict[str, Any] | None
    fraction: float | None
    note: str | None
    at: datetime


class KeptStep(NamedTuple):
    name: str
    result: Any
    age_s: float


_KEEP = text(f"""
    WITH held AS MATERIALIZED (
        SELECT p.id, p.cancel_requested_at FROM {PENDING} p
        WHERE p.id = :id AND p.attempt = :attempt AND p.lease_token = :token
          AND p.state = '{State.RUNNING}'
        FOR NO KEY UPDATE OF p),
    kept AS (
        INSERT INTO {PROGRESS} AS g (task_id, checkpoint, fraction, note, at)
        SELECT h.id, CAST(:checkpoint AS jsonb), CAST(:fraction AS real), CAST(:note AS text), {NOW}
        FROM held h WHERE CAST(:changed AS boolean)
            OR num_nonnulls(CAST(:fraction AS real), CAST(:step AS text)) > 0
        ON CONFLICT (task_id) DO UPDATE SET
            checkpoint = CASE WHEN CAST(:changed AS boolean) THEN EXCLUDED.checkpoint
                ELSE g.checkpoint END,
            fraction = coalesce(EXCLUDED.fraction, g.fraction),
            note = coalesce(EXCLUDED.note, g.note), at = EXCLUDED.at),
    step AS (
        INSERT INTO {STEP} (task_id, name, result, at)
        SELECT h.id, CAST(:step AS text), CAST(:result AS jsonb), {NOW}
        FROM held h WHERE CAST(:step AS text) IS NOT NULL)
    SELECT h.cancel_requested_at IS NOT NULL AS cancelled FROM held h""")
_READ = text(f"SELECT checkpoint, fraction, note, at FROM {PROGRESS} WHERE task_id = :id")
_STEPS = text(f"""
    SELECT name, result, CAST(extract(epoch FROM {NOW} - at) AS double precision) AS age_s
    FROM {STEP} WHERE task_id = :id""")
_STEP_NAMES = text(f"SELECT name, at FROM {STEP} WHERE task_id = :id ORDER BY at, name")
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
    RETURNING g.task_id""")


def save_checkpoint(connection: Connection, fence: Fence, note: Note) -> bool | None:
    """Write progress, and perhaps a step, and lock the row of the run; commit at once."""
    # Return whether the run should stop; None: the fence is lost, so do not commit.
    values = {"id": fence.task_id, "attempt": fence.attempt, "token": fence.token, "now": None}
    row = connection.execute(_KEEP, {**values, **note._asdict()}).first()
    return None if row is None else bool(row.cancelled)


def read_checkpoint(connection: Connection, task_id: int) -> SavedProgress | None:
    row = connection.execute(_READ, {"id": task_id}).first()
    return None if row is None else SavedProgress(*row)


def read_steps(connection: Connection, task_id: int) -> list[KeptStep]:
    rows = connection.execute(_STEPS, {"id": task_id, "now": None})
    return [KeptStep(*row) for row in rows]


def step_names(connection: Connection, task_id: int) -> dict[str, datetime]:
    """Return when each step of a task was kept, in this order."""
    return {row.name: row.at for row in connection.execute(_STEP_NAMES, {"id": task_id})}


def prune_checkpoints(connection: Connection, most: int, *, now: Clock = None) -> int:
    """Remove progress, and steps with it, of tasks that succeeded, or are gone; return how many."""
    # Cancelled, expired and failed tasks may be requeued, and continue at their checkpoint.
    return len(connection.execute(_PRUNE, {"most": most, "now": now}).all())


_WRITE_SUB_STATUS = text(f"""
    UPDATE {PENDING} SET sub_status = nullif(:said, '')
    WHERE id = :id AND attempt = :attempt AND lease_token = :token AND state = '{State.RUNNING}'""")


def write_sub_status(connection: Connection, fence: Fence, said: str) -> None:
    """Write it if the fence holds; an empty text removes it."""
    of = {"id": fence.task_id, "attempt": fence.attempt, "token": fence.token}
    connection.execute(_WRITE_SUB_STATUS, {**of, "said": said})


_KEEP_LINES = text(f"""
    INSERT INTO {LOG_LINES} AS l (task_id, attempt, lines, cut)
    SELECT n.task_id, n.attempt, CAST(n.lines AS jsonb), n.cut FROM unnest(
        CAST(:ids AS bigint[]), CAST(:attempts AS integer[]), CAST(:lines AS text[]),
        CAST(:cuts AS integer[])) AS n(task_id, attempt, lines, cut)
    ON CONFLICT (task_id, attempt) DO UPDATE SET lines = excluded.lines, cut = excluded.cut
    WHERE l.lines <> '[]'""")
_READ_LINES = text(f"""
    SELECT attempt, lines, cut FROM {LOG_LINES} WHERE task_id = :id AND lines <> '[]'
    ORDER BY attempt DESC LIMIT :most""")


class LinesOfRun(NamedTuple):
    task_id: int
    attempt: int
    lines: str  # JSON text: an array of [instant, level, text]
    cut: int  # how many before them were left out


@dataclass(frozen=True, slots=True)
class LogLine:
    at: datetime  # by the worker's clock
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class LogOfAttempt:
    attempt: int
    lines: tuple[LogLine, ...]
    cut: int  # how many lines before them were left out


def keep_lines(connection: Connection, runs: Sequence[LinesOfRun]) -> None:
    """Write the lines, of each attempt those of its last call; of an erased one none."""
    latest = {run[:2]: run for run in runs}.values()
    connection.execute(
        _KEEP_LINES,
        {
            "ids": array(run.task_id for run in latest),
            "attempts": array(run.attempt for run in latest),
            "lines": [run.lines for run in latest],
            "cuts": array(run.cut for run in latest),
        },
    )


def read_lines(connection: Connection, task_id: int, most: int = 20) -> list[LogOfAttempt]:
    """Return the lines of a task's newest attempts, oldest attempt first."""
    return [
        LogOfAttempt(
            row.attempt,
            tuple(LogLine(datetime.fromisoformat(at), *more) for at, *more in row.lines),
            row.cut,
        )
        for row in reversed(connection.execute(_READ_LINES, {"id": task_id, "most": most}).all())
    ]
