"""Beat is woken by NOTIFY: tasks of SQL go to the broker long before the next scan."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks_app.pool.dispatch.notifications import install_trigger, remove_trigger
from tests.broker.conftest import House
from tests.runtime.notify.conftest import LISTENERS
from tests.waiting import until

pytestmark = pytest.mark.test_all

SCANS = {"TASKS_APP_SCAN_INTERVAL": "60s"}
SOON_S = 20.0


@pytest.fixture
def trigger(house: House) -> Iterator[None]:
    with house.engine.begin() as connection:
        install_trigger(connection)
    yield
    with house.engine.begin() as connection:
        remove_trigger(connection)


@pytest.mark.usefixtures("trigger")
def test_tasks_of_sql_are_published_long_before_the_next_scan(house: House) -> None:
    house.worker(children=1, **SCANS)
    beat = house.beat(**SCANS)
    until(lambda: house.sql(LISTENERS) == 1, 30, "LISTEN")

    for _ in range(3):
        task_id = house.sql("SELECT task_create('plain')")
        assert house.over([task_id], SOON_S) == {"SUCCEEDED": 1}

    assert beat.stop() == 0
    assert house.sql(LISTENERS) == 0


def test_without_hints_beat_does_not_listen(house: House) -> None:
    beat = house.beat(TASKS_APP_HINTS="off")
    beat.says("this beat leads")

    assert house.sql(LISTENERS) == 0
