"""Carries out statements in the caller's transaction, on any kind of connection."""

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


def copies(connection: Connection | Raw | AsyncRaw) -> bool:
    """Whether COPY can be had here: with psycopg, outside of a pipeline."""
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
        return False  # the caller has opened a transaction where there was none
    return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


def carry_out(connection: Connection | Raw, plan: Statements[T]) -> T:
    do = _DOERS.get(type(connection)) or _learn(connection)
    lack = ""
    try:
        step = next(plan)
        while True:
            step = plan.send(do(connection, step))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except Exception as error:
        lack = _lack(error)
        if not lack:
            raise
    raise SchemaError(lack)  # not within: the error shows what was to be written


async def acarry_out(connection: AsyncRaw, plan: Statements[T]) -> T:
    """Do the same on psycopg's async connection."""
    from tasks_app.pool.connection.psycopg_connection import ado  # noqa: PLC0415  it brings psycopg

    lack = ""
    try:
        step = next(plan)
        while True:
            step = plan.send(await ado(connection, step))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except Exception as error:
        lack = _lack(error)
        if not lack:
            raise
    raise SchemaError(lack)


def _lack(error: BaseException) -> str:
    """Return what to say of an error that comes from a schema which is missing or too old."""
    found: Any = getattr(error, "orig", None) or error
    what = _LACKS.get(getattr(found, "sqlstate", None) or "")
    if what is None or "task_" not in str(found).partition("\n")[0]:
        return ""  # a trigger of theirs may lack something, too
    return (
        f"The schema of tasks_app {what}. Run: tasks-app migrate. "
        "The transaction is in error now, as after any statement that failed: roll it back."
    )


_LACKS = {
    "42P01": "is missing in this database, or not where TASKS_APP_SCHEMA and search_path look",
    **dict.fromkeys(("42703", "42883"), "is not the one that this version needs"),
}
_DOERS: dict[type, Callable[[Any, Statement | Copy], Rows]] = {}
"""How each kind of connection carries out a step; to import it at each call costs too much."""


def _learn(connection: Connection | Raw) -> Callable[[Any, Statement | Copy], Rows]:
    do: Callable[[Any, Statement | Copy], Rows] = _do
    kind: Any = type(connection)
    if hasattr(kind, "do"):  # psycopg's, in a verb that takes a Connection
        do = kind.do
    elif not isinstance(connection, Connection):
        from tasks_app.pool.connection.psycopg_connection import do  # noqa: PLC0415  it brings psycopg
    return _DOERS.setdefault(kind, do)


def _do(connection: Connection, step: Statement | Copy) -> Rows:
    if isinstance(step, Copy) or _is_unheard(connection):
        return below(connection, step)
    if connection.dialect.driver == "psycopg":  # its own words: nothing is left to be compiled
        result = connection.exec_driver_sql(step.sql, step.values)
    else:
        result = connection.execute(_neutral(step.sql), step.values)
    return result.fetchall() if step.yields else ()


def _is_unheard(connection: Connection) -> bool:
    """Whether SQLAlchemy would only pass a statement on, which costs a fifth of a new task."""
    dialect = connection.dialect
    try:
        heard = connection._has_events or connection.engine._has_events or connection._echo  # noqa: SLF001
    except AttributeError:  # it says so by names that we do not know (runtime.driver_internals)
        return False
    return dialect.driver == "psycopg" and not dialect.is_async and not heard


def ask(connection: Connection, step: Statement) -> Rows:
    """Ask on an engine of our own; SQLAlchemy takes as long for a small statement as the server."""
    if connection.dispatch.before_cursor_execute:  # somebody wants to see it
        return connection.exec_driver_sql(step.sql, step.values).fetchall()
    return below(connection, step)


def below(connection: Connection, step: Statement | Copy) -> Rows:
    """Carry out a step on psycopg's own connection; its errors come out as SQLAlchemy's."""
    import psycopg  # noqa: PLC0415  as its connection is here, this costs nothing

    from tasks_app.pool.connection import psycopg_connection  # noqa: PLC0415

    if not connection.in_transaction():
        connection.begin()  # or it would see nothing to commit
    pooled = connection.connection
    driver: Any = pooled.driver_connection
    try:
        if isinstance(driver, psycopg.AsyncConnection):
            rows: Rows = pooled.run_async(lambda driver: psycopg_connection.ado(driver, step))
            return rows
        return psycopg_connection.do(driver, step)
    except psycopg.Error as error:
        if driver.closed:
            connection.exec_driver_sql("SELECT 1")  # so that SQLAlchemy notes the loss, and says so
        values = step.values if isinstance(step, Statement) else None
        raise DBAPIError.instance(
            step.sql,
            values,
            error,
            psycopg.Error,
            hide_parameters=connection.engine.hide_parameters,
            dialect=connection.dialect,
        ) from error


def in_psycopgs_words(statement: str) -> str:
    """Return a statement of ours, with values ``:name``, as :func:`ask` takes it."""
    from sqlalchemy.dialects.postgresql.psycopg import (  # noqa: PLC0415  producers need none
        PGDialect_psycopg,
    )

    return str(text(statement).compile(dialect=PGDialect_psycopg()))  # type: ignore[no-untyped-call]


@functools.lru_cache(256)
def _neutral(sql: str) -> TextClause:
    """Return the statement for SQLAlchemy's other drivers."""
    return text(re.sub(r"%\((\w+)\)s", r":\1", sql))


Rows: TypeAlias = Sequence[Any]


class Statement(NamedTuple):
    """A statement whose rows are wanted."""

    sql: str
    values: Mapping[str, Any]
    yields: bool = True  # false: it has no rows, such as a SAVEPOINT


class Copy(NamedTuple):
    """Rows that ``COPY … FROM STDIN`` takes, as pieces of its text."""

    sql: str
    pieces: Iterable[str]


Statements: TypeAlias = Generator[Statement | Copy, Rows, T]
