"""What verbs use of a Connection, on one of psycopg's own: ``execute``, and rows with names.

Types are read as psycopg reads them by itself: the owner of the connection may read others. In a
pipeline each statement waits for its answer, by a pipeline of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any, cast

import psycopg
from psycopg.abc import Loader
from psycopg.pq import Format
from psycopg.pq.abc import PGconn
from psycopg.rows import tuple_row
from sqlalchemy import Connection, TextClause
from sqlalchemy.engine.result import IteratorResult, Result, SimpleResultMetaData
from sqlalchemy.util import await_only as await_

from tasks_app.pool.connection import psycopg_io
from tasks_app.pool.connection.execute import in_psycopgs_words
from tasks_app.pool.connection.psycopg_io import AsyncRaw, Raw, is_in_pipeline
from tasks_app.pool.connection.readable import STYLES, is_readable
from tasks_app.pool.connection.steps import Copy, Rows, Statement

_TYPES = (
    *("bool", "int2", "int4", "int8", "float8", "numeric", "text", "varchar", "uuid"),
    *("json", "jsonb", "date", "time", "timestamptz", "interval"),
)
Values = Mapping[str, Any] | list[Mapping[str, Any]]
Cursor = psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]


class OnPsycopg:
    """For verbs, a Connection."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    @property
    def pgconn(self) -> PGconn:
        return self._raw.pgconn  # type: ignore[no-any-return]

    def execute(self, statement: TextClause, values: Values | None = None) -> Result[Any]:
        with psycopg.Cursor(self._raw, row_factory=tuple_row) as cursor:
            _read_plainly(cursor)
            with self._raw.pipeline() if is_in_pipeline(self._raw) else nullcontext():
                if isinstance(values, list):
                    cursor.executemany(_words(statement.text), values)
                else:
                    cursor.execute(_words(statement.text), values or {})
            return _result(cursor, cursor.fetchall() if cursor.description else [])


class _OnAsyncPsycopg(OnPsycopg):
    """To be used in a greenlet of SQLAlchemy's."""

    def do(self, step: Statement | Copy) -> Rows:
        """Be as any connection for :func:`carry_out`."""
        if isinstance(step, Copy):
            return await_(psycopg_io.ado(self._raw, step))
        return await_(self._execute(step.sql.encode(), step.values)).fetchall()

    def execute(self, statement: TextClause, values: Values | None = None) -> Result[Any]:
        return await_(self._execute(_words(statement.text), values or {}))

    async def _execute(self, words: bytes, values: Values) -> Result[Any]:
        async with psycopg.AsyncCursor(self._raw, row_factory=tuple_row) as cursor:
            _read_plainly(cursor)
            async with self._raw.pipeline() if is_in_pipeline(self._raw) else nullcontext():
                if isinstance(values, list):
                    await cursor.executemany(words, values)
                else:
                    await cursor.execute(words, values)
            return _result(cursor, await cursor.fetchall() if cursor.description else [])


def on_psycopg(raw: Raw | AsyncRaw) -> Connection:
    kind = _OnAsyncPsycopg if isinstance(raw, psycopg.AsyncConnection) else OnPsycopg
    connection = cast("Connection", kind(raw))
    if not is_readable(raw):
        connection.execute(STYLES)
    return connection


class _Rows(IteratorResult[Any]):
    rowcount: int


def _result(cursor: Cursor, rows: list[Any]) -> Result[Any]:
    names = [column.name for column in cursor.description or ()]
    result = _Rows(SimpleResultMetaData(names), iter(rows))
    result.rowcount = cursor.rowcount
    return result


def _read_plainly(cursor: Cursor) -> None:
    for name, loader in _loaders():
        cursor.adapters.register_loader(name, loader)


@cache
def _loaders() -> list[tuple[str, type[Loader]]]:
    known = psycopg.adapters
    found = [(name, known.get_loader(known.types[name].oid, Format.TEXT)) for name in _TYPES]
    return [(name, loader) for name, loader in found if loader is not None]


@cache
def _words(statement: str) -> bytes:
    return in_psycopgs_words(statement).encode()
