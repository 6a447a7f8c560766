"""The tasks of an instance follow each other by hints: no step waits for a scan."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.batch.yard import Yard
from tests.runtime.hints.ear import Ear, ear, told  # noqa: F401  the fixture
from tests.waiting import until


@pytest.mark.test_all
def test_all_tasks_behind_the_first_are_hinted_at(yard: Yard, ear: Ear) -> None:  # noqa: F811
    yard.rows(100)
    steps = yard.step(cuts=(50,)), yard.step(name="two", cuts=(50,))

    yard.run(yard.job(*steps))

    with yard.engine.connect() as connection:
        found = connection.execute(text("SELECT id, name FROM task_completed ORDER BY id"))
        first, *others = found
    assert first.name == "job:step:plan"
    assert len(others) == 7
    until(lambda: sorted(told(ear)) == [row.id for row in others])
