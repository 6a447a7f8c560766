"""Handlers of a test, and sessions whose transaction is rolled back."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Engine, make_url
from sqlalchemy.orm import Session

from tasks_app.runtime.handlers.registry import Registry


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """What a user's test has: nothing of it is ever committed."""
    with (
        engine.connect() as connection,
        connection.begin(),
        Session(connection, join_transaction_mode="create_savepoint") as session,
    ):
        yield session
        connection.rollback()


@pytest.fixture
def registry() -> Registry:
    """Handlers of this test alone."""
    return Registry()


@pytest.fixture
def raw(engine: Engine, database_url: str) -> Iterator[psycopg.Connection]:
    """A connection of psycopg, in a transaction."""
    url = make_url(database_url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        yield connection
        connection.rollback()
