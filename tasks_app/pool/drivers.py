"""How a statement gets into the caller's transaction, whatever kind of connection that is.

A verb that speaks to all of them is a plan: a generator that yields what it wants to ask or to copy
and is sent the rows. Statements mark their values as psycopg does: ``%(name)s``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row
from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DBAPIError

T = TypeVar("T")
Rows: TypeAlias = Sequence[Any]
Raw: TypeAlias = psycopg.Connection[Any]
AsyncRaw: TypeAlias = psycopg.AsyncConnection[Any]


class Ask(NamedTuple):
    """A statement whose rows are wanted."""

    sql: str
    values: Mapping[str, Any]


class Copy(NamedTuple):
    """Rows that ``COPY … FROM STDIN`` takes, as pieces of its text."""

    sql: str
    pieces: Iterable[str]


Plan: TypeAlias = Generator[Ask | Copy, Rows, T]


def copies(connection: Connection | Raw | AsyncRaw) -> bool:
    """Whether COPY can be had here: with psycopg, outside of a pipeline."""
    if isinstance(connection, Connection):
        if connection.dialect.driver != "psycopg":
            return False
        connection = connection.connection.driver_connection  # type: ignore[assignment]
    return connection.pgconn.pipeline_status == PipelineStatus.OFF  # type: ignore[union-attr]


def carry_out(connection: Connection | Raw, plan: Plan[T]) -> T:
    """Do what the plan says, and return what it returns."""
    do = _through_sqlalchemy if isinstance(connection, Connection) else _through_psycopg
    try:
        step = next(plan)
        while True:
            step = plan.send(do(connection, step))  # type: ignore[arg-type]
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def acarry_out(connection: AsyncRaw, plan: Plan[T]) -> T:
    """Do the same on psycopg's async connection."""
    try:
        step = next(plan)
        while True:
            step = plan.send(await _through_async_psycopg(connection, step))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _through_sqlalchemy(connection: Connection, step: Ask | Copy) -> Rows:
    if isinstance(step, Copy):
        return _copy_below(connection, step)
    if connection.dialect.driver == "psycopg":  # its own words: nothing is left to be compiled
        return connection.exec_driver_sql(step.sql, step.values).fetchall()
    return connection.execute(_neutral(step.sql), step.values).fetchall()


def _copy_below(connection: Connection, step: Copy) -> Rows:
    """COPY is psycopg's alone; its errors come out as SQLAlchemy's, as those of statements do."""
    below = connection.connection
    driver: Any = below.driver_connection
    try:
        if connection.dialect.is_async:
            rows: Rows = below.run_async(lambda raw: _through_async_psycopg(raw, step))
            return rows
        return _through_psycopg(driver, step)
    except psycopg.Error as error:
        if driver.closed:
            connection.exec_driver_sql("SELECT 1")  # so that SQLAlchemy notes the loss, and says so
        raise DBAPIError.instance(
            step.sql, None, error, psycopg.Error, dialect=connection.dialect
        ) from error


def _through_psycopg(connection: Raw, step: Ask | Copy) -> Rows:
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:  # whatever theirs is
        if isinstance(step, Ask):
            return cursor.execute(step.sql, step.values).fetchall()
        with cursor.copy(step.sql) as copy:
            for piece in step.pieces:
                copy.write(piece)
    return ()


async def _through_async_psycopg(connection: AsyncRaw, step: Ask | Copy) -> Rows:
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        if isinstance(step, Ask):
            await cursor.execute(step.sql, step.values)
            return await cursor.fetchall()
        async with cursor.copy(step.sql) as copy:
            for piece in step.pieces:
                await copy.write(piece)
    return ()


@functools.lru_cache(256)
def _neutral(sql: str) -> TextClause:
    """Return the statement for SQLAlchemy's other drivers."""
    return text(re.sub(r"%\((\w+)\)s", r":\1", sql))
