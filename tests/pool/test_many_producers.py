"""Some processes and few keys: as many tasks as the scope allows. More of both: tests/edge."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.factory import count
from tests.pool.many_producers import Load, all_of

pytestmark = pytest.mark.test_all

CASES = [
    ("queued", "return_existing"),
    ("for_period 1h", "raise"),
    ("forever", "reschedule"),
]


@pytest.mark.parametrize(("scope", "policy"), CASES)
def test_as_many_as_the_scope_allows(engine: Engine, scope: str, policy: str) -> None:
    seen = all_of(engine, 3, Load(scope, policy, creates=80, keys=5), working=True)

    assert set(seen.errors) <= ({"UniqueKeyTakenError"} if policy == "raise" else set())
    assert seen.twice == 0
    with engine.connect() as connection:
        there = count(connection)
    assert there == seen.outcomes["created"]
    if scope not in ("queued", "until_terminal"):
        assert there == 5
