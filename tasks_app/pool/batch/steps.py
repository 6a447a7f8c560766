"""Steps of instances. They are written by whoever holds their instance's row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.batch.records import BatchStep, StepStatus
from tasks_app.pool.tables import BATCH_STEP, NOW

_COLUMNS = "batch_id, step, status, run, round, plan, result, started_at, ended_at, error"
_ADD = text(f"""
    INSERT INTO {BATCH_STEP} (batch_id, step, run)
    SELECT :batch_id, s.step, :run
    FROM unnest(CAST(:steps AS text[])) WITH ORDINALITY AS s(step, place) ORDER BY s.place
    ON CONFLICT DO NOTHING
""")
_FIND = text(f"SELECT {_COLUMNS} FROM {BATCH_STEP} WHERE batch_id = :batch_id")
_RESET = text(f"""
    UPDATE {BATCH_STEP} SET status = 'WAITING', run = :run, round = 0, error = NULL, ended_at = NULL
    WHERE batch_id = :batch_id AND step = ANY(CAST(:steps AS text[]))
""")
_CHANGE = text(f"""
    UPDATE {BATCH_STEP} SET status = :status, error = :error,
        round = round + :rounds,
        plan = coalesce(CAST(:plan AS jsonb), plan),
        result = coalesce(CAST(:result AS jsonb), result),
        started_at = CASE WHEN :status = 'PLANNING' THEN {NOW} ELSE started_at END,
        ended_at = CASE WHEN :status IN ('COMPLETED', 'FAILED', 'STOPPED') THEN {NOW} END
    WHERE batch_id = :batch_id AND step = :step
""")


def add(connection: Connection, batch_id: int, steps: Sequence[str], run: int) -> None:
    """Insert those that are not there."""
    connection.execute(_ADD, {"batch_id": batch_id, "steps": list(steps), "run": run})


def find(connection: Connection, batch_id: int) -> dict[str, BatchStep]:
    """Return all steps of an instance by name."""
    rows = connection.execute(_FIND, {"batch_id": batch_id})
    return {
        row.step: BatchStep(row.batch_id, row.step, StepStatus(row.status), *row[3:])
        for row in rows
    }


def reset(connection: Connection, batch_id: int, steps: Sequence[str], run: int) -> None:
    """Put steps back to WAITING, for a new run."""
    connection.execute(_RESET, {"batch_id": batch_id, "steps": list(steps), "run": run})


def change(  # noqa: PLR0913  all by keyword
    connection: Connection,
    batch_id: int,
    step: str,
    status: StepStatus,
    *,
    error: str | None = None,
    rounds: int = 0,
    plan: dict[str, Any] | None = None,
    result: Any = None,
    now: datetime | None = None,
) -> None:
    """Set how a step stands; plan and result stay where none is given."""
    values = {
        "batch_id": batch_id,
        "step": step,
        "status": str(status),
        "error": error,
        "rounds": rounds,
        "plan": None if plan is None else json.dumps(plan),
        "result": None if result is None else json.dumps(result),
        "now": now,
    }
    connection.execute(_CHANGE, values)
