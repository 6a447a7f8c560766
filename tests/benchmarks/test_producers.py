"""Each way of creating that the page shows is measured, and what it created is counted."""

from __future__ import annotations

from typing import Any

import pytest

from dev.benchmarks.scenarios.contention import contention
from dev.benchmarks.scenarios.create import create
from dev.benchmarks.scenarios.latency import latency
from dev.benchmarks.stage import Stage
from dev.benchmarks.systems import SYSTEMS

pytestmark = [pytest.mark.test_all]
OURS = SYSTEMS["ours-celery"]


@pytest.mark.parametrize(
    "how",
    [
        {"verb": "single"},
        {"verb": "single_on_a_session"},
        {"verb": "bulk"},
        {"verb": "bulk", "size": 30},
        {"verb": "bulk_on_psycopg", "size": 30},
    ],
)
def test_a_way_of_creating_is_measured(stage: Stage, how: dict[str, Any]) -> None:
    result = create(stage, OURS, 100, **how)

    assert result["rate"] > 0
    assert result["audit"] == {"rows": 150}


def test_latency_is_counted_from_the_call_and_from_the_commit(stage: Stage) -> None:
    result = latency(stage, OURS, 20)

    assert result["audit"]["tasks_run"] == 80
    assert result["commit_p50_ms"] < result["p50_ms"]


def test_a_lock_that_many_want_changes_hands(stage: Stage) -> None:
    result = contention(stage, OURS, 1, "1 process, 8 threads")

    assert result["grants_per_s"] > 0
    assert result["audit"] == {"faults": 0}
