"""What wakes after its lease is refused; and would be seen if it were not."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from dev.torture import zombies

pytestmark = pytest.mark.test_all


def test_whatever_a_zombie_writes_is_refused() -> None:
    ended = zombies.trials(16, 8, seed=1)

    assert sum(ended.values()) == 16
    assert all("refused" in what for what, times in ended.items() if times)


def test_an_accepted_write_would_be_seen() -> None:
    careless = text("DELETE FROM task_pending WHERE id = :id")
    by_id = {"by id": lambda c, task: c.execute(careless, {"id": task.task_id}).rowcount == 1}

    assert zombies.trials(2, 2, 1, by_id)["by id: ACCEPTED"] == 2
