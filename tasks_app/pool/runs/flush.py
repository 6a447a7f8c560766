"""Flush: commits that did not wait for the disk are made durable, and looked for."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import State
from tasks_app.pool.connection.session_state import FLUSH
from tasks_app.pool.runs.settle import still_held
from tasks_app.pool.tables import COMPLETED, ERROR, PENDING

_IS_ENDED_BY = text(f"""
    SELECT coalesce(
        (SELECT false FROM {PENDING} WHERE id = :id),
        (SELECT attempt = :attempt AND state = '{State.SUCCEEDED}' FROM {COMPLETED} WHERE id = :id),
        (SELECT false FROM {ERROR} WHERE id = :id),
        true)
""")
_FLUSH = text(FLUSH.decode())
_NOT_ALLOWED = "42501"


def flush(connection: Connection, fences: Sequence[Fence]) -> set[int]:
    """Make durable what was committed before; return the ids whose runs the server has forgotten.

    That is so if it crashed between their COMMIT and this call. Each statement is to commit by
    itself. A role that may not write to the log leaves it to the server, which is a moment later.
    """
    try:
        connection.execute(_FLUSH)
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != _NOT_ALLOWED:
            raise
    return still_held(connection, fences)


def is_ended_by(connection: Connection, fence: Fence) -> bool:
    """Whether a run whose COMMIT was not answered has succeeded; its row is not locked.

    A row that is nowhere was kept by no history: nobody can say any more who has ended the task.
    """
    of = {"id": fence.task_id, "attempt": fence.attempt}
    return bool(connection.execute(_IS_ENDED_BY, of).scalar_one())
