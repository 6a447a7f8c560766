"""Databases for a session of tests, on a connection in autocommit."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

PREFIX = "tasks_app_kit_"
_LEFT = text(f"""
    SELECT d.datname FROM pg_database d WHERE d.datname ~ '^{PREFIX}[0-9a-f]{{8}}_'
    AND NOT EXISTS (
        SELECT FROM pg_stat_activity s
        WHERE s.application_name = left(d.datname, {len(PREFIX) + 8}))
    AND pg_has_role(d.datdba, 'MEMBER')
""")
_HURRY = ("fsync = off", "synchronous_commit = off", "full_page_writes = off")


def announce(connection: Connection, mark: str) -> None:
    """Say as long as this connection lives that the databases of ``mark`` are in use."""
    connection.exec_driver_sql(f"SET application_name = '{mark}'")


def left_over(connection: Connection) -> Sequence[str]:
    """Return the databases of sessions that live no more, killed ones as it seems."""
    return connection.execute(_LEFT).scalars().all()


def create_database(connection: Connection, name: str, template: str | None = None) -> None:
    """Make one, empty or as a copy."""
    copied = f' TEMPLATE "{template}"' if template else ""
    connection.exec_driver_sql(f'CREATE DATABASE "{name}"{copied}')


def drop_database(connection: Connection, name: str) -> None:
    """Drop it, whoever is connected."""
    connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def hurry(connection: Connection) -> None:
    """Let a server that is thrown away wait for no disk."""
    for setting in _HURRY:
        connection.exec_driver_sql(f"ALTER SYSTEM SET {setting}")
    connection.exec_driver_sql("SELECT pg_reload_conf()")
