"""Databases for a session of tests: a migrated template, and copies of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Self

from sqlalchemy import URL, Connection, NullPool, create_engine, make_url
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.errors import ConfigurationError
from tasks_app.pool import testing
from tasks_app.pool.retention import add_partition, missing_partitions
from tasks_app.pool.testing import empty_tables
from tasks_app.runtime.db.connections import Raw, Sync, on_connection
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.migration import migrate

Prepare = Callable[[Connection], object]


def empty_pool(session: Sync | Raw) -> None:
    """Remove all tasks, schedules, limits and all else that our tables hold, in this transaction.

    For tests that commit in a database of your own; the fixture ``tasks_app_pool`` does it. Your
    tables stay as they are.

    >>> empty_pool(session)
    >>> assert_created(session, count=0)
    []
    """
    with on_connection(session) as connection:
        empty_tables(connection)


@contextmanager
def embedded_server() -> Iterator[str]:
    """Start a PostgreSQL in a folder that is removed afterwards; yield its administrator's URL."""
    with ExitStack() as stack:
        try:
            from tasks_app.embedded.stack import temporary  # noqa: PLC0415  it brings psutil

            running = stack.enter_context(temporary())
        except ImportError as error:
            raise ConfigurationError(
                f"No server is given, and {error.name} for an embedded one is not installed. "
                "Run: pip install 'tasks_app[embedded]', or name a server with --tasks-app-server."
            ) from error
        url = running.postgres.url_of("postgres")
        with _administrator(url) as connection:
            testing.do_not_flush(connection)
        yield url


def _administrator(url: URL | str) -> Connection:
    return create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect()


class TestDatabases:
    """Makes databases on the server of a URL, whose role may do so, and drops them at the end.

    What a session that was killed has left there, the next one drops.
    """

    __test__ = False  # or pytest takes it for tests

    def __init__(self, server: str, prepare: Prepare | None = None) -> None:
        self._url = make_url(server).set(drivername="postgresql+psycopg")
        self._prepare = prepare
        self._mark = testing.PREFIX + secrets.token_hex(4)
        self._template = ""
        self._made: list[str] = []

    @contextmanager
    def guarded(self) -> Iterator[Self]:
        """Drop all at the end; meanwhile a connection says that this session lives."""
        with _administrator(self._url) as self._guard:
            testing.announce_use(self._guard, self._mark)
            for name in testing.left_over_databases(self._guard):
                with suppress(DBAPIError):  # a process still works in it
                    testing.drop_database(self._guard, name)
            try:
                yield self
            finally:
                for name in reversed(self._made):
                    testing.drop_database(self._guard, name)

    def create(self) -> str:
        """Copy the template, which is made before the first copy; return the new one's URL."""
        self._template = self._template or self._made_template()
        return self._url_of(self._new(self._template))

    def drop(self, url: str) -> None:
        """Drop one before the end."""
        name = make_url(url).database or ""
        testing.drop_database(self._guard, name)
        self._made.remove(name)

    def _new(self, template: str | None) -> str:
        name = f"{self._mark}_{len(self._made)}_{secrets.token_hex(2)}"
        testing.create_database(self._guard, name, template)
        self._made.append(name)
        return name

    def _url_of(self, name: str) -> str:
        return self._url.set(database=name).render_as_string(hide_password=False)

    def _made_template(self) -> str:
        name = self._new(None)
        url = self._url_of(name)
        database = Database(url)
        migrate(database)
        database.dispose()
        with create_engine(url, poolclass=NullPool).begin() as connection:
            for day in missing_partitions(connection):
                add_partition(connection, day)
            if self._prepare is not None:
                self._prepare(connection)
        return name
