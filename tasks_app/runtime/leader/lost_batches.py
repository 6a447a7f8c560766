"""Lost batches: what says that it runs, and has no task left, is ended, so that it can go on."""

from __future__ import annotations

from sqlalchemy import Connection

from tasks_app.domain.batch.decisions import error_of_batch, status_of_batch
from tasks_app.domain.batch.records import BatchStatus, StepStatus
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.batch import instances, lost, partition_runs, steps
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.runtime.db.database import Database

log = quiet_logger(__name__)

MOST = 100
"""At a time; each is a transaction of its own."""


def end_lost(database: Database) -> list[int]:
    """End the steps, and with the last of them the instance, that nobody works for; say whose.

    Any number may do it at once; an instance that is locked is left to the next look.
    """
    with database.begin() as connection:
        found = lost.suspects(connection, MOST)
    return [batch_id for batch_id in found if _end(database, batch_id)]


def _end(database: Database, batch_id: int) -> bool:
    with database.begin() as connection:
        end = row_by_row(
            connection, [batch_id], lambda _: _end_one(connection, batch_id), "end of batches"
        )
    return any(end)


def _end_one(connection: Connection, batch_id: int) -> bool:
    status = lost.hold(connection, batch_id)
    if status is None:
        return False
    stopping = status is BatchStatus.STOPPING
    gone = lost.steps(connection, batch_id)
    for step in gone:
        cause = lost.cause(connection, batch_id, step) or "Its tasks are gone"
        error = f"{cause}. Go on with: tasks-app batch restart {batch_id}"
        partition_runs.close(connection, batch_id, step)
        ended = StepStatus.STOPPED if stopping else StepStatus.FAILED
        steps.change(connection, batch_id, step, ended, error=error)
        log.warning("step %s of batch %s was lost: %s", step, batch_id, ended)
    found = steps.find(connection, batch_id)
    statuses = {name: each.status for name, each in found.items()}
    if any(each.is_active for each in statuses.values()):
        return bool(gone)
    ends = status_of_batch(statuses, stopping=stopping) or BatchStatus.FAILED
    instances.change(connection, batch_id, ends, error_of_batch(statuses))
    return True
