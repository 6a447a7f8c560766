"""The schema's version: bring it up to date, or say that it is not."""

from __future__ import annotations

import io
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from tasks_app.domain.errors import SchemaError
from tasks_app.pool.tables import SCHEMA

VERSION_TABLE = "tasks_app_version"
_LOCK = text("SELECT pg_advisory_xact_lock(7246101957004331002)")
_INSIDE = Path(__file__).parents[1] / "_migrations"
_BESIDE = Path(__file__).parents[2] / "migrations"


def migrate(connection: Connection) -> tuple[str | None, str]:
    """Upgrade to the newest version in the caller's transaction; return (before, after).

    Two that try at once wait for each other.
    """
    connection.execute(_LOCK)
    before = current(connection)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return before, newest()


def migration_sql() -> str:
    """Return the SQL of all migrations, for a DBA to run."""
    output = io.StringIO()
    command.upgrade(_config(output), "head", sql=True)
    return output.getvalue()


def current(connection: Connection) -> str | None:
    """Return the version of the schema in the database; None: there is none."""
    options = {"version_table": VERSION_TABLE, "version_table_schema": SCHEMA}
    return MigrationContext.configure(connection, opts=options).get_current_revision()


def newest() -> str:
    """Return the version that this code needs."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def check_schema(connection: Connection) -> None:
    """Pass if the database has the schema that this code needs.

    Raises:
        SchemaError: it is missing, older or unknown.
    """
    found, needed = current(connection), newest()
    if found != needed:
        state = f"has version {found}" if found else "is missing"
        raise SchemaError(f"The schema {state}; {needed} is needed. Run: tasks-app migrate")


def _config(output: io.StringIO | None = None) -> Config:
    config = Config(output_buffer=output) if output else Config()
    config.set_main_option("script_location", str(_INSIDE if _INSIDE.is_dir() else _BESIDE))
    return config
