"""The schema's version: bring it up to date, or say how it stands to this code."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from alembic import op
from sqlalchemy import Connection, text

from tasks_app.domain.config.unreachable import READ_ONLY
from tasks_app.domain.errors import SchemaError
from tasks_app.pool.tables import VERSION, table

if TYPE_CHECKING:
    from alembic.config import Config


_READABLE = text(f"SELECT has_table_privilege(to_regclass('{VERSION}'), 'SELECT')")
_VERSION = text(f"SELECT version_num, oldest_code FROM {VERSION}")
_READS = text("SHOW transaction_read_only")
_TURN = text("SELECT pg_try_advisory_xact_lock(7246101957004331002)")
_LOOK_EVERY_S = 0.1
_UNHURRIED = text("""
    SELECT set_config(name, '0', true) FROM pg_settings
    WHERE name IN ('statement_timeout', 'idle_in_transaction_session_timeout',
                   'transaction_timeout')""")
_INSIDE = Path(__file__).parents[1] / "_migrations"
_BESIDE = Path(__file__).parents[2] / "migrations"
Say = Callable[[str], None]


def migrate(connection: Connection) -> tuple[str | None, str]:
    """Upgrade to the newest version in the caller's transaction; return (before, after).

    That locks the pool until it commits: for databases that nobody uses yet. Where somebody may,
    ``runtime.migration`` does it. Two that try at once wait for each other.
    """
    take_turn(connection)
    before = current(connection)
    if is_behind(connection):
        upgrade(connection)
    return before, current(connection) or newest()


def upgrade(connection: Connection, say: Say = lambda _: None) -> None:
    """Run what is missing; each migration in its own transaction, unless one is open already."""
    from alembic import command  # noqa: PLC0415

    config = _config()
    config.attributes.update(connection=connection, say=say)
    command.upgrade(config, "head")


def take_turn(
    connection: Connection, say: Say = lambda _: None, refused: Callable[[], None] = lambda: None
) -> None:
    """Wait until nobody else migrates; the turn is the transaction's until it ends.

    It asks again and again, and calls ``refused`` each time before it waits. A statement that
    waited would hold a snapshot, and so may the transaction in which one has been refused. CREATE
    INDEX CONCURRENTLY of the one before waits for all snapshots: for ever, and no deadlock is
    found. Hence ``refused`` ends the transaction where the other may build an index so.
    """
    told = False
    while not connection.execute(_TURN).scalar_one():
        refused()
        if not told:
            say("Another migrate is at work; this one waits for it.")
            told = True
        time.sleep(_LOOK_EVERY_S)


def be_patient(connection: Connection) -> None:
    """Let the transaction last as long as it lasts, whatever a role or a database says."""
    connection.execute(_UNHURRIED)


def migration_sql() -> str:
    from alembic import command  # noqa: PLC0415

    output = io.StringIO()
    command.upgrade(_config(output), "head", sql=True)
    return output.getvalue()


def current(connection: Connection) -> str | None:
    """Return the version of the schema in the database; None: there is none."""
    found, _ = _look(connection)
    return found


def newest() -> str:
    return max(_versions())


def is_behind(connection: Connection) -> bool:
    """Tell whether migrations of this code are missing.

    Raises:
        SchemaError: the schema is not one that this code could bring up to date.
    """
    found = current(connection)
    if found is None or found in _versions():
        return found != newest()
    if found < newest():
        raise SchemaError(
            f"The schema has version {found}, which this code does not know. "
            "Migrate with the release that made it, then with this one."
        )
    check_version(connection)
    return False


def check_schema(connection: Connection) -> str | None:
    """Pass if this code may run on the schema, and write; return a notice if that is newer.

    Raises:
        SchemaError: it is missing, older, or newer than suits this code; or it is read-only.
    """
    if connection.execute(_READS).scalar() == "on":
        raise SchemaError(READ_ONLY)
    return check_version(connection)


def check_version(connection: Connection) -> str | None:
    """Do the same, for those who may only read.

    A role that may not read the version, as a producer's of old, passes.
    """
    if connection.execute(_READABLE).scalar() is False:
        return None
    found, oldest = _look(connection)
    needed = newest()
    if found is None or found < needed:
        state = f"has version {found}" if found else "is missing"
        raise SchemaError(f"The schema {state}; {needed} is needed. Run: tasks-app migrate")
    if found == needed:
        return None
    if oldest is None or needed < oldest:
        raise SchemaError(
            f"This code is older than the schema: that has version {found} and needs code of "
            f"{oldest or found} or newer, this is of {needed}. Upgrade tasks_app."
        )
    return (
        f"The schema has version {found}; this code is of {needed}, and may still run on it. "
        "Upgrade tasks_app soon."
    )


def _look(connection: Connection) -> tuple[str | None, str | None]:
    if connection.execute(_READABLE).scalar() is None:
        return None, None
    row = connection.execute(_VERSION).first()
    return (row[0], row[1]) if row else (None, None)


def _versions() -> set[str]:
    files = (_migrations() / "versions").glob("[0-9]*.py")
    return {path.name.partition("_")[0] for path in files}


def _migrations() -> Path:
    return _INSIDE if _INSIDE.is_dir() else _BESIDE


def _config(output: io.StringIO | None = None) -> Config:
    from alembic.config import Config  # noqa: PLC0415

    config = Config(output_buffer=output) if output else Config()
    config.set_main_option("script_location", str(_migrations()))
    return config


_IS_INVALID = text("SELECT NOT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:index)")


def build_index(name: str, of: str, what: str) -> None:
    """Build it while others write; in a transaction of somebody else's, the usual way.

    What a killed or failed try left is of no use, and costs as much: it goes first.
    """
    context = op.get_context()
    index, rest = table(name), f"IF NOT EXISTS {name} ON {table(of)} {what}"
    if context.as_sql or not context.opts["transaction_per_migration"]:
        op.execute(f"CREATE INDEX {rest}")
        return
    with context.autocommit_block():
        context.opts["say"](f"building the index {name}; nobody waits for it")
        if op.get_bind().execute(_IS_INVALID, {"index": index}).scalar():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}")
        op.execute(f"CREATE INDEX CONCURRENTLY {rest}")
