"""Some processes and few keys: as many tasks as the scope allows."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.factory import count
from tests.pool.many_producers import Load, all_of

pytestmark = pytest.mark.test_all

PROCESSES, CREATES, KEYS = 3, 100, 5
WORKING = [
    ("queued", "return_existing"),
    ("queued_or_running", "replace_payload"),
    ("until_terminal", "return_existing"),
    ("for_period 1h", "raise"),
    ("forever", "reschedule"),
]
IDLE = [
    ("queued", "raise"),
    ("queued_or_running", "reschedule"),
    ("until_terminal", "replace_payload"),
]


@pytest.mark.parametrize(("scope", "policy"), WORKING)
def test_somebody_works(engine: Engine, scope: str, policy: str) -> None:
    seen = all_of(engine, PROCESSES, Load(scope, policy, CREATES, KEYS), working=True)

    assert set(seen.errors) <= ({"UniqueKeyTakenError"} if policy == "raise" else set())
    assert seen.twice == 0
    with engine.connect() as connection:
        there = count(connection)
    assert there == seen.outcomes["created"] >= KEYS
    if scope in ("for_period 1h", "forever"):
        assert there == KEYS


@pytest.mark.parametrize(("scope", "policy"), IDLE)
def test_nobody_works(engine: Engine, scope: str, policy: str) -> None:
    """Whatever a scope says of tasks that run or ran: there is exactly one of each key."""
    seen = all_of(engine, PROCESSES, Load(scope, policy, CREATES, KEYS), working=False)

    assert set(seen.errors) <= ({"UniqueKeyTakenError"} if policy == "raise" else set())
    assert seen.twice == 0
    assert seen.outcomes["created"] == KEYS
    with engine.connect() as connection:
        assert count(connection) == KEYS
