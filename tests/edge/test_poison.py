"""Tasks that kill their process at every run, in each way, among many that harm nobody.

Each of them ends in the error pool after its bound, and none of the others is charged.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import Row, text

from tasks_app import NewTask, create_tasks
from tests.broker.conftest import House
from tests.broker.house.poisons import ASKS, MAX_ATTEMPTS, POISONS

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(400, method="thread")]

GOOD = 100
MAX_CRASHES = 5
SPANS = {
    "TASKS_APP_LEASE": "30s",
    "TASKS_APP_IMPORTS": "poison_handlers",
    "TASKS_APP_SCAN_INTERVAL": "200ms",
    "TASKS_APP_MAX_CRASHES": str(MAX_CRASHES),
}
ENDED = text("SELECT id, name, state, failures, crashes, error FROM task_all ORDER BY id")


@pytest.fixture(autouse=True)
def _alone(house: House) -> Iterator[None]:
    """Each of these starts its own processes, and leaves none to the next."""
    yield
    house.end()


def report(poison: Sequence[Row[Any]], runs: Counter[int]) -> None:
    """Print how many ended in which way."""
    told = Counter(
        (r.name, r.state, r.failures, r.crashes, runs[r.id], r.error.partition(":")[0])
        for r in poison
    )
    for (name, state, failures, crashes, ran, error), number in sorted(told.items()):
        print(
            f"| {number} {name} | {state} | failures {failures} | crashes {crashes} "
            f"| runs {ran} | {error} |"
        )


def mixed(house: House, beside: str) -> list[int]:
    """Create them all in one transaction, one among the other."""
    names = [f"poison.{kind}" for kind in POISONS] + [beside] * GOOD
    random.Random(5).shuffle(names)
    with house.engine.begin() as connection:
        return create_tasks(connection, [NewTask(name) for name in names])


def is_bounded(row: Row[Any], ran: int, *, alone: bool) -> bool:
    """Whether it ran as often as it may, and was charged for each run."""
    if row.name.removeprefix("poison.") in ASKS:
        return (row.failures, row.crashes) == (0, MAX_CRASHES) and ran <= MAX_CRASHES
    most_crashes = 0 if alone else 1  # from then on it is claimed alone
    return (
        row.failures == MAX_ATTEMPTS
        and row.crashes <= most_crashes
        and ran <= row.failures + row.crashes
    )


@pytest.mark.parametrize("beside", ["good", "good.async"])
def test_tasks_that_kill_their_process_at_every_run(
    house: House, tmp_path: Path, beside: str
) -> None:
    """Beside async ones nobody knows who it was the first time: one crash for each on board."""
    starts = tmp_path / "starts"
    house.beat(**SPANS)
    worker = house.worker(children=2, STARTS=str(starts), **SPANS)
    parent = psutil.Process(worker.pid)
    born, began = parent.create_time(), time.monotonic()

    house.over(mixed(house, beside), 300)

    took = time.monotonic() - began
    runs = Counter(map(int, starts.read_text().split()))
    with house.engine.connect() as connection:
        rows = connection.execute(ENDED).all()
    good = [row for row in rows if row.name == beside]
    poison = [row for row in rows if row.name != beside]
    print(f"\n{len(poison)} poisoned, {len(good)} {beside}: {took:.0f} s")
    report(poison, runs)
    print(f"crashes of good tasks: {dict(Counter(row.crashes for row in good))}")
    assert parent.is_running()
    assert parent.create_time() == born
    assert len(poison) == len(POISONS)
    assert {row.state for row in poison} == {"FAILED"}
    assert {row.state for row in good} == {"SUCCEEDED"}
    assert {row.failures for row in good} == {0}
    assert house.effects() == (GOOD, GOOD)
    alone = beside == "good"
    assert [row for row in poison if not is_bounded(row, runs[row.id], alone=alone)] == []
    if alone:
        assert {(row.crashes, runs[row.id]) for row in good} == {(0, 1)}
