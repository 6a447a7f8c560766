"""The trigger that tells by NOTIFY of tasks whoever created them, if an operator wants that."""

from __future__ import annotations

from sqlalchemy import Connection, text

from tasks_app.pool.tables import PENDING, table

_INSTALLED = text(f"""
    SELECT EXISTS (SELECT FROM pg_trigger
                   WHERE tgrelid = to_regclass('{PENDING}') AND tgname = 'task_notify')
""")
_INSTALL = f"""
    CREATE TRIGGER task_notify AFTER INSERT ON {PENDING} REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION {table("task_notify")}()
"""
_REMOVE = f"DROP TRIGGER task_notify ON {PENDING}"


def is_installed(connection: Connection) -> bool:
    return bool(connection.scalar(_INSTALLED))


def install(connection: Connection) -> bool:
    """Make the trigger; False: it was there. It waits for open transactions that create tasks."""
    return _change(connection, _INSTALL, wanted=True)


def remove(connection: Connection) -> bool:
    """Drop it; False: it was not there."""
    return _change(connection, _REMOVE, wanted=False)


def _change(connection: Connection, statement: str, *, wanted: bool) -> bool:
    if is_installed(connection) == wanted:
        return False
    connection.execute(text(statement))
    return True
