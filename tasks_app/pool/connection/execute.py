"""Runs statements in the caller's transaction, on any kind of connection."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.errors import SchemaError

if TYPE_CHECKING:
    from tasks_app.pool.connection.psycopg_connection import AsyncRaw, Raw

T = TypeVar("T")
Rows: TypeAlias = Sequence[Any]


class Statement(NamedTuple):
    sql: str
    values: Mapping[str, Any]
    yields: bool = True  # False: it has no rows, such as a SAVEPOINT


class Copy(NamedTuple):
    """Rows that ``COPY … FROM STDIN`` takes, as pieces of its text."""

    sql: str
    pieces: Iterable[str]


Statements: TypeAlias = Generator[Statement | Copy, Rows, T]
"""Yields statements, gets the rows of each, returns a result: the same code serves any driver."""


def run_statements(connection: Connection | Raw, plan: Statements[T]) -> T:
    do = _DOERS.get(type(connection)) or _doer_for(connection)
    schema_error = ""
    try:
        step = next(plan)
        while True:
            step = plan.send(do(connection, step))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except Exception as error:
        schema_error = _schema_error(error)
        if not schema_error:
            raise
    raise SchemaError(schema_error)  # outside the except: that error shows the values to be written


async def arun_statements(connection: AsyncRaw, plan: Statements[T]) -> T:
    """Do the same on psycopg's async connection."""
    from tasks_app.pool.connection.psycopg_connection import ado  # noqa: PLC0415  it brings psycopg

    schema_error = ""
    try:
        step = next(plan)
        while True:
            step = plan.send(await ado(connection, step))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except Exception as error:
        schema_error = _schema_error(error)
        if not schema_error:
            raise
    raise SchemaError(schema_error)


_SCHEMA_ERRORS = {
    "42P01": "is missing in this database, or not where TASKS_APP_SCHEMA and search_path look",
    **dict.fromkeys(("42703", "42883"), "is not the one that this version needs"),
}


def _schema_error(error: BaseException) -> str:
    """Return a message if a missing or old schema caused the error, else an empty text."""
    found: Any = getattr(error, "orig", None) or error
    what = _SCHEMA_ERRORS.get(getattr(found, "sqlstate", None) or "")
    if what is None or "task_" not in str(found).partition("\n")[0]:
        return ""  # a user's trigger may lack something, too
    return (
        f"The schema of tasks_app {what}. Run: tasks-app migrate. "
        "The transaction is in error now, as after any statement that failed: roll it back."
    )


_DOERS: dict[type, Callable[[Any, Statement | Copy], Rows]] = {}
"""What runs a statement, by kind of connection: an import at each call costs too much."""


def _doer_for(connection: Connection | Raw) -> Callable[[Any, Statement | Copy], Rows]:
    do: Callable[[Any, Statement | Copy], Rows] = _do
    kind: Any = type(connection)
    if hasattr(kind, "do"):  # psycopg's, in a verb that takes a Connection
        do = kind.do
    elif not isinstance(connection, Connection):
        from tasks_app.pool.connection.psycopg_connection import do  # noqa: PLC0415  it brings psycopg
    return _DOERS.setdefault(kind, do)


def _do(connection: Connection, step: Statement | Copy) -> Rows:
    dialect = connection.dialect
    try:
        listens = connection._has_events or connection.engine._has_events or connection._echo  # noqa: SLF001
    except AttributeError:  # other names than we know (runtime.handler_db.driver_internals)
        listens = True
    # If nothing listens, SQLAlchemy would only pass the statement on: a fifth of a new task's cost.
    unheard = dialect.driver == "psycopg" and not dialect.is_async and not listens
    if isinstance(step, Copy) or unheard:
        return run_on_driver(connection, step)
    if dialect.driver == "psycopg":  # the SQL is psycopg's already: nothing to compile
        result = connection.exec_driver_sql(step.sql, step.values)
    else:
        result = connection.execute(_neutral(step.sql), step.values)
    return result.fetchall() if step.yields else ()


@functools.lru_cache(256)
def _neutral(sql: str) -> TextClause:
    """Return the statement for SQLAlchemy's other drivers."""
    return text(re.sub(r"%\((\w+)\)s", r":\1", sql))


def fetch(connection: Connection, step: Statement) -> Rows:
    """Run a query past SQLAlchemy, which takes as long for a small statement as the server."""
    if connection.dispatch.before_cursor_execute:  # a listener wants to see it
        return connection.exec_driver_sql(step.sql, step.values).fetchall()
    return run_on_driver(connection, step)


def run_on_driver(connection: Connection, step: Statement | Copy) -> Rows:
    """Run a step on psycopg's own connection; raise its errors as SQLAlchemy's."""
    import psycopg  # noqa: PLC0415  as its connection is here, this costs nothing

    from tasks_app.pool.connection import psycopg_connection  # noqa: PLC0415

    if not connection.in_transaction():
        connection.begin()  # otherwise SQLAlchemy would see nothing to commit
    pooled = connection.connection
    driver: Any = pooled.driver_connection
    try:
        if isinstance(driver, psycopg.AsyncConnection):
            rows: Rows = pooled.run_async(lambda driver: psycopg_connection.ado(driver, step))
            return rows
        return psycopg_connection.do(driver, step)
    except psycopg.Error as error:
        if driver.closed:
            connection.exec_driver_sql("SELECT 1")  # so that SQLAlchemy notices, and raises
        raise DBAPIError.instance(
            step.sql,
            step.values if isinstance(step, Statement) else None,
            error,
            psycopg.Error,
            hide_parameters=connection.engine.hide_parameters,
            dialect=connection.dialect,
        ) from error


def to_psycopg_sql(statement: str) -> str:
    """Convert values ``:name`` to psycopg's form, for :func:`fetch`."""
    from sqlalchemy.dialects.postgresql.psycopg import (  # noqa: PLC0415  producers need none
        PGDialect_psycopg,
    )

    return str(text(statement).compile(dialect=PGDialect_psycopg()))  # type: ignore[no-untyped-call]


def can_copy(connection: Connection | Raw | AsyncRaw) -> bool:
    """Whether COPY works here: with psycopg, outside of a pipeline."""
    driver: Any = connection
    if isinstance(connection, Connection):
        if connection.dialect.driver != "psycopg":
            return False
        driver = connection.connection.driver_connection
    from tasks_app.pool.connection.psycopg_connection import is_in_pipeline  # noqa: PLC0415  it brings psycopg

    return not is_in_pipeline(driver)


def commits_itself(connection: Connection | Raw) -> bool:
    """Whether each statement is a transaction of its own, so that there are no savepoints."""
    if not isinstance(connection, Connection):
        return False  # the caller has opened a transaction if there was none
    return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))
