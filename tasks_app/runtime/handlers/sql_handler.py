"""``sql_handler()``: tasks whose work is one SQL statement."""

from __future__ import annotations

import sys
import time
from typing import Any, Unpack

from pydantic import ConfigDict
from sqlalchemy.exc import DBAPIError
from typing_extensions import TypedDict

from tasks_app.domain.errors import HandlerError, HandlerTimeoutError
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.handlers.spec import Handler, SqlStatement, parameter_texts, parse_statement
from tasks_app.domain.tasks.payload_type import PayloadType
from tasks_app.pool.connection.sessions import limit_statements
from tasks_app.runtime.db.errors import sqlstate
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.options import HandlerOptions, checked, when_of
from tasks_app.runtime.handlers.registry import HANDLERS, Registry, declare_handler

ENDS_TRANSACTION = (
    "The statement ends its transaction, for example by COMMIT in a procedure, or cannot run in "
    "one. Take that out: the statement commits together with the task's outcome."
)
_NOT_IN_A_TRANSACTION = frozenset({"2D000", "25001"})  # SQLSTATEs, as the next
_CANCELLED = "57014"


def sql_handler(
    name: str, statement: str, *, registry: Registry = HANDLERS, **options: Unpack[HandlerOptions]
) -> Handler[Any, dict[str, int] | None]:
    """Declare a task whose work is one SQL statement, which commits with the outcome.

    Each ``:name`` stands for the value of that key in the payload, which must have these keys and
    no others. Values are sent beside the statement, as text; cast them where PostgreSQL cannot know
    their type. The result is ``{"rows": n}``, or none after a CALL.

    >>> close_day = sql_handler("report.close", "CALL close_day(:day)", timeout="10m")
    >>> task_id = create_task(session, close_day, {"day": "2026-02-01"})

    Args:
        name: the name of its tasks.
        statement: SELECT, INSERT, UPDATE, DELETE, MERGE, WITH, CALL, REFRESH or TRUNCATE.
        registry: for tests.
        options: those of ``HandlerOptions``. ``timeout`` is PostgreSQL's ``statement_timeout``.

    Raises:
        HandlerError: the declaration cannot work.
    """
    parsed = checked(name, lambda: parse_statement(statement), "statement")
    if parsed.names and when_of(options):
        raise HandlerError(
            f"{name!r} has a schedule, whose tasks have no payload, but its statement needs "
            f"{', '.join(parsed.names)}. Use schedule(…), which takes a payload."
        )
    declare: Any = TypedDict  # type checkers want to read its keys
    kind = declare(name, dict.fromkeys(parsed.names, Any))  # all keys are required, no others
    kind.__pydantic_config__ = ConfigDict(extra="forbid")

    def run(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, int] | None:
        return _run(ctx, parsed, payload)

    run.__module__ = str(sys._getframe(1).f_globals.get("__name__"))  # noqa: SLF001  the caller's
    run.__name__ = run.__qualname__ = f"sql_handler({name!r})"
    run.__doc__ = statement
    return declare_handler(
        run,
        name,
        registry,
        options,
        payload_type=PayloadType(kind),
        keeps_timeout=True,
        statement=parsed,
    )


def _run(
    ctx: TaskContext, statement: SqlStatement, payload: dict[str, Any]
) -> dict[str, int] | None:
    values, limit_s = parameter_texts(payload), ctx.remaining
    try:
        if limit_s is not None:
            limit_statements(ctx.connection, limit_s)
        rows = ctx.connection.exec_driver_sql(statement.text, values).rowcount
    except DBAPIError as error:
        state = sqlstate(error)
        if state in _NOT_IN_A_TRANSACTION:
            raise Fail(ENDS_TRANSACTION) from error
        if limit_s is not None and state == _CANCELLED and time.monotonic() >= (ctx.deadline or 0):
            raise HandlerTimeoutError(round(limit_s, 2)) from error
        raise error.with_traceback(None) from None  # all frames are the driver's
    return None if rows < 0 else {"rows": rows}
