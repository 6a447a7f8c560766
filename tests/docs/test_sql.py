"""The page of the SQL shows what is sent, and the plans that a full, analysed pool has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection

from tests.docs.sql_page import FULL, HOT, PAGE, VERBS, promised, sections
from tests.pool.filled import FRESH, Ask, bare_database, filled
from tests.servers import Databases


@pytest.fixture(scope="module")
def ask(databases: Databases) -> Iterator[Ask]:
    with (
        bare_database(databases, "sql", FULL) as database,
        filled(database, FRESH, VERBS, FULL) as ask,
    ):
        yield ask


def test_the_page_shows_what_is_sent(connection: Connection) -> None:
    page = PAGE.read_text()

    assert [title for title, text in sections(connection) if text not in page] == [], "make docs"
    assert list(promised(page)) == [hot.title for hot in HOT]


@pytest.mark.parametrize("title", VERBS)
def test_a_plan_is_as_promised(ask: Ask, title: str) -> None:
    assert set(ask(title).nodes) == promised(PAGE.read_text())[title]
