"""The schema's version: migrate to the newest one, or check that this code fits it."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, text

from tasks_app.domain.config.unreachable import READ_ONLY
from tasks_app.domain.errors import SchemaError
from tasks_app.pool.tables import VERSION, table

if TYPE_CHECKING:
    from alembic.config import Config


Say = Callable[[str], None]


def migrate(connection: Connection) -> tuple[str | None, str]:
    """Upgrade to the newest version in the caller's transaction; return (before, after)."""
    # This locks the pool until the commit, so it is for new databases; ``runtime.migration``
    # upgrades a database in use. Two simultaneous calls run one after the other.
    lock_migrations(connection)
    before = current(connection)
    if is_behind(connection):
        upgrade(connection)
    return before, current(connection) or newest()


def upgrade(connection: Connection, say: Say = lambda _: None) -> None:
    """Run the missing migrations, each in its own transaction unless one is open already."""
    from alembic import command  # noqa: PLC0415

    config = _config()
    config.attributes.update(connection=connection, say=say)
    command.upgrade(config, "head")


_TURN = text("SELECT pg_try_advisory_xact_lock(7246101957004331002)")


def lock_migrations(
    connection: Connection, say: Say = lambda _: None, refused: Callable[[], None] = lambda: None
) -> None:
    """Wait until no other process migrates; the lock lasts until the transaction ends.

    It polls, and calls ``refused`` before each pause. A statement that waited would hold a
    snapshot, as may the transaction of a refused one. The other's CREATE INDEX CONCURRENTLY waits
    for all snapshots: for ever, as PostgreSQL detects no deadlock here. So ``refused`` ends the
    transaction if the other process may build an index.
    """
    waits = False
    while not connection.execute(_TURN).scalar_one():
        refused()
        if not waits:
            say("Another migrate is running; this one waits for it.")
            waits = True
        time.sleep(0.1)


_NO_TIMEOUTS = text("""
    SELECT set_config(name, '0', true) FROM pg_settings
    WHERE name IN ('statement_timeout', 'idle_in_transaction_session_timeout',
                   'transaction_timeout')""")


def be_patient(connection: Connection) -> None:
    """Lift the timeouts that a role or a database sets, for this transaction."""
    connection.execute(_NO_TIMEOUTS)


def migration_sql() -> str:
    from alembic import command  # noqa: PLC0415

    output = io.StringIO()
    command.upgrade(_config(output), "head", sql=True)
    return output.getvalue()


def current(connection: Connection) -> str | None:
    """Return the version of the schema in the database; None: it has no schema."""
    return _versions_in(connection)[0]


def newest() -> str:
    return max(_versions())


def is_behind(connection: Connection) -> bool:
    """Tell whether migrations of this code are missing.

    Raises:
        SchemaError: this code cannot migrate the schema.
    """
    found = current(connection)
    if found is None or found in _versions():
        return found != newest()
    if found < newest():
        raise SchemaError(
            f"The schema has version {found}, which this code does not know. "
            "Migrate with the release that created it, then with this one."
        )
    check_version(connection)
    return False


def check_schema(connection: Connection) -> str | None:
    """Check that this code may run on the schema, and write; return a notice if that is newer.

    Raises:
        SchemaError: it is missing, older, too new for this code, or read-only.
    """
    if connection.execute(text("SHOW transaction_read_only")).scalar() == "on":
        raise SchemaError(READ_ONLY)
    return check_version(connection)


def check_version(connection: Connection) -> str | None:
    """Do the same for a reader. A role that may not read the version, as old producers, passes."""
    if connection.execute(_READABLE).scalar() is False:
        return None
    found, oldest = _versions_in(connection)
    needed = newest()
    if found is None or found < needed:
        state = f"has version {found}" if found else "is missing"
        raise SchemaError(f"The schema {state}; {needed} is needed. Run: tasks-app migrate")
    if found == needed:
        return None
    if oldest is None or needed < oldest:
        raise SchemaError(
            f"This code is older than the schema: the schema has version {found} and needs code of "
            f"{oldest or found} or newer, this code is of {needed}. Upgrade tasks_app."
        )
    return (
        f"The schema has version {found}; this code is of {needed}, and may still run on it. "
        "Upgrade tasks_app soon."
    )


_READABLE = text(f"SELECT has_table_privilege(to_regclass('{VERSION}'), 'SELECT')")


def _versions_in(connection: Connection) -> tuple[str | None, str | None]:
    if connection.execute(_READABLE).scalar() is None:
        return None, None
    row = connection.execute(text(f"SELECT version_num, oldest_code FROM {VERSION}")).first()
    return (row[0], row[1]) if row else (None, None)


def _versions() -> set[str]:
    files = (_migrations() / "versions").glob("[0-9]*.py")
    return {path.name.partition("_")[0] for path in files}


def _migrations() -> Path:
    inside = Path(__file__).parents[1] / "_migrations"  # of an installed package
    return inside if inside.is_dir() else Path(__file__).parents[2] / "migrations"


def _config(output: io.StringIO | None = None) -> Config:
    from alembic.config import Config  # noqa: PLC0415

    config = Config(output_buffer=output) if output else Config()
    config.set_main_option("script_location", str(_migrations()))
    return config


_IS_INVALID = text("SELECT NOT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:index)")


def build_index(name: str, of: str, what: str) -> None:
    """Build an index concurrently; in the caller's transaction, in the usual way."""
    # An invalid index that a failed attempt left is dropped first.
    from alembic import op  # noqa: PLC0415

    context = op.get_context()
    index, rest = table(name), f"IF NOT EXISTS {name} ON {table(of)} {what}"
    if context.as_sql or not context.opts["transaction_per_migration"]:
        op.execute(f"CREATE INDEX {rest}")
        return
    with context.autocommit_block():
        context.opts["say"](f"building the index {name}; others can write meanwhile")
        if op.get_bind().execute(_IS_INVALID, {"index": index}).scalar():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}")
        op.execute(f"CREATE INDEX CONCURRENTLY {rest}")
