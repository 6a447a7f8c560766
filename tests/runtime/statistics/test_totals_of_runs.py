"""What runs leave in the totals: how they ended, ids that came twice, writes that were refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool.statistics.roll_up import roll_up
from tasks_app.pool.statistics.totals import totals
from tasks_app.runtime.statistics import TASK_COUNTS
from tests.pool.test_statistics import KEPT
from tests.runtime.bench import Bench

FENCE_LOST = "UPDATE task_pending SET lease_token = gen_random_uuid() WHERE id = :id"


@pytest.fixture(autouse=True)
def _nothing_counted() -> Iterator[None]:
    TASK_COUNTS.forget()
    yield
    TASK_COUNTS.forget()


def told(bench: Bench) -> dict[CountedOutcome, int]:
    """Return the totals once the minute is over."""
    with bench.engine.begin() as connection:
        connection.execute(text("UPDATE task_count_part SET at = at - interval '1 hour'"))
        roll_up(connection, None, KEPT)
        found = Counter[CountedOutcome]()
        for each in totals(connection):
            found[each.outcome] += each.number
        return found


@pytest.mark.test_all
def test_every_run_is_in_the_totals(bench: Bench) -> None:
    bench.succeeding("good")
    bench.raising(LookupError("x"), "bad", retry="0s", max_attempts=2)
    for name, number in (("good", 40), ("bad", 3)):
        for _ in range(number):
            bench.create(name)
    bench.drain()
    assert told(bench) == {
        CountedOutcome.DONE: 40,
        CountedOutcome.RETRIED: 3,
        CountedOutcome.FAILED: 3,
    }


def test_an_id_that_comes_twice_is_counted(bench: Bench) -> None:
    bench.succeeding()
    ids = [bench.create() for _ in range(3)]
    bench.execute(ids)
    bench.execute(ids)
    assert told(bench) == {CountedOutcome.DONE: 3, CountedOutcome.DUPLICATE: 3}


@pytest.mark.parametrize("through", ["the settle of a group", "its own transaction"])
def test_a_write_of_who_lost_the_lease_is_counted(bench: Bench, through: str) -> None:
    @bench.handler()
    def h(ctx: Any) -> None:
        if "own" in through:
            ctx.connection.execute(text("SELECT 1"))
        bench.sql(FENCE_LOST, id=ctx.task_id)

    bench.execute([bench.create()])
    assert told(bench) == {CountedOutcome.STALE: 1}
