"""A full pool for tests of plans, whose module has ``FULL`` and ``VERBS``; and an empty one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, create_engine

from tasks_app.runtime.db.database import Database
from tests.pool.database import Ask, bare_database, filled
from tests.pool.interleave import two
from tests.servers import Databases


@pytest.fixture(scope="module")
def bare(databases: Databases, request: pytest.FixtureRequest) -> Iterator[Database]:
    with bare_database(databases, "plans", request.module.FULL) as database:
        yield database


@pytest.fixture(scope="module")
def ask(bare: Database, request: pytest.FixtureRequest) -> Iterator[Ask]:
    """A full pool; statistics were gathered at this time."""
    with filled(bare, request.param, request.module.VERBS, request.module.FULL) as ask:
        yield ask


@pytest.fixture(scope="module")
def spare(databases: Databases) -> Iterator[Engine]:
    """A second database; it goes with its server, because dropping one takes long."""
    other = create_engine(databases.create("spare"))
    yield other
    other.dispose()


@pytest.fixture
def empty(spare: Engine) -> Engine:
    """An engine of an empty database beside the shared one."""
    with spare.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA IF EXISTS inside CASCADE")
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    return spare


@pytest.fixture
def database(empty: Engine) -> Iterator[Connection]:
    with empty.connect() as connection:
        yield connection


@pytest.fixture
def pair(engine: Engine) -> Iterator[tuple[Connection, Connection]]:
    with two(engine) as connections:
        yield connections
