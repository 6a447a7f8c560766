"""Transactions that cannot write and do not last: for pages, which anybody may reload."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, create_engine, event

from tasks_app.runtime.db.errors import mark
from tasks_app.runtime.db.session_settings import NETWORK
from tasks_app.runtime.fork_safety import keep_from_forks

CONNECTIONS = 4
_FIRST = "SET TRANSACTION READ ONLY"
_THEN = """SELECT set_config('statement_timeout', '2000', true), set_config('jit', 'off', true),
    set_config('lock_timeout', '500', true)"""


def reading_engine(url: str) -> Engine:
    """Return an engine of at most CONNECTIONS. It sets each transaction, so poolers are welcome."""
    engine = create_engine(
        url,
        isolation_level="READ COMMITTED",
        hide_parameters=True,
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=2,
        pool_pre_ping=True,
        connect_args={**NETWORK, "prepare_threshold": None},
    )
    event.listen(engine, "begin", _settle_in)
    event.listen(engine, "handle_error", mark)
    keep_from_forks(engine)
    return engine


def _settle_in(connection: Connection) -> None:
    connection.exec_driver_sql(_FIRST)
    connection.exec_driver_sql(_THEN)
