"""A database whose pool was filled in a transaction that never ends: plans are looked at in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection

from tasks_app.pool.retention import add_partition, missing_partitions
from tasks_app.pool.schema import migrate
from tasks_app.runtime.db.database import Database
from tests.pool.plans import Plan, prepared
from tests.servers import Databases

Verb = Callable[[Connection, int], Any]
"""Does its work for so many rows."""
Ask = Callable[[str], Plan]
"""Carries out what a verb of that name sends, and takes it back."""

NEVER, EMPTY, FRESH = "never", "while empty", "fresh"
statistics = pytest.mark.parametrize("ask", [NEVER, EMPTY, FRESH], indirect=True)
"""When ANALYZE ran; statements are always prepared while the pool is empty."""


@contextmanager
def bare_database(databases: Databases, name: str, fill: str) -> Iterator[Database]:
    """Yield a database of its own, migrated and empty, in which nobody gathers statistics."""
    database = Database(databases.create(name))
    with database.begin() as connection:
        migrate(connection)
    with database.begin() as connection:
        missing = missing_partitions(connection)
    for day in missing:
        with database.begin() as connection:
            add_partition(connection, day)
    with database.engine.connect() as connection:  # rolled back, as a pool whose tasks are all done
        connection.connection.driver_connection.execute(fill)
    yield database
    database.dispose()
    databases.drop(name)


@contextmanager
def filled(
    database: Database, when: str, verbs: Mapping[str, tuple[Verb, int]], fill: str
) -> Iterator[Ask]:
    """Fill the pool once for all verbs, each of which is asked with so many rows."""
    with database.engine.connect() as connection:
        # psycopg drops all that is prepared behind a ROLLBACK, if something of its own is among it.
        connection.connection.driver_connection.prepare_threshold = None
        for setting in ("lock_timeout = '30s'", "idle_in_transaction_session_timeout = 0"):
            connection.exec_driver_sql(f"SET LOCAL {setting}")  # ANALYZE may meet autovacuum
        if when == EMPTY:
            connection.exec_driver_sql("ANALYZE")
        statements = {
            name: prepared(connection, f"ours_{place}", _of(verb, number))
            for place, (name, (verb, number)) in enumerate(verbs.items())
        }
        connection.connection.driver_connection.execute(fill)
        if when == FRESH:
            connection.exec_driver_sql("ANALYZE")

        def ask(name: str) -> Plan:
            with connection.begin_nested() as savepoint:
                plan = statements[name].run(connection)
                savepoint.rollback()
            return plan

        try:
            yield ask
        finally:
            connection.invalidate()


def _of(verb: Verb, number: int) -> Callable[[Connection], Any]:
    return lambda connection: verb(connection, number)
