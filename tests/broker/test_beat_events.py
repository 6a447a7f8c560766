"""Beat: one leads, the others wait; without any the workers stand in; other schedulers work."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import Celery
from redis import Redis

from tasks_app.broker.beat import PoolScheduler
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.broker.listening import Scans
from tests.clock import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(120, method="thread")]

HOLDER = (
    "SELECT split_part(holder, ' ', 1) FROM task_lease WHERE name = 'scan' AND held_until > now()"
)
LEADER = "SELECT holder FROM task_lease WHERE name = 'scan' AND held_until > now()"
MAINTAINED = "SELECT count(*) FROM task_lease WHERE name = 'maintain' AND done_at IS NOT NULL"
MINE = """
beat_schedule = {"mine": {"task": "mine", "schedule": 0.5, "options": {"queue": "mine"}}}
"""


@pytest.fixture(scope="module")
def worker(house: House) -> CeleryProcess:
    return house.worker(TASKS_APP_IMPORTS="house_handlers,deafening")


@pytest.fixture(scope="module")
def beats(house: House, worker: CeleryProcess, tmp_path_factory) -> list[CeleryProcess]:
    """Two, with an entry of the user's own."""
    folders = [tmp_path_factory.mktemp("beat") for _ in range(2)]
    for folder in folders:
        (folder / "celeryconfig.py").write_text(MINE)
    return [house.start("beat", "-l", "INFO", folder=folder) for folder in folders]


def leader(house: House, beats: list[CeleryProcess]) -> CeleryProcess:
    return until(
        lambda: next((b for b in beats if f":{b.pid}" in (house.sql(LEADER) or "")), None), 20
    )


def test_a_look_that_is_a_moment_too_early_is_no_reason_to_go_without_a_nap() -> None:
    """Celery's is always 10 ms too early, and asked for so long, which took most of beat's time."""
    scheduler = PoolScheduler.__new__(PoolScheduler)
    assert scheduler.adjust(0.004) == 0.004
    assert scheduler.adjust(1.0) == 1.0


def test_without_beat_a_worker_scans_and_maintains(house: House, worker: CeleryProcess) -> None:
    ids = house.create("ok", 20)
    states = house.over(ids)
    assert states == {"SUCCEEDED": 20}
    assert house.effects() == (20, 20)
    assert house.sql(HOLDER) == "standby"
    assert house.sql(MAINTAINED) == 1


def test_a_consumer_that_hears_nothing_is_restarted(house: House, worker: CeleryProcess) -> None:
    """Alive, connected, its children idle, and tasks are due: it takes 45 seconds."""
    assert house.sql(HOLDER) == "standby"
    with Celery(broker=house.environment()["TASKS_APP_BROKER_URL"]) as app:
        app.conf.broker_transport_options = {"global_keyprefix": "tasks_app:"}
        assert app.control.broadcast("deafen", reply=True, timeout=10, limit=1)
    ids = house.create("ok", 5)
    states = house.over(ids, 100)
    assert states == {"SUCCEEDED": 5}
    assert "restarting the consumer" in worker.log()


def test_beat_comes_and_leads_at_once(
    house: House, worker: CeleryProcess, beats: list[CeleryProcess]
) -> None:
    leader(house, beats)
    ids = house.create("ok", 10)
    assert house.over(ids) == {"SUCCEEDED": 10}
    assert house.sql(HOLDER) == "beat"


def test_an_entry_of_the_user_fires_once_however_many_beats_run(
    house: House, beats: list[CeleryProcess]
) -> None:
    leader(house, beats)
    with Redis.from_url(house.environment()["TASKS_APP_BROKER_URL"]) as redis:
        fired = lambda: redis.llen("tasks_app:mine")  # noqa: E731
        since = "SELECT extract(epoch FROM now() - to_timestamp(:then))"
        then, before = house.sql("SELECT extract(epoch FROM now())"), fired()
        until(lambda: fired() >= before + 6, 20)
        elapsed = float(house.sql(since, then=float(then)))
    assert elapsed > 2.4


def test_a_standby_takes_over_when_the_leader_is_killed(
    house: House, beats: list[CeleryProcess]
) -> None:
    first = leader(house, beats)
    beats.remove(first)
    with Scans(house.engine) as scans:
        until(lambda: scans.seen)
        first.kill()
        second = leader(house, beats)
        until(lambda: len(scans.seen) > 3)
    assert second is beats[0]
    assert scans.longest_gap_s() <= 7


def test_a_leader_that_ends_in_good_order_lets_others_go_on_at_once(
    house: House, worker: CeleryProcess, beats: list[CeleryProcess]
) -> None:
    last = leader(house, beats)
    beats.remove(last)
    with Scans(house.engine) as scans:
        until(lambda: scans.seen)
        assert last.stop() == 0
        until(lambda: house.sql(HOLDER) == "standby", 20)
        until(lambda: len(scans.seen) > 3)
    assert scans.longest_gap_s() <= 4.5  # a lease of 5 s did not have to end


def test_another_scheduler_sends_the_scan_as_a_message(
    house: House, worker: CeleryProcess, tmp_path: Path
) -> None:
    other = house.start(
        "beat", "-l", "INFO", "-S", "celery.beat:PersistentScheduler", "-s", str(tmp_path / "s")
    )
    until(lambda: house.sql(HOLDER) == "schedule", 20)
    ids = house.create("ok", 10)
    assert house.over(ids) == {"SUCCEEDED": 10}
    assert house.sql(HOLDER) == "schedule"
    assert other.stop() == 0
