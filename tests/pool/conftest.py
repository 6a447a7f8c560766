"""A full pool for tests of plans: their module has ``FULL``, what it holds, and ``VERBS``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks_app.runtime.db.database import Database
from tests.pool.filled import Ask, bare_database, filled
from tests.servers import Databases


@pytest.fixture(scope="module")
def bare(databases: Databases, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database without tasks."""
    with bare_database(databases, "plans", request.module.FULL) as database:
        yield database


@pytest.fixture(scope="module")
def ask(bare: Database, request: pytest.FixtureRequest) -> Iterator[Ask]:
    """A full pool; statistics were gathered at this time."""
    with filled(bare, request.param, request.module.VERBS, request.module.FULL) as ask:
        yield ask
