"""One tenant with many tasks, nine with few: the nine hardly notice; each priority goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tasks_app import NewTask, create_tasks
from tasks_app.domain.flow_control.admission import EVERY
from tasks_app.pool.dispatch import scan
from tests.runtime.bench import Bench
from tests.runtime.conftest import bench  # noqa: F401  a fixture
from tests.runtime.flow_control.fair_line import Line, fill, share

pytestmark = pytest.mark.timeout(900)

BIG, NINE, EACH = 20_000, 9, 50
TASK_S = 0.004


@pytest.fixture
def line(engine: Engine, bench: Bench) -> Iterator[Line]:  # noqa: F811
    """A worker that takes some time for each task, and gets a hundred in a message."""
    with engine.begin() as connection:
        scan.write_run_times(connection, {"t": TASK_S})
    line = Line(engine, bench, task_s=TASK_S)
    yield line
    line.close()


def waits(line: Line, ids: set[int]) -> tuple[float, int]:
    """Run until all of these are over; return the p99 of their waits, in seconds and in tasks."""
    began, before = time.monotonic(), len(line.ran)
    took: list[tuple[float, int]] = []
    while len(took) < len(ids):
        ran = line.turn()
        for place, task_id in enumerate(ran, start=len(line.ran) - before - len(ran) + 1):
            if task_id in ids:
                took.append((time.monotonic() - began, place))
    took.sort()
    return took[int(len(took) * 0.99) - 1]


def test_nine_small_tenants_wait_at_most_three_times_as_long_beside_a_big_one(
    engine: Engine, line: Line
) -> None:
    share(engine)
    line.turn()
    nine = {f"small{n}": EACH for n in range(NINE)}

    alone_s, alone = waits(line, set(fill(engine, **nine)))
    with engine.begin() as connection:
        create_tasks(connection, [NewTask("t", None, {"fair_key": "big"})] * BIG)
    line.turn()
    beside_s, beside = waits(line, set(fill(engine, **nine)))

    print(f"\np99 alone {alone_s:.2f} s, after {alone} tasks; beside {beside_s:.2f} s, {beside}")
    assert beside <= 3 * alone
    assert beside_s <= 3 * alone_s


def test_the_lowest_priority_of_each_tenant_gets_its_floor(engine: Engine, line: Line) -> None:
    share(engine)
    low: dict[str, set[int]] = {}
    with engine.begin() as connection:
        for key in ("a", "b"):
            for priority in (0, 5, 9):
                ids = create_tasks(
                    connection,
                    [NewTask("t", None, {"fair_key": key, "priority": priority})] * 1_000,
                )
                low[key] = set(map(int, ids))
    while len(line.ran) < 1_500:
        line.turn()

    went = {key: len(ids & set(line.ran)) for key, ids in low.items()}
    print(f"\nof {len(line.ran)} tasks of two tenants: {went} of priority 9")
    assert all(number >= len(line.ran) / 2 / EVERY - 2 for number in went.values())
