"""Every kind of hostile handler in real workers: each leaves its outcome, and work goes on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Row, text

from tasks_app import NewTask, create_tasks
from tests.broker.conftest import House
from tests.broker.house.zoo import KINDS, Kind

NEIGHBOURS = ("neighbour", "neighbour.timed", "neighbour.async")
LONGEST_ERROR, LONGEST_TRACEBACK = 2_300, 8_000
RECORDED = text("""
    SELECT t.name, t.state, t.failures, t.crashes, coalesce(t.error, '') AS error,
        (SELECT count(*) FROM task_attempt a WHERE a.task_id = t.id) AS lines,
        (SELECT coalesce(max(length(a.message)), 0) FROM task_attempt a WHERE a.task_id = t.id)
            AS message,
        (SELECT coalesce(max(length(a.traceback)), 0) FROM task_attempt a WHERE a.task_id = t.id)
            AS traceback
    FROM task_all t
""")
PATIENCE_S = 90.0
"""Hundreds of processes start and die: on a busy machine that takes a while."""
ENVIRONMENT = {
    "TASKS_APP_IMPORTS": "zoo_handlers",
    "TASKS_APP_SCAN_INTERVAL": "200ms",
    "TASKS_APP_LEASE": "30s",
    "TASKS_APP_MAX_CRASHES": "1",
    "TASKS_APP_ASYNC_CONCURRENCY": "1",  # of several that ran nobody knows whose fault it was
}


class Visit:
    """One worker, and what hostile handlers do to it."""

    def __init__(self, house: House, *, children: int, **options: Any) -> None:
        self._house = house
        self._children = children
        self.worker = house.worker(children=children, ready=False, **options, **ENVIRONMENT)
        house.ready(self.worker, children, PATIENCE_S)

    def see(self, kinds: Iterable[Kind], timeout_s: float = PATIENCE_S) -> dict[str, Counter[str]]:
        """Run one task of each kind, a neighbour beside each; return what is recorded wrongly."""
        hostile = [kind.task_name for kind in kinds]
        random.Random(len(hostile)).shuffle(hostile)
        pairs = zip(hostile, cycle(NEIGHBOURS), strict=False)
        with self._house.engine.begin() as connection:
            ids = create_tasks(connection, [NewTask(name) for pair in pairs for name in pair])
        self._house.over(ids, timeout_s)
        with self._house.engine.connect() as connection:
            rows = connection.execute(RECORDED).all()
        wrong: dict[str, Counter[str]] = {}
        for row in rows:
            if not _is_right(row):
                wrong.setdefault(row.name, Counter())[str(row)[:300]] += 1
        return wrong

    def ends_well(self) -> None:
        """The parent lives, has all its children, left no effect half way, and ends when asked."""
        assert self.worker.alive, self.worker.log()
        self._house.ready(self.worker, self._children, PATIENCE_S)
        assert self._house.sql("SELECT count(*) FROM effect WHERE task_id < 0") == 0
        self.worker.ask()
        assert self.worker.wait(PATIENCE_S) == 0


def _is_right(row: Row[Any]) -> bool:
    kind = KINDS.get(row.name)
    charged = kind.charged if kind else (0, 0)
    return (
        row.state == ("FAILED" if any(charged) else "SUCCEEDED")
        and (row.failures, row.crashes) == charged
        and row.lines == sum(charged)
        and (kind is None or kind.says in row.error)
        and max(len(row.error), row.message) <= LONGEST_ERROR
        and row.traceback <= LONGEST_TRACEBACK
    )


KILLERS = ("sigkill", "exits_0", "memory_error", "hang_with_the_gil", "daemon_and_exit")
"""Those that end it in different ways: a spawned child is slow to start."""


@pytest.fixture(scope="module")
def _beat(house: House) -> None:
    house.beat(**ENVIRONMENT)


@pytest.mark.test_all
@pytest.mark.timeout(300, method="thread")
@pytest.mark.usefixtures("_beat")
def test_every_kind_leaves_its_outcome_and_no_neighbour_is_charged(house: House) -> None:
    visit = Visit(house, children=4)
    wrong = visit.see(KINDS.values())
    assert wrong == {}
    visit.ends_well()


@pytest.mark.test_all
@pytest.mark.timeout(300, method="thread")
@pytest.mark.usefixtures("_beat")
def test_kinds_that_kill_their_process_do_the_same_in_spawned_children(
    house: House, tmp_path: Path
) -> None:
    (tmp_path / "celeryconfig.py").write_text("worker_pool_start_method = 'spawn'\n")
    visit = Visit(house, children=2, folder=tmp_path)
    wrong = visit.see(KINDS[f"zoo.{name}"] for name in KILLERS)
    assert wrong == {}
    visit.ends_well()
