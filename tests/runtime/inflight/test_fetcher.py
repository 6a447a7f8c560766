"""A child claims ids the short way, as long as that finds them."""

from __future__ import annotations

import pytest

from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.pool.flow_control.order_and_limits import drop_limit, set_limit
from tests.runtime.bench import Bench
from tests.statements import Seen, watched

SHORT, LONG = "taken AS MATERIALIZED", "candidate AS MATERIALIZED"


def ways(claims: list[Seen]) -> list[str]:
    """How ids were claimed, one after the other; of none: the housekeeper prepares statements."""
    return [LONG if LONG in each.sql else SHORT for each in claims if each.values["ids"] != "{}"]


def limit(bench: Bench, *, there: bool) -> None:
    with bench.engine.begin() as connection:
        if there:
            set_limit(connection, Limit(GateKind.NAME, "other", 1))
        else:
            drop_limit(connection, GateKind.NAME, "other")


def test_a_task_that_nothing_stands_before_is_claimed_by_one_short_statement(
    bench: Bench,
) -> None:
    bench.succeeding()
    child = bench.child()

    with watched(child.database.engine, SHORT) as claims:
        child.executor.execute([bench.create()])

    assert len(bench.runs) == 1
    assert ways(claims) == [SHORT]


def test_while_something_stands_somewhere_the_short_way_is_tried_now_and_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.succeeding()
    child = bench.child()
    executor = child.executor
    limit(bench, there=True)
    monkeypatch.setattr("tasks_app.runtime.execution.claims.HINDERED_S", 3600.0)

    with watched(child.database.engine, SHORT) as claims:
        for _ in range(2):
            executor.execute([bench.create()])
    assert ways(claims) == [SHORT, LONG, LONG]

    limit(bench, there=False)
    executor.fetcher.hindered_until = 0.0
    with watched(child.database.engine, SHORT) as claims:
        for _ in range(2):
            executor.execute([bench.create()])

    assert ways(claims) == [SHORT, SHORT]
