"""What a worker waits for when it starts: nothing that only Celery's own tasks need."""

from __future__ import annotations

import pytest

from tests.broker.conftest import House

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

MINGLES = "mingle: "
"""Celery asks other workers for a second which of its tasks were revoked."""


def test_it_asks_no_neighbours_where_it_serves_our_queues_only(house: House) -> None:
    worker = house.worker(children=1)
    worker.says(" ready.")
    assert MINGLES not in worker.log()


def test_it_asks_them_where_it_serves_queues_of_others(house: House) -> None:
    worker = house.worker("-Q", "default,elsewhere", children=1)
    worker.says(" ready.")
    assert MINGLES in worker.log()
