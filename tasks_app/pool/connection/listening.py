"""Whether a connection can listen: NOTIFY reaches psycopg's, and none behind a pooler."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

_SERVER = text("SELECT pg_backend_pid()")


def driver_of(connection: Connection) -> Any:
    """Return psycopg's connection, also of one that belongs to no pool."""
    return connection.connection.dbapi_connection


def is_pooled(connection: Connection) -> bool:
    """Whether a pooler stands between us and the server, as PgBouncer does.

    It tells another process id than the server's, and what it gives us for a transaction may serve
    another client in the next: that one would get our notices.
    """
    return bool(driver_of(connection).info.backend_pid != connection.scalar(_SERVER))
