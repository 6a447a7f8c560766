"""The PostgreSQL of a session: one that it starts itself, or one that somebody gives.

On a given server it works in databases of its own, which sort as a language does (the embedded
server sorts by code points, a distribution's seldom does), and drops them. What a session that was
killed has left there, the next one drops.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from sqlalchemy import URL, Connection, NullPool, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.finding import Finding
from tests.environment import WARM

VARIABLE = "TASKS_APP_TEST_POSTGRES_URL"
GIVEN = os.environ.get(VARIABLE)
NOT_OURS = f"{VARIABLE} names a server that is not ours to stop or to set"
NO_PGBOUNCER = "PgBouncer is not tested: it is not installed"
PREFIX = "tasks_app_test_"
MARK = PREFIX + secrets.token_hex(4)
"""Of this session: what its databases and roles are named by, and its connection on guard."""
_LEFT = f"""
    SELECT c.{{name}} FROM {{catalogue}} c WHERE c.{{name}} ~ '^{PREFIX}[0-9a-f]{{{{8}}}}_'
    AND NOT EXISTS (
        SELECT FROM pg_stat_activity WHERE application_name = left(c.{{name}}, {len(MARK)}))
"""
DATABASES_LEFT = text(_LEFT.format(name="datname", catalogue="pg_database"))
ROLES_LEFT = text(_LEFT.format(name="rolname", catalogue="pg_roles"))
ICU = text("""
    SELECT current_setting('server_version_num')::int >= 150000
        AND EXISTS (SELECT FROM pg_collation WHERE collprovider = 'i')
""")


THEIR_CHOICE = ("autovacuum", "durability")


def named(name: str) -> str:
    """Return what nobody else calls a role or a database: they are the whole server's."""
    return f"{MARK}_{name}"


def not_of_a_given_server(findings: Iterable[Finding]) -> list[Finding]:
    """Leave out how whoever gave it has set it."""
    return [each for each in findings if not (GIVEN and each.subject in THEIR_CHOICE)]


class Databases:
    """Makes them, on the server of this URL."""

    def __init__(self, administrator: str) -> None:
        self._url: URL = make_url(administrator).set(drivername="postgresql+psycopg")
        self._engine = create_engine(self._url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        self._made: list[str] = []

    def create(self, name: str, copied_from: str = "") -> str:
        """Make an empty one, or a copy, in place of one of that name; return its URL."""
        WARM.clear()  # a database in use is no template
        if name in self._made:
            self.drop(name)
        with self._engine.connect() as connection:
            more = f"TEMPLATE {named(copied_from)}" if copied_from else ""
            if not more and GIVEN and connection.execute(ICU).scalar():
                more = "TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
            connection.exec_driver_sql(f"CREATE DATABASE {named(name)} {more}")
        self._made.append(name)
        return self._url.set(database=named(name)).render_as_string(hide_password=False)

    def drop(self, name: str) -> None:
        """Drop it, whoever is connected."""
        with self._engine.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {named(name)} WITH (FORCE)")
        self._made.remove(name)

    @contextmanager
    def guarded(self) -> Iterator[Self]:
        """Drop what killed sessions left, and at the end what is ours.

        Meanwhile a connection says that this session lives, to whoever else comes to drop.
        """
        with self._engine.connect() as guard:
            guard.exec_driver_sql(f"SET application_name = '{MARK}'")
            _tidy(guard)
            try:
                yield self
            finally:
                for name in [*self._made]:
                    self.drop(name)


def _tidy(connection: Connection) -> None:
    for name in connection.execute(DATABASES_LEFT).scalars().all():
        with suppress(DBAPIError):  # a process of theirs still works in it, or it is another's
            connection.exec_driver_sql(f"DROP DATABASE {name}")
    for name in connection.execute(ROLES_LEFT).scalars().all():
        with suppress(DBAPIError):
            connection.exec_driver_sql(f"DROP ROLE {name}")
