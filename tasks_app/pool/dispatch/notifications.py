"""Wakes listeners by NOTIFY when a queue has work, from this code or from a trigger."""

from __future__ import annotations

from sqlalchemy import Connection, text

from tasks_app.pool.connection.sessions import driver_of
from tasks_app.pool.tables import PENDING, table

_CHANNEL = f"'tasks_app_' || CAST(CAST(to_regclass('{PENDING}') AS oid) AS text)"
# NOTIFY holds a server-wide lock until its COMMIT is written. A lost notice does no harm, so this
# COMMIT does not wait for the disk.
_NOTIFY = text(f"""
    SELECT pg_notify({_CHANNEL}, :queue) FROM set_config('synchronous_commit', 'off', true)""")


def notify(connection: Connection, queue: str) -> None:
    connection.execute(_NOTIFY, {"queue": queue})


_READY = text(f"SELECT {_CHANNEL}, set_config('idle_session_timeout', '0', false)")


def listen(connection: Connection) -> None:
    """Listen on a connection with autocommit, which may be idle for any time."""
    channel, _ = connection.execute(_READY).one()
    connection.exec_driver_sql(f'LISTEN "{channel}"')


def received_queues(connection: Connection) -> set[str]:
    """Return the queues of the notices that have arrived, without waiting.

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
_INSTALL = text(f"""
    CREATE TRIGGER task_notify AFTER INSERT ON {PENDING} REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION {table("task_notify")}()""")


def is_trigger_installed(connection: Connection) -> bool:
    return bool(connection.scalar(_INSTALLED))


def install_trigger(connection: Connection) -> bool:
    """Return False if it exists. Waits for open transactions that create tasks."""
    if is_trigger_installed(connection):
        return False
    connection.execute(_INSTALL)
    return True


def remove_trigger(connection: Connection) -> bool:
    """Return False if there is none."""
    if not is_trigger_installed(connection):
        return False
    connection.execute(text(f"DROP TRIGGER task_notify ON {PENDING}"))
    return True
