"""Fixtures for pytest, found by its entry point. Nothing is imported before a test asks for one.

``tasks_app_session`` is what most tests want: a Session whose transaction is rolled back.
``tasks_app_pool`` is for tests that commit: a database whose pool is empty.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

    from tasks_app.domain.config.settings import Settings
    from tasks_app.testing.databases import Prepare, TestDatabases

OPTION, INI, VARIABLE = "--tasks-app-server", "tasks_app_server", "TASKS_APP_TEST_SERVER"
_SERVER = "URL of a PostgreSQL where tests may create databases; none: an embedded one is started"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the command line and the project say where the tests run."""
    parser.getgroup("tasks_app").addoption(OPTION, metavar="URL", default=None, help=_SERVER)
    parser.addini(INI, _SERVER, default="")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Forget the faults that a test has ordered and that hit no run."""
    if (faults := sys.modules.get("tasks_app.testing.draining")) is not None:
        faults.FAULTS.clear()


@pytest.fixture(scope="session")
def tasks_app_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of the server: of --tasks-app-server, the ini file, TASKS_APP_TEST_SERVER, or our own."""
    config = request.config
    given = config.getoption(OPTION) or config.getini(INI) or os.environ.get(VARIABLE)
    if given:
        yield str(given)
        return
    from tasks_app.testing.databases import embedded_server  # noqa: PLC0415  see above

    with embedded_server() as url:
        yield url


@pytest.fixture(scope="session")
def tasks_app_tables() -> Prepare | None:
    """Override this: a function that is called once with a Connection and makes your own tables.

    For instance ``return Base.metadata.create_all``.
    """
    return None


@pytest.fixture(scope="session")
def tasks_app_databases(
    tasks_app_server: str, tasks_app_tables: Prepare | None
) -> Iterator[TestDatabases]:
    """Copies of a database that is migrated and has your tables; dropped at the end."""
    from tasks_app.testing.databases import TestDatabases  # noqa: PLC0415  see above

    with TestDatabases(tasks_app_server, tasks_app_tables).guarded() as databases:
        yield databases


@pytest.fixture(scope="session")
def tasks_app_url(tasks_app_databases: TestDatabases) -> str:
    """URL of the database that the tests of a session share."""
    return tasks_app_databases.create()


@pytest.fixture(scope="session")
def tasks_app_engine(tasks_app_url: str) -> Iterator[Engine]:
    """Connections to it."""
    from sqlalchemy import create_engine  # noqa: PLC0415  see above

    engine = create_engine(tasks_app_url)
    yield engine
    engine.dispose()


@pytest.fixture
def tasks_app_session(tasks_app_engine: Engine) -> Iterator[Session]:
    """A Session; what it commits is rolled back at the end of the test, with all the rest."""
    from sqlalchemy.orm import Session  # noqa: PLC0415  see above

    with tasks_app_engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            yield session
        outer.rollback()


@pytest.fixture
def tasks_app_pool(
    tasks_app_engine: Engine, tasks_app_url: str, monkeypatch: pytest.MonkeyPatch
) -> str:
    """URL of the shared database, whose pool is empty now; your own tables stay as they are.

    During the test the environment names it, so that ``drain()`` needs no settings, and no broker.
    """
    from tasks_app.pool.testing import empty_tables  # noqa: PLC0415  see above

    with tasks_app_engine.begin() as connection:
        empty_tables(connection)
    return _named(tasks_app_url, monkeypatch)


@pytest.fixture
def tasks_app_database(
    tasks_app_databases: TestDatabases, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """URL of a database for this test alone, your own tables in it; slower than the shared one."""
    url = tasks_app_databases.create()
    yield _named(url, monkeypatch)
    tasks_app_databases.drop(url)


@pytest.fixture
def tasks_app_settings(tasks_app_pool: str) -> Settings:
    """Settings of the emptied pool, for what takes some."""
    from tasks_app.domain.config.settings import Settings  # noqa: PLC0415  see above

    return Settings(database_url=tasks_app_pool)  # type: ignore[arg-type]


def _named(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", url)
    monkeypatch.delenv("TASKS_APP_BROKER_URL", raising=False)
    return url
