"""Clock: what time it is for the database."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, text

from tasks_app.pool.tables import NOW

_TELL = text(f"SELECT CAST(EXTRACT(EPOCH FROM {NOW}) AS float)")


def tell(connection: Connection, *, now: datetime | None = None) -> float:
    """Return the seconds since 1970."""
    return float(connection.execute(_TELL, {"now": now}).scalar_one())


def instant(connection: Connection) -> datetime:
    return datetime.fromtimestamp(tell(connection), UTC)
