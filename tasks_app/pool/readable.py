"""Sessions of others in which psycopg can read no interval, or no instant."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

_STYLES = """
    SELECT set_config('IntervalStyle', 'postgres', true), set_config('DateStyle', 'ISO', true)
"""


def make_readable(connection: Connection) -> None:
    """Let psycopg read both until the transaction ends; only where its styles are others.

    It knows the styles without asking. The order of days and months stays as it is.
    """
    driver: Any = connection.connection.driver_connection
    session = getattr(driver, "pgconn", None)
    if session is None:  # another driver, which has its own ways
        return
    spans = session.parameter_status(b"IntervalStyle") or b"postgres"
    dates = session.parameter_status(b"DateStyle") or b"ISO"
    if spans != b"postgres" or not dates.startswith(b"ISO"):
        connection.exec_driver_sql(_STYLES)
