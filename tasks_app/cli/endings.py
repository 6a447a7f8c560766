"""How commands end when they fail: one sentence, the next step, and an exit code.

0 done; 1 the answer is no (not found, schema behind, a check failed); 2 wrong usage or
configuration; 3 the database or the broker does not answer. Nothing here imports the pool: with a
wrong TASKS_APP_SCHEMA that import is what fails.
"""

from __future__ import annotations

import click
from sqlalchemy.exc import DBAPIError, InternalError, OperationalError, ProgrammingError

from tasks_app.cli.output import say
from tasks_app.domain.config.refusals import MAY_NOT, NOT_GRANTED, READ_ONLY
from tasks_app.domain.config.unreachable import why_unreachable
from tasks_app.domain.errors import (
    AWAY,
    NO,
    USAGE,
    BatchStateError,
    NotThereError,
    PublishError,
    SchemaError,
    TasksError,
)
from tasks_app.domain.tasks.error_text import brief
from tasks_app.embedded.folder import EmbeddedError
from tasks_app.runtime.db.errors import sqlstate

_REFUSALS = {
    "42P01": ("The schema is missing. Run: tasks-app migrate", NO),
    "25006": (READ_ONLY, NO),
    NOT_GRANTED: (MAY_NOT, NO),
}
"""By SQLSTATE: undefined table, read-only transaction, privileges."""


def ending(error: BaseException) -> int | None:
    """Print what went wrong; return the exit code. None: an unknown error, for its traceback."""
    if isinstance(error, click.ClickException):
        error.show()
        return USAGE
    said = _said(error)
    if said is None:
        return None
    message, status = said
    say(message, err=True)
    return status


def _said(error: BaseException) -> tuple[str, int] | None:
    match error:
        case click.Abort() | KeyboardInterrupt() | EOFError():
            return "Stopped.", NO
        case PublishError():
            return str(error), AWAY
        case OperationalError() | ProgrammingError() | InternalError():
            return _of_database(error)
        case SchemaError() | BatchStateError() | NotThereError():
            return str(error), NO
        case TasksError() | EmbeddedError():
            return str(error), USAGE
        case _:
            return None


def _of_database(error: DBAPIError) -> tuple[str, int] | None:
    state = sqlstate(error)
    why = why_unreachable(str(error.orig))
    if not state and not why.away:
        return str(why), USAGE
    if not state and isinstance(error, OperationalError):
        return str(why), AWAY
    if isinstance(error, OperationalError):
        return f"The database did not do it ({brief(error)}). Try again.", AWAY
    return _REFUSALS.get(state)
