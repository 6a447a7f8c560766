"""What a server is, and how fast it answers: settings that matter, and statements to be timed."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, text

from tasks_app.pool.tables import table

EFFECT = table("bench_effect")
"""Where the handlers of a measurement write."""
SETTINGS = (
    *("server_version", "jit", "synchronous_commit", "fsync", "full_page_writes"),
    *("commit_delay", "shared_buffers", "max_wal_size", "max_connections", "autovacuum_naptime"),
)
_SETTINGS = text("SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(:names)")
_INSERT = f"INSERT INTO {EFFECT} (i) VALUES (%s)"


def read_settings(connection: Connection) -> dict[str, str]:
    """Return them, as they hold for this role in this database."""
    found = connection.execute(_SETTINGS, {"names": list(SETTINGS)})
    values = {str(name): str(value) for name, value in found}
    return {name: values[name] for name in SETTINGS}


def make_effects(connection: Connection) -> None:
    connection.exec_driver_sql(f"CREATE TABLE {EFFECT} (i bigint NOT NULL)")


def insert_effect(connection: Connection) -> None:
    """Do what a handler of the measurement does: one row."""
    connection.exec_driver_sql(_INSERT, (1,))


def ask(connection: Connection) -> None:
    """Go there and back."""
    connection.exec_driver_sql("SELECT 1")


def without_flush(connection: Connection) -> Callable[[], None]:
    """Let commits of this session not wait for the disk; call what is returned to take it back."""
    before = connection.exec_driver_sql("SHOW synchronous_commit").scalar_one()
    connection.exec_driver_sql("SET synchronous_commit = off")

    def take_back() -> None:
        connection.exec_driver_sql(f"SET synchronous_commit = {before}")

    return take_back
