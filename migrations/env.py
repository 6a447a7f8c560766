"""Alembic's entry: on the connection of our runner, or by hand on TASKS_APP_DATABASE_URL."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import Connection, create_engine, text

SCHEMA = os.environ.get("TASKS_APP_SCHEMA") or None
VERSION_TABLE = "tasks_app_version"
# Alone: what the schema lacks must not be found, and dropped, in another pool's.
PATH = f'SET LOCAL search_path TO "{SCHEMA}"'


def _migrate(connection: Connection) -> None:
    if SCHEMA:
        connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{SCHEMA}"'))
        connection.execute(text(PATH))
    context.configure(
        connection=connection, version_table=VERSION_TABLE, version_table_schema=SCHEMA
    )
    with context.begin_transaction():
        context.run_migrations()


def _print_sql() -> None:
    context.configure(
        url="postgresql+psycopg://",
        dialect_opts={"paramstyle": "named"},  # the driver's style would double each percent sign
        literal_binds=True,
        version_table=VERSION_TABLE,
        version_table_schema=SCHEMA,
        output_buffer=context.config.output_buffer,
    )
    with context.begin_transaction():
        if SCHEMA:
            context.execute(f'CREATE SCHEMA IF NOT EXISTS "{SCHEMA}"')
            context.execute(PATH)
        context.run_migrations()


def _run() -> None:
    if context.is_offline_mode():
        _print_sql()
        return
    given: Connection | None = context.config.attributes.get("connection")
    if given is not None:
        _migrate(given)
        return
    with create_engine(os.environ["TASKS_APP_DATABASE_URL"]).begin() as connection:
        _migrate(connection)


_run()
