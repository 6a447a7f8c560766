"""A child claims ids the short way, as long as that finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.pool.flow_control.limits import drop_limit, set_limit
from tasks_app.runtime.inflight import fetcher
from tests.runtime.bench import Bench

UNHINDERED, LONG = "claim_unhindered", "claim"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements by which ids are claimed, as they come."""
    names: list[str] = []

    def watch(name: str) -> None:
        way = getattr(fetcher, name)

        def watched(connection: Any, ids: Sequence[int], *more: Any) -> Any:
            if ids:  # else the housekeeper prepares statements
                names.append(name)
            return way(connection, ids, *more)

        monkeypatch.setattr(fetcher, name, watched)

    watch(UNHINDERED)
    watch(LONG)
    return names


def limit(bench: Bench, *, there: bool) -> None:
    with bench.engine.begin() as connection:
        if there:
            set_limit(connection, Limit(GateKind.NAME, "other", 1))
        else:
            drop_limit(connection, GateKind.NAME, "other")


def test_a_task_that_nothing_stands_before_is_claimed_by_one_short_statement(
    bench: Bench, asked: list[str]
) -> None:
    bench.succeeding()
    executor = bench.child().executor

    executor.execute(None, [bench.create()])

    assert len(bench.runs) == 1
    assert asked == [UNHINDERED]


def test_while_something_stands_somewhere_the_short_way_is_tried_now_and_then(
    bench: Bench, asked: list[str]
) -> None:
    bench.succeeding()
    executor = bench.child().executor
    limit(bench, there=True)
    executor.fetcher.hindered_s = 3600.0

    for _ in range(2):
        executor.execute(None, [bench.create()])
    assert asked == [UNHINDERED, LONG, LONG]

    limit(bench, there=False)
    executor.fetcher.hindered_until = 0.0
    asked.clear()
    for _ in range(2):
        executor.execute(None, [bench.create()])

    assert asked == [UNHINDERED, UNHINDERED]
