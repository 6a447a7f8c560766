"""The statements of the hot path have the plans that their page promises, in a full pool."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection

from tests.docs.sql_page import FULL, HOT, VERBS, Hot, page
from tests.pool.filled import FRESH, Ask, bare_database, filled
from tests.servers import Databases


@pytest.fixture(scope="module")
def ask(databases: Databases) -> Iterator[Ask]:
    with (
        bare_database(databases, "sql", FULL) as database,
        filled(database, FRESH, VERBS, FULL) as ask,
    ):
        yield ask


def test_the_page_can_be_written(connection: Connection) -> None:
    assert page(connection).count("\n```sql\n") == len(HOT)


@pytest.mark.parametrize("hot", HOT, ids=lambda hot: hot.title)
def test_a_plan_is_as_promised(ask: Ask, hot: Hot) -> None:
    assert set(ask(hot.title).nodes) == set(hot.plan.split("; "))
