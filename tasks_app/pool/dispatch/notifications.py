"""Wakes listeners by NOTIFY when a queue has work, from this code or from a trigger."""

from __future__ import annotations

from sqlalchemy import Connection, text

from tasks_app.pool.connection.sessions import driver_of
from tasks_app.pool.tables import PENDING, table

_CHANNEL = f"'tasks_app_' || CAST(CAST(to_regclass('{PENDING}') AS oid) AS text)"
# NOTIFY keeps a lock of the whole server until its COMMIT is written. A notice may get lost, so
# nobody waits for a disk meanwhile.
_NOTIFY = text(f"""
    SELECT pg_notify({_CHANNEL}, :queue) FROM set_config('synchronous_commit', 'off', true)""")
_READY = text(f"SELECT {_CHANNEL}, set_config('idle_session_timeout', '0', false)")


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


_INSTALLED = text(f"""
    SELECT EXISTS (SELECT FROM pg_trigger
                   WHERE tgrelid = to_regclass('{PENDING}') AND tgname = 'task_notify')""")
_INSTALL = f"""
    CREATE TRIGGER task_notify AFTER INSERT ON {PENDING} REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION {table("task_notify")}()
"""
_REMOVE = f"DROP TRIGGER task_notify ON {PENDING}"


def is_trigger_installed(connection: Connection) -> bool:
    return bool(connection.scalar(_INSTALLED))


def install_trigger(connection: Connection) -> bool:
    """Make the trigger; False: it was there. It waits for open transactions that create tasks."""
    return _change(connection, _INSTALL, wanted=True)


def remove_trigger(connection: Connection) -> bool:
    """Drop it; False: it was not there."""
    return _change(connection, _REMOVE, wanted=False)


def _change(connection: Connection, statement: str, *, wanted: bool) -> bool:
    if is_trigger_installed(connection) == wanted:
        return False
    connection.execute(text(statement))
    return True
