"""psycopg's own connections. Imported when there is one, for psycopg is slow to import."""

from __future__ import annotations

from typing import Any, TypeAlias

import psycopg
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row

from tasks_app.domain.errors import TasksError
from tasks_app.pool.connection.steps import Copy, Rows, Statement

Raw: TypeAlias = psycopg.Connection[Any]
AsyncRaw: TypeAlias = psycopg.AsyncConnection[Any]


_AT_HAND = "_tasks_app_cursor"
"""A connection's attribute: a cursor that has learned how to write values saves 4 % of a task."""
FEW = 10
"""Rows of its last answer that such a cursor may hold."""


def is_in_pipeline(connection: Raw | AsyncRaw) -> bool:
    """Whether COPY would be refused."""
    return connection.pgconn.pipeline_status != PipelineStatus.OFF


def do(connection: Raw, step: Statement | Copy) -> Rows:
    cursor = vars(connection).pop(_AT_HAND, None)  # by one thread at a time
    if cursor is None:
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)  # whatever theirs is
    if isinstance(step, Copy):
        with cursor.copy(step.sql) as copy:
            for piece in step.pieces:
                copy.write(piece)
        return ()
    try:
        cursor.execute(step.sql, step.values)
    except UnicodeEncodeError as error:
        raise _unspeakable(error) from None  # it has what was to be written in it
    rows: Rows = cursor.fetchall() if step.yields else ()
    if len(rows) <= FEW:
        vars(connection)[_AT_HAND] = cursor
    return rows


def _unspeakable(error: UnicodeEncodeError) -> TasksError:
    return TasksError(
        f"The client_encoding of this connection ({error.encoding}) lacks a character that is to "
        "be written. Connect with client_encoding=utf8."
    )


async def ado(connection: AsyncRaw, step: Statement | Copy) -> Rows:
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        if isinstance(step, Statement):
            try:
                await cursor.execute(step.sql, step.values)
            except UnicodeEncodeError as error:
                raise _unspeakable(error) from None
            return await cursor.fetchall() if step.yields else ()
        async with cursor.copy(step.sql) as copy:
            for piece in step.pieces:
                await copy.write(piece)
    return ()
