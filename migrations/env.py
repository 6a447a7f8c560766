"""Alembic's entry: on the connection of our runner, or by hand on TASKS_APP_DATABASE_URL."""

from __future__ import annotations

import os
from typing import Any

from alembic import context
from sqlalchemy import Connection, create_engine, event, text

from tasks_app.pool.schema import be_patient

SCHEMA = os.environ.get("TASKS_APP_SCHEMA") or None
VERSION_TABLE = "tasks_app_version"
LOCK_TIMEOUT = "500ms"
"""Who waits for a table holds up all that come after him, and our own statements wait a second."""


def _settle_in(connection: Connection) -> None:
    """Prepare a transaction that has just begun."""
    be_patient(connection)
    _set(connection, "lock_timeout", LOCK_TIMEOUT)
    _search(connection)


def _search(connection: Connection) -> None:
    """Alone: what the schema lacks must not be found, and dropped, in another pool's."""
    if SCHEMA:
        _set(connection, "search_path", f'"{SCHEMA}"')


def _set(connection: Connection, name: str, value: str) -> None:
    """For this transaction; without one (CREATE INDEX CONCURRENTLY) it means nothing."""
    connection.execute(
        text("SELECT set_config(:name, :value, true)"), {"name": name, "value": value}
    )


def _declare(*, ctx: Any, heads: set[str], **_: Any) -> None:
    """Write down which code may run on the schema as it is now: older code has not our files."""
    done = list(ctx.script.iterate_revisions(tuple(heads), "base"))
    oldest = max(getattr(each.module, "OLDEST_CODE", each.revision) for each in done)
    version = f'"{SCHEMA}".{VERSION_TABLE}' if SCHEMA else VERSION_TABLE
    ctx.execute(f"UPDATE {version} SET oldest_code = '{oldest}'")


def _migrate(connection: Connection) -> None:
    if connection.in_transaction():  # of somebody who wants all or nothing
        _run_on(connection, transaction_per_migration=False)
        return
    event.listen(connection, "begin", _settle_in)
    try:
        _run_on(connection, transaction_per_migration=True)
    finally:
        event.remove(connection, "begin", _settle_in)


def _run_on(connection: Connection, *, transaction_per_migration: bool) -> None:
    if SCHEMA:
        connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{SCHEMA}"'))
    if transaction_per_migration:
        connection.commit()
    else:
        _search(connection)
    context.configure(
        connection=connection,
        version_table=VERSION_TABLE,
        version_table_schema=SCHEMA,
        transaction_per_migration=transaction_per_migration,
        on_version_apply=[_declare, _tell],
        say=context.config.attributes.get("say", print),
    )
    with context.begin_transaction():
        context.run_migrations()


def _tell(*, ctx: Any, step: Any, **_: Any) -> None:
    if step.is_upgrade:
        script = ctx.script.get_revision(step.up_revision_id)
        ctx.opts["say"](f"{script.revision}: {script.doc}")


def _print_sql() -> None:
    context.configure(
        url="postgresql+psycopg://",
        dialect_opts={"paramstyle": "named"},  # the driver's style would double each percent sign
        literal_binds=True,
        version_table=VERSION_TABLE,
        version_table_schema=SCHEMA,
        output_buffer=context.config.output_buffer,
        on_version_apply=_declare,
    )
    with context.begin_transaction():
        if SCHEMA:
            context.execute(f'CREATE SCHEMA IF NOT EXISTS "{SCHEMA}"')
            context.execute(f'SET LOCAL search_path TO "{SCHEMA}"')
        context.run_migrations()


def _run() -> None:
    if context.is_offline_mode():
        _print_sql()
        return
    given: Connection | None = context.config.attributes.get("connection")
    if given is not None:
        _migrate(given)
        return
    with create_engine(os.environ["TASKS_APP_DATABASE_URL"]).connect() as connection:
        _migrate(connection)


_run()
