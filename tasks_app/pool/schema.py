"""The schema's version: bring it up to date, or say that it is not.

Alembic is imported where it migrates, and nowhere else: it is a seventh of a worker's start.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from tasks_app.domain.errors import SchemaError
from tasks_app.pool.tables import SCHEMA, table

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE = "tasks_app_version"
_CURRENT = text(f"SELECT version_num FROM {table(VERSION_TABLE)}")
_READS = text("SHOW transaction_read_only")
READ_ONLY = (
    "The database lets this role only read: it is a standby, or default_transaction_read_only is "
    "on for the role or the database. Connect to the primary, or set it off."
)
_LOCK = text("SELECT pg_advisory_xact_lock(7246101957004331002)")
_INSIDE = Path(__file__).parents[1] / "_migrations"
_BESIDE = Path(__file__).parents[2] / "migrations"


def migrate(connection: Connection) -> tuple[str | None, str]:
    """Upgrade to the newest version in the caller's transaction; return (before, after).

    Two that try at once wait for each other.
    """
    from alembic import command  # noqa: PLC0415

    connection.execute(_LOCK)
    before = current(connection)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return before, newest()


def migration_sql() -> str:
    """Return the SQL of all migrations, for a DBA to run."""
    from alembic import command  # noqa: PLC0415

    output = io.StringIO()
    command.upgrade(_config(output), "head", sql=True)
    return output.getvalue()


def current(connection: Connection) -> str | None:
    """Return the version of the schema in the database; None: there is none."""
    if not inspect(connection).has_table(VERSION_TABLE, SCHEMA):
        return None
    return connection.execute(_CURRENT).scalar()


def newest() -> str:
    """Return the version that this code needs."""
    return max(path.name.partition("_")[0] for path in (_migrations() / "versions").glob("0*.py"))


def check_schema(connection: Connection) -> None:
    """Pass if the database has the schema that this code needs, and may be written to.

    Raises:
        SchemaError: it is missing, older or unknown, or all transactions only read.
    """
    if connection.execute(_READS).scalar() == "on":
        raise SchemaError(READ_ONLY)
    found, needed = current(connection), newest()
    if found != needed:
        state = f"has version {found}" if found else "is missing"
        raise SchemaError(f"The schema {state}; {needed} is needed. Run: tasks-app migrate")


def _migrations() -> Path:
    return _INSIDE if _INSIDE.is_dir() else _BESIDE


def _config(output: io.StringIO | None = None) -> Config:
    from alembic.config import Config  # noqa: PLC0415

    config = Config(output_buffer=output) if output else Config()
    config.set_main_option("script_location", str(_migrations()))
    return config
