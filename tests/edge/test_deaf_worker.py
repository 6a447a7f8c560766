"""Workers that live, are connected and hear nothing, of every pool and on every broker."""

from __future__ import annotations

import time

import pytest
from celery import Celery

from tests.broker.conftest import House

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.timeout(180, method="thread"),
    pytest.mark.parametrize("house", ["broker", "rabbitmq"], indirect=True),
]

POOLS = ("prefork", "threads", "solo")
BOUND_S = 75
"""A child starves when a task has been due for 45 s; it looks every six."""


def each(house: House) -> list[int]:
    """Create some tasks for each of them."""
    return [task_id for pool in POOLS for task_id in house.create("ok", 5, queue=pool)]


def test_a_deaf_worker_hears_again(house: House) -> None:
    house.beat()
    workers = [
        house.worker(
            "-P", pool, "-Q", pool, children=2 if pool == "prefork" else 1, ready=False,
            TASKS_APP_IMPORTS="house_handlers,deafening",
        )
        for pool in POOLS
    ]  # fmt: skip
    assert house.over(each(house), 60) == {"SUCCEEDED": 15}
    url = house.environment()["TASKS_APP_BROKER_URL"]
    with Celery(broker=url) as app:
        if url.startswith("redis"):
            app.conf.broker_transport_options = {"global_keyprefix": "tasks_app:"}
        deaf = app.control.broadcast("deafen", reply=True, timeout=10, limit=len(POOLS))
        assert len(deaf) == len(POOLS)

    ids, began = each(house), time.monotonic()
    states = house.over(ids, 100)
    elapsed = time.monotonic() - began
    print(f"\n{url.partition(':')[0]}: heard again after {elapsed:.1f} s")

    assert states == {"SUCCEEDED": 15}
    assert ["restarting the consumer" in worker.log() for worker in workers] == [True] * 3
    assert elapsed < BOUND_S
