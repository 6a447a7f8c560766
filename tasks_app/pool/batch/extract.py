"""Extract: a table or query as CSV, by COPY."""

from __future__ import annotations

from typing import Any, BinaryIO

from sqlalchemy import Connection, select

from tasks_app.pool.batch.inline import inline
from tasks_app.pool.batch.relation import EVERYTHING, Source, find


def extract(connection: Connection, source: Source, out: BinaryIO) -> int:
    """Write all rows as CSV with a header, as one snapshot has them; return how many bytes."""
    relation = find(connection, source)
    rows = select(EVERYTHING).select_from(relation.rows_of)
    sql = f"COPY ({inline(connection, rows)}) TO STDOUT (FORMAT csv, HEADER, ENCODING 'UTF8')"
    driver: Any = connection.connection.driver_connection
    written = 0
    with driver.cursor() as cursor, cursor.copy(sql) as copied:
        for piece in copied:
            written += out.write(piece)
    return written
