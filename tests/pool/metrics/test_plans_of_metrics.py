"""Plans of a scrape: counts come out of indexes, and no pool is read from end to end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tasks_app.pool import metrics
from tests.pool.database import Ask, Verb, statistics
from tests.pool.runs.racing import FILL

FULL = FILL
HOUR = timedelta(hours=1)
VERBS: dict[str, tuple[Verb, int]] = {
    "waiting": (lambda c, _: metrics.waiting_tasks(c), 1),
    "parked": (lambda c, _: metrics.parked_tasks(c), 1),
    "running": (lambda c, _: metrics.running_tasks(c), 1),
    "failed": (lambda c, _: metrics.failed_tasks(c, HOUR), 1),
    "limits": (lambda c, _: metrics.limits_in_use(c), 1),
}


@statistics
@pytest.mark.parametrize("name", VERBS)
def test_no_pool_is_read_from_end_to_end(ask: Ask, name: str) -> None:
    plan = ask(name)
    assert plan.whole == ()
    assert "task_pending_pkey" not in plan.indexes


@statistics
def test_pending_rows_are_counted_in_the_index_of_the_scan(ask: Ask) -> None:
    plan = ask("waiting")
    assert "Index Only Scan task_pending_scan" in plan.nodes
    assert plan.indexes == {"task_pending_scan"}
