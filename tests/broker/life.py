"""A compact life of a queue: what every pool on every broker has to do right."""

from __future__ import annotations

from tasks_app import cancel_task
from tests.broker.conftest import House

GOOD, FLAKY, BAD, CANCELLED = 10, 3, 2, 2
STATES = {"SUCCEEDED": GOOD + FLAKY, "FAILED": BAD, "CANCELLED": CANCELLED}


def begin_life(house: House, queue: str) -> list[int]:
    """Create tasks that succeed, that need a retry, that fail, and that are cancelled in time."""
    later = house.create("ok", CANCELLED, queue=queue, delay="1h")
    with house.engine.begin() as connection:
        for task_id in later:
            cancel_task(connection, task_id)
    return [
        *later,
        *house.create("ok", GOOD, queue=queue),
        *house.create("flaky", FLAKY, queue=queue),
        *house.create("bad", BAD, queue=queue),
    ]


def effects_of(house: House, ids: list[int]) -> tuple[int, int]:
    """Return how many effects these tasks have, and how many of the tasks have one."""
    counted = "SELECT {} FROM effect WHERE task_id = ANY(:ids)"
    return (
        house.sql(counted.format("count(*)"), ids=ids),
        house.sql(counted.format("count(DISTINCT task_id)"), ids=ids),
    )
