"""How commands end when they fail: one sentence, the next step, and an exit code.

0: done. 1: the answer is no (not found, schema behind, a check failed). 2: wrong usage or
configuration. 3: the database or the broker does not answer. This imports nothing of the pool,
because that import is what fails with a wrong TASKS_APP_SCHEMA.
"""

from __future__ import annotations

import click
from sqlalchemy.exc import DBAPIError, InternalError, OperationalError, ProgrammingError

from tasks_app.cli.output import print_text
from tasks_app.domain.config.unreachable import (
    NOT_GRANTED,
    PERMISSION_ADVICE,
    READ_ONLY,
    why_unreachable,
)
from tasks_app.domain.errors import (
    EXIT_NO,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    BatchStateError,
    NotThereError,
    PublishError,
    SchemaError,
    TasksError,
)
from tasks_app.domain.tasks.error_text import first_line
from tasks_app.embedded.folder import EmbeddedError
from tasks_app.runtime.db.errors import sqlstate

_REFUSALS = {
    "42P01": ("The schema is missing. Run: tasks-app migrate", EXIT_NO),
    "25006": (READ_ONLY, EXIT_NO),
    NOT_GRANTED: (PERMISSION_ADVICE, EXIT_NO),
}
"""By SQLSTATE: undefined table, read-only transaction, privileges."""


def print_error(error: BaseException) -> int | None:
    """Print what went wrong; return the exit code. None: unknown, so show its traceback."""
    found: tuple[str, int] | None = None
    match error:
        case click.ClickException():
            error.show()
            return EXIT_USAGE
        case click.Abort() | KeyboardInterrupt() | EOFError():
            found = "Stopped.", EXIT_NO
        case PublishError():
            found = str(error), EXIT_UNREACHABLE
        case OperationalError() | ProgrammingError() | InternalError():
            found = _of_database(error)
        case SchemaError() | BatchStateError() | NotThereError():
            found = str(error), EXIT_NO
        case TasksError() | EmbeddedError():
            found = str(error), EXIT_USAGE
        case _:
            pass
    if found is None:
        return None
    print_text(found[0], err=True)
    return found[1]


def _of_database(error: DBAPIError) -> tuple[str, int] | None:
    state = sqlstate(error)
    why = why_unreachable(str(error.orig))
    if not state and not why.away:
        return str(why), EXIT_USAGE
    if not state and isinstance(error, OperationalError):
        return str(why), EXIT_UNREACHABLE
    if isinstance(error, OperationalError):
        return (
            f"The database could not carry it out ({first_line(error)}). Try again.",
            EXIT_UNREACHABLE,
        )
    return _REFUSALS.get(state)
