"""The schema of a measurement: made, guarded while it lasts, dropped by this run or a later one."""

from __future__ import annotations

import re
import secrets

from sqlalchemy import Connection, text

from tasks_app.domain.config.unreachable import READ_ONLY
from tasks_app.domain.errors import SchemaError

PREFIX = "tasks_app_bench_"
_OURS = re.compile(rf"{PREFIX}[0-9a-f]{{8}}")
_SAYS = "Made by make size, which drops it. Its next run drops one that was left behind."
_LEFT = text(f"""
    SELECT n.nspname FROM pg_namespace n
    WHERE n.nspname ~ '^{PREFIX}[0-9a-f]{{8}}$' AND pg_has_role(n.nspowner, 'USAGE')
      AND obj_description(n.oid, 'pg_namespace') = :says
    ORDER BY 1
""")
_THERE = text("SELECT to_regnamespace(:name) IS NOT NULL")
_GUARD = text("SELECT pg_try_advisory_xact_lock_shared(hashtextextended(:name, 7246101957))")
_ALONE = text("SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 7246101957))")
_MAY = text("""
    SELECT current_setting('transaction_read_only') = 'on' OR pg_is_in_recovery() AS reads,
        has_database_privilege(current_database(), 'CREATE') AS makes,
        current_database() AS database, quote_ident(current_database()) AS quoted,
        current_user AS role, quote_ident(current_user) AS quoted_role
""")


def new_name() -> str:
    return PREFIX + secrets.token_hex(4)


def check_may_make(connection: Connection) -> tuple[str, str]:
    """Return the names of the database and of the role.

    Raises:
        SchemaError: this role may not make a schema here.
    """
    may = connection.execute(_MAY).one()
    if may.reads:
        raise SchemaError(READ_ONLY)
    if not may.makes:
        raise SchemaError(
            f"The role {may.role} may not make a schema in this database. Let its owner run: "
            f"GRANT CREATE ON DATABASE {may.quoted} TO {may.quoted_role}"
        )
    return may.database, may.role


def guard(connection: Connection, name: str) -> None:
    """Keep later runs from dropping it until the caller's transaction ends.

    A lock of the transaction: poolers give each transaction another session. Both processes of a
    run hold it: one that outlived the other would make the schema anew, without our comment.
    """
    connection.execute(_GUARD, {"name": name})
    # A query's portal keeps its snapshot until the next statement. CREATE INDEX CONCURRENTLY would
    # wait for it, and vacuum leave rows.
    connection.exec_driver_sql("SET LOCAL lock_timeout = 0")


def is_there(connection: Connection, name: str) -> bool:
    return bool(connection.execute(_THERE, {"name": name}).scalar_one())


def make(connection: Connection, name: str) -> None:
    connection.exec_driver_sql(f"CREATE SCHEMA {_checked(name)}")
    connection.exec_driver_sql(f"COMMENT ON SCHEMA {name} IS '{_SAYS}'")


def drop(connection: Connection, name: str) -> None:
    connection.exec_driver_sql(f"DROP SCHEMA IF EXISTS {_checked(name)} CASCADE")


def left_behind(connection: Connection) -> list[str]:
    """Return schemas that nobody guards any more, and that this role may drop; now we alone do.

    One of that name without our comment is somebody else's.
    """
    found = connection.execute(_LEFT, {"says": _SAYS}).scalars().all()
    return [name for name in found if connection.execute(_ALONE, {"name": name}).scalar_one()]


def _checked(name: str) -> str:
    if not _OURS.fullmatch(name):
        raise ValueError(f"{name!r} is no schema of a measurement")
    return name
