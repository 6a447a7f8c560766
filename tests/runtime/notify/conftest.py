"""Fixtures of the tests of hints by NOTIFY."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import text

from tasks_app.runtime.db.database import Database
from tasks_app.runtime.hints import HINTS, as_configured
from tasks_app.runtime.notify import Listener
from tests.clock import until
from tests.runtime.bench import Bench

LISTENERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'idle' AND query LIKE 'LISTEN "%'
"""


BUSY = """
    SELECT array_agg(concat_ws(' ', pid, state, application_name, left(query, 80)))
    FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid()
      AND backend_type = 'client backend' AND state_change > clock_timestamp() - interval '0.3 s'
"""


def until_quiet(bench: Bench) -> None:
    """Wait until nobody looks for work: else a look may find what is created next."""
    with bench.engine.connect() as connection:  # one: the pool hands its connections out by turns

        def busy() -> list[str] | None:
            with connection.begin():
                return connection.execute(text(BUSY)).scalar()

        try:
            until(lambda: not busy())
        except AssertionError as error:
            raise AssertionError(f"still busy: {busy()}") from error


class Listening:
    def __init__(self, database: Database) -> None:
        self.heard: list[set[str]] = []
        self.listener = Listener(database, self.heard.append)

    @property
    def notices(self) -> list[set[str]]:
        """Without the one that says that it listens."""
        return [queues for queues in self.heard if queues]


@pytest.fixture
def hinting(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process has the database's URL, and no broker."""
    monkeypatch.setenv("TASKS_APP_DATABASE_URL", bench.url)
    before = HINTS.provide(as_configured)
    yield
    HINTS.provide(before)


@pytest.fixture
def listening(bench: Bench) -> Iterator[Listening]:
    listening = Listening(Database(bench.url))
    with listening.listener:
        until(lambda: bench.sql(LISTENERS))
        yield listening


@pytest.fixture
def listeners(bench: Bench) -> Callable[[], int]:
    return lambda: int(bench.sql(LISTENERS))


@pytest.fixture(autouse=True)
def _cold(cold_connections: None) -> None:
    """Each connection is one of its own."""
