"""Notices by NOTIFY: that a queue has work. They only wake; what there is, a look finds out.

The channel is the table's own: pools of one database do not hear each other.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from tasks_app.pool.connection.listening import driver_of
from tasks_app.pool.tables import PENDING

_CHANNEL = f"'tasks_app_' || CAST(CAST(to_regclass('{PENDING}') AS oid) AS text)"
# NOTIFY keeps a lock of the whole server until its COMMIT is written. A notice may get lost, so
# nobody waits for a disk meanwhile.
_NOTIFY = text(f"""
    SELECT pg_notify({_CHANNEL}, :queue) FROM set_config('synchronous_commit', 'off', true)
""")
_READY = text(f"""
    SELECT {_CHANNEL}, set_config('idle_session_timeout', '0', false)
""")


def notify(connection: Connection, queue: str) -> None:
    """Tell all who listen that the queue has work."""
    connection.execute(_NOTIFY, {"queue": queue})


def listen(connection: Connection) -> None:
    """Let the server send notices to a connection with autocommit, however long it is idle."""
    channel, _ = connection.execute(_READY).one()
    connection.exec_driver_sql(f'LISTEN "{channel}"')


def received(connection: Connection) -> set[str]:
    """Return the queues of the notices that have come, without waiting for any.

    Raises:
        psycopg.OperationalError: the connection is lost.
    """
    driver = driver_of(connection)
    driver.pgconn.consume_input()
    queues = set()
    while notice := driver.pgconn.notifies():
        queues.add(notice.extra.decode())
    return queues
