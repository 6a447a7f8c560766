"""psycopg's own connections: statements, COPY, and the part of a Connection that we use."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any, TypeAlias, cast

import psycopg
from psycopg.abc import Loader
from psycopg.pq import Format, PipelineStatus
from psycopg.pq.abc import PGconn
from psycopg.rows import tuple_row
from sqlalchemy import Connection, TextClause
from sqlalchemy.engine.result import IteratorResult, Result, SimpleResultMetaData
from sqlalchemy.util import await_only as await_

from tasks_app.domain.errors import TasksError
from tasks_app.pool.connection.execute import Copy, Rows, Statement, to_psycopg_sql
from tasks_app.pool.connection.sessions import READABLE_STYLES, is_readable

_TYPES = (
    *("bool", "int2", "int4", "int8", "float8", "numeric", "text", "varchar", "uuid"),
    *("json", "jsonb", "date", "time", "timestamptz", "interval"),
)
Raw: TypeAlias = psycopg.Connection[Any]
AsyncRaw: TypeAlias = psycopg.AsyncConnection[Any]
Values = Mapping[str, Any] | list[Mapping[str, Any]]
Cursor = psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]


def on_psycopg(raw: Raw | AsyncRaw) -> Connection:
    """Return what our statements take for a Connection of SQLAlchemy."""
    kind = _OnAsyncPsycopg if isinstance(raw, psycopg.AsyncConnection) else OnPsycopg
    connection = cast("Connection", kind(raw))
    if not is_readable(raw):
        connection.execute(READABLE_STYLES)
    return connection


class OnPsycopg:
    def __init__(self, raw: Any) -> None:
        self._raw = raw

    @property
    def pgconn(self) -> PGconn:
        return self._raw.pgconn  # type: ignore[no-any-return]

    def execute(self, statement: TextClause, values: Values | None = None) -> Result[Any]:
        with psycopg.Cursor(self._raw, row_factory=tuple_row) as cursor:
            _set_loaders(cursor)
            with self._raw.pipeline() if is_in_pipeline(self._raw) else nullcontext():
                if isinstance(values, list):
                    cursor.executemany(_sql(statement.text), values)
                else:
                    cursor.execute(_sql(statement.text), values or {})
            return _result(cursor, cursor.fetchall() if cursor.description else [])


class _OnAsyncPsycopg(OnPsycopg):
    """For use in a greenlet of SQLAlchemy's."""

    def do(self, step: Statement | Copy) -> Rows:  # run_statements calls it
        if isinstance(step, Copy):
            return await_(ado(self._raw, step))
        return await_(self._execute(step.sql.encode(), step.values)).fetchall()

    def execute(self, statement: TextClause, values: Values | None = None) -> Result[Any]:
        return await_(self._execute(_sql(statement.text), values or {}))

    async def _execute(self, sql: bytes, values: Values) -> Result[Any]:
        async with psycopg.AsyncCursor(self._raw, row_factory=tuple_row) as cursor:
            _set_loaders(cursor)
            async with self._raw.pipeline() if is_in_pipeline(self._raw) else nullcontext():
                if isinstance(values, list):
                    await cursor.executemany(sql, values)
                else:
                    await cursor.execute(sql, values)
            return _result(cursor, await cursor.fetchall() if cursor.description else [])


@cache
def _sql(statement: str) -> bytes:
    return to_psycopg_sql(statement).encode()


class _Rows(IteratorResult[Any]):
    rowcount: int


def _result(cursor: Cursor, rows: list[Any]) -> Result[Any]:
    names = [column.name for column in cursor.description or ()]
    result = _Rows(SimpleResultMetaData(names), iter(rows))
    result.rowcount = cursor.rowcount
    return result


def _set_loaders(cursor: Cursor) -> None:
    """Load our types as psycopg does by default, whatever loaders the connection's owner set."""
    for name, loader in _loaders():
        cursor.adapters.register_loader(name, loader)


@cache
def _loaders() -> list[tuple[str, type[Loader]]]:
    known = psycopg.adapters
    found = [(name, known.get_loader(known.types[name].oid, Format.TEXT)) for name in _TYPES]
    return [(name, loader) for name, loader in found if loader is not None]


def is_in_pipeline(connection: Raw | AsyncRaw) -> bool:
    return connection.pgconn.pipeline_status != PipelineStatus.OFF


_CACHED_CURSOR = "_tasks_app_cursor"
"""A connection's attribute: a cursor that has learned how to write values saves 4 % of a task."""
FEW = 10  # rows of its last answer that such a cursor may hold


def do(connection: Raw, step: Statement | Copy) -> Rows:
    cursor = vars(connection).pop(_CACHED_CURSOR, None)  # one thread at a time has it
    if cursor is None:
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)  # theirs may be another
    if isinstance(step, Copy):
        with cursor.copy(step.sql) as copy:
            for piece in step.pieces:
                copy.write(piece)
        return ()
    try:
        cursor.execute(step.sql, step.values)
    except UnicodeEncodeError as error:
        raise _encoding_error(error) from None  # the error contains the values
    rows: Rows = cursor.fetchall() if step.yields else ()
    if len(rows) <= FEW:
        vars(connection)[_CACHED_CURSOR] = cursor
    return rows


async def ado(connection: AsyncRaw, step: Statement | Copy) -> Rows:
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        if isinstance(step, Statement):
            try:
                await cursor.execute(step.sql, step.values)
            except UnicodeEncodeError as error:
                raise _encoding_error(error) from None
            return await cursor.fetchall() if step.yields else ()
        async with cursor.copy(step.sql) as copy:
            for piece in step.pieces:
                await copy.write(piece)
    return ()


def _encoding_error(error: UnicodeEncodeError) -> TasksError:
    return TasksError(
        f"The client_encoding of this connection ({error.encoding}) lacks a character of the "
        "values. Connect with client_encoding=utf8."
    )
