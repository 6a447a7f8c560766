"""Inline: statements of SQLAlchemy as one text with their values in it, where none can be bound."""

from __future__ import annotations

from typing import Any

from psycopg import ClientCursor
from sqlalchemy import ColumnElement, Connection, CursorResult, Select


def inline(connection: Connection, statement: Select[Any] | ColumnElement[Any]) -> str:
    """Return the statement with its values, quoted by the driver: for views, columns and COPY."""
    compiled = statement.compile(dialect=connection.dialect)
    driver: Any = connection.connection.driver_connection
    with ClientCursor(driver) as cursor:
        return cursor.mogrify(str(compiled), compiled.params)


def execute(connection: Connection, sql: str) -> CursorResult[Any]:
    """Execute such a text in the caller's transaction."""
    return connection.exec_driver_sql(sql.replace("%", "%%"))
