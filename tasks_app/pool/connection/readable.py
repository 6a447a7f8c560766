"""Sessions of others in which psycopg can read no interval, or no instant."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

STYLES = text("""
    SELECT set_config('IntervalStyle', 'postgres', true), set_config('DateStyle', 'ISO', true)
""")


def make_readable(connection: Connection) -> None:
    """Let psycopg read both until the transaction ends; only where its styles are others.

    The order of days and months stays as it is.
    """
    if not is_readable(connection.connection.driver_connection):
        connection.execute(STYLES)


def is_readable(driver: Any) -> bool:
    """Whether psycopg reads both as it is. It knows the styles without asking."""
    session = getattr(driver, "pgconn", None)
    if session is None:  # another driver, which has its own ways
        return True
    spans = session.parameter_status(b"IntervalStyle") or b"postgres"
    dates = session.parameter_status(b"DateStyle") or b"ISO"
    return spans == b"postgres" and dates.startswith(b"ISO")
