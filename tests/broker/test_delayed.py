"""Delayed tasks with real workers: the leader's hints start them, and a hint that is lost no task.

The scan comes every other second. What starts within a moment was started by a hint.
"""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.broker.conftest import House

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.timeout(120, method="thread"),
    pytest.mark.parametrize("house", ["broker", "rabbitmq"], indirect=True, scope="module"),
]
LATENESS = text(
    "SELECT EXTRACT(EPOCH FROM started_at - due_at)::float FROM task_completed"
    " WHERE id = ANY(:ids) ORDER BY 1"
)


@pytest.fixture(scope="module", autouse=True)
def _workers(house: House) -> None:
    house.beat(TASKS_APP_SCAN_INTERVAL="2s")
    house.worker()


def lateness(house: House, ids: list[int]) -> list[float]:
    """Return how late each task started, in seconds, the first one first."""
    with house.engine.connect() as connection:
        return list(connection.execute(LATENESS, {"ids": ids}).scalars())


def test_delayed_tasks_are_hinted_at_when_they_are_due(house: House) -> None:
    ids = [i for n in range(30) for i in house.create("plain", delay=3.0 + n / 15)]
    assert house.over(ids) == {"SUCCEEDED": 30}
    late = lateness(house, ids)
    assert late[0] >= 0
    assert late[len(late) // 2] < 0.5  # by the scan alone it would be a second


def test_what_was_cancelled_or_put_off_does_not_run_then(house: House) -> None:
    cancelled, later = house.create("plain", 2, delay=3.0)
    house.sql("DELETE FROM task_pending WHERE id = :id", id=cancelled)
    house.sql(
        "UPDATE task_pending SET due_at = due_at + interval '3 s', scan_at = scan_at"
        " + interval '3 s' WHERE id = :id",
        id=later,
    )
    assert house.over([later]) == {"SUCCEEDED": 1}
    assert house.task(later).attempt == 1
    assert lateness(house, [later])[0] >= 0
