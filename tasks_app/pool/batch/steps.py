"""Steps of instances. Their writers hold the lock of the instance's row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.batch.records import BatchStep, StepStatus
from tasks_app.pool.tables import BATCH_STEP

_COLUMNS = "batch_id, step, status, run, round, plan, result, started_at, ended_at, error"
_ADD = text(f"""
    INSERT INTO {BATCH_STEP} (batch_id, step, run)
    SELECT :batch_id, s.step, :run
    FROM unnest(CAST(:steps AS text[])) WITH ORDINALITY AS s(step, place) ORDER BY s.place
    ON CONFLICT DO NOTHING
""")
_FIND = text(f"""
    SELECT {_COLUMNS} FROM {BATCH_STEP} WHERE batch_id = :batch_id ORDER BY started_at, step
""")
_RESET = text(f"""
    UPDATE {BATCH_STEP} SET status = 'WAITING', run = :run, round = 0, error = NULL, ended_at = NULL
    WHERE batch_id = :batch_id AND step = ANY(CAST(:steps AS text[]))
""")
_CHANGE = text(f"""
    UPDATE {BATCH_STEP} SET status = :status, error = :error,
        round = round + :rounds,
        plan = coalesce(CAST(:plan AS jsonb), plan),
        result = coalesce(CAST(:result AS jsonb), result),
        started_at = CASE WHEN :status = 'PLANNING' THEN statement_timestamp() ELSE started_at END,
        ended_at = CASE WHEN :status IN ('COMPLETED', 'FAILED', 'STOPPED')
            THEN statement_timestamp() END
    WHERE batch_id = :batch_id AND step = :step
""")


def add(connection: Connection, batch_id: int, steps: Sequence[str], run: int) -> None:
    """Insert those that are not there."""
    connection.execute(_ADD, {"batch_id": batch_id, "steps": list(steps), "run": run})


def find(connection: Connection, batch_id: int) -> dict[str, BatchStep]:
    """Return all steps of an instance by name, as they began; those that have not come last."""
    rows = connection.execute(_FIND, {"batch_id": batch_id})
    return {
        row.step: BatchStep(row.batch_id, row.step, StepStatus(row.status), *row[3:])
        for row in rows
    }


def reset(connection: Connection, batch_id: int, steps: Sequence[str], run: int) -> None:
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
) -> None:
    """Set the status; plan and result stay where none is given, ``rounds`` are added."""
    values = {
        "batch_id": batch_id,
        "step": step,
        "status": str(status),
        "error": error,
        "rounds": rounds,
        "plan": None if plan is None else json.dumps(plan),
        "result": None if result is None else json.dumps(result),
    }
    connection.execute(_CHANGE, values)
