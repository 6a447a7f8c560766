"""Sixteen processes, a thousand creates each, a hundred keys: exactly the allowed number."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.factory import count
from tests.pool.many_producers import Load, all_of

pytestmark = pytest.mark.timeout(900)

SCOPES = ("queued", "queued_or_running", "until_terminal", "for_period 1h", "forever")
POLICIES = ("return_existing", "replace_payload", "reschedule", "raise")
PROCESSES, CREATES, KEYS = 16, 1_000, 100


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("scope", SCOPES)
def test_nobody_works(engine: Engine, scope: str, policy: str) -> None:
    seen = all_of(engine, PROCESSES, Load(scope, policy, CREATES, KEYS), working=False)

    assert set(seen.errors) <= ({"UniqueKeyTakenError"} if policy == "raise" else set())
    assert seen.twice == 0
    assert seen.outcomes["created"] == KEYS
    with engine.connect() as connection:
        assert count(connection) == KEYS


@pytest.mark.parametrize("policy", ["return_existing", "replace_payload"])
@pytest.mark.parametrize("scope", SCOPES)
def test_somebody_works(engine: Engine, scope: str, policy: str) -> None:
    seen = all_of(engine, PROCESSES, Load(scope, policy, CREATES, KEYS), working=True)

    assert not seen.errors
    assert seen.twice == 0
    with engine.connect() as connection:
        there = count(connection)
    assert there == seen.outcomes["created"] >= KEYS
    if scope in ("for_period 1h", "forever"):
        assert there == KEYS
