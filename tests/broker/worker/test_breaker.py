"""The breaker of a worker's children opens at its threshold, although calls fail at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.conftest import House
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

CHILDREN, LEAST, TASKS = 4, 40, 400
HELD = "SELECT count(*) FROM task_breaker_held"
GOOD = "SELECT sum(good) FROM task_breaker_count"


def test_few_more_calls_go_out_than_its_threshold(house: House, tmp_path: Path) -> None:
    """While 40 are missing, two of each child may wait for their second; and one is under way."""
    log = tmp_path / "calls"
    log.touch()
    more = {"TASKS_APP_IMPORTS": "outage_handlers", "CALL_LOG": str(log)}
    house.worker(children=CHILDREN, **more)
    house.beat(**more)
    house.create("pay", TASKS, {"up": True})  # so they know that it is fast
    until(lambda: house.sql(GOOD) == TASKS, 60, "reports")
    house.sql("DELETE FROM task_breaker_count")

    house.create("pay", TASKS)

    def gone_out() -> int:
        return len(log.read_text().splitlines())

    until(lambda: gone_out() + house.sql(HELD) == TASKS, 60, "an end")
    assert LEAST <= gone_out() <= LEAST + CHILDREN * 3
    assert house.sql("SELECT state FROM task_breaker") == "open"
    house.sql("DELETE FROM task_breaker_held; DELETE FROM task_breaker")
