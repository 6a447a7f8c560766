"""A worker that lives, is connected and hears nothing, in every pool and on every broker."""

from __future__ import annotations

import time

import pytest
from celery import Celery

from tests.broker.conftest import House

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.timeout(300, method="thread"),
    pytest.mark.parametrize("house", ["broker", "rabbitmq"], indirect=True),
]

BOUND_S = 15
"""Messages are published again after 2 s here, so a child starves after 3."""


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_deaf_worker_hears_again(house: House, pool: str) -> None:
    house.beat()
    worker = house.worker(
        "-P", pool, "-Q", pool, children=2 if pool == "prefork" else 1,
        TASKS_APP_IMPORTS="house_handlers,deafening",
    )  # fmt: skip
    assert house.over(house.create("ok", 5, queue=pool)) == {"SUCCEEDED": 5}
    url = house.environment()["TASKS_APP_BROKER_URL"]
    with Celery(broker=url) as app:
        if url.startswith("redis"):
            app.conf.broker_transport_options = {"global_keyprefix": "tasks_app:"}
        assert app.control.broadcast("deafen", reply=True, timeout=10, limit=1)

    ids, began = house.create("ok", 5, queue=pool), time.monotonic()
    states = house.over(ids, 60)
    elapsed = time.monotonic() - began
    print(f"\n{pool} on {url.partition(':')[0]}: heard again after {elapsed:.1f} s")

    assert states == {"SUCCEEDED": 5}
    assert "restarting the consumer" in worker.log()
    assert elapsed < BOUND_S
    house.end()
