"""A webhook, and a database as a watcher has it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tasks_app.runtime.db.database import Database
from tests.runtime.alerts.hook import Hook, listening


@pytest.fixture
def hook() -> Iterator[Hook]:
    with listening() as server:
        yield server


@pytest.fixture
def database(engine: Engine, database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.dispose()


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
