"""psycopg's own connections. Imported when there is one, for psycopg is slow to import."""

from __future__ import annotations

from typing import Any, TypeAlias

import psycopg
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row

from tasks_app.pool.plan import Ask, Copy, Rows

Raw: TypeAlias = psycopg.Connection[Any]
AsyncRaw: TypeAlias = psycopg.AsyncConnection[Any]


def is_in_pipeline(connection: Raw | AsyncRaw) -> bool:
    """Whether COPY would be refused."""
    return connection.pgconn.pipeline_status != PipelineStatus.OFF


def do(connection: Raw, step: Ask | Copy) -> Rows:
    """Carry out a step of a plan."""
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:  # whatever theirs is
        if isinstance(step, Ask):
            cursor.execute(step.sql, step.values)
            return cursor.fetchall() if step.yields else ()
        with cursor.copy(step.sql) as copy:
            for piece in step.pieces:
                copy.write(piece)
    return ()


async def ado(connection: AsyncRaw, step: Ask | Copy) -> Rows:
    """Carry out a step of a plan, on an async connection."""
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        if isinstance(step, Ask):
            await cursor.execute(step.sql, step.values)
            return await cursor.fetchall() if step.yields else ()
        async with cursor.copy(step.sql) as copy:
            for piece in step.pieces:
                await copy.write(piece)
    return ()
