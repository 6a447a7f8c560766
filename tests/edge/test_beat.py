"""Beat: it is killed, it is away, there are three of them, it sleeps, its servers are away."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from redis import Redis

from dev.torture.fault_proxy import FaultProxy
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.broker.listening import Scans
from tests.clock import until

pytestmark = [pytest.mark.usefixtures("alone"), pytest.mark.timeout(300, method="thread")]

KILLS = 4
BUSY_S = 5
LOAD_S = 15
LEADER = "SELECT holder FROM task_lease WHERE name = 'scan' AND held_until > now()"
MAINTAINED = "SELECT done_at FROM task_lease WHERE name = 'maintain'"
RUNNING = "SELECT count(*) FROM task_pending WHERE state = 'RUNNING'"
MINE = """
beat_schedule = {"mine": {"task": "mine", "schedule": 0.5, "options": {"queue": "mine"}}}
"""


@pytest.fixture
def redis(house: House) -> Iterator[Redis]:
    with Redis.from_url(house.environment()["TASKS_APP_BROKER_URL"]) as redis:
        redis.flushdb()
        yield redis


def leader(house: House, beats: list[CeleryProcess]) -> CeleryProcess:
    return until(
        lambda: next((b for b in beats if f":{b.pid}" in (house.sql(LEADER) or "")), None), 20
    )


def test_the_leading_beat_is_killed_again_and_again(house: House) -> None:
    """Two beats and no worker, so that nobody else could have scanned."""
    beats = [house.beat(), house.beat()]
    kills: list[datetime] = []
    with Scans(house.engine) as scans:
        for _ in range(KILLS):
            victim = leader(house, beats)
            seen = len(scans.seen)
            until(lambda seen=seen: len(scans.seen) > seen, 10)
            victim.kill()
            kills.append(house.sql("SELECT clock_timestamp()"))
            beats.remove(victim)
            beats.append(house.beat())
        until(lambda: scans.seen[-1] > kills[-1], 20)
    gaps = [scans.gap_around(kill) for kill in kills]
    print(f"\n{KILLS} kills: gap median {statistics.median(gaps):.2f} s, max {max(gaps):.2f} s")

    assert max(gaps) <= 7
    assert scans.longest_gap_s() <= 7


def test_without_beat_busy_workers_serve_the_others(house: House) -> None:
    """All children of one worker are busy; then all children of all workers are."""
    busy = house.worker("-Q", "busy,tasks_app")
    house.create("slow", 2, {"seconds": 300}, queue="busy")
    until(lambda: house.sql(RUNNING) == 2, 20)
    began = time.monotonic()
    free = house.worker("-Q", "default,tasks_app")
    waits = []
    while not waits or time.monotonic() < began + BUSY_S:
        created = time.monotonic()
        assert house.over(house.create("ok", 5), 20) == {"SUCCEEDED": 5}
        waits.append(time.monotonic() - created)
    vanished = house.create("slow", 2, {"seconds": 1})
    until(lambda: house.sql(RUNNING) == 4, 10)
    free.signal_all(signal.SIGKILL)
    house.sql("UPDATE task_lease SET done_at = NULL WHERE name = 'maintain'")
    with Scans(house.engine) as scans:
        until(lambda: house.sql(MAINTAINED), 20, "maintenance while all children are busy")
        until(lambda: house.sql(RUNNING) == 2, 20, "the rescue while all children are busy")
        until(lambda: len(scans.seen) > 10, 20)
    assert house.sql(RUNNING) == 2
    house.worker("-Q", "default,tasks_app")
    assert house.over(vanished, 30) == {"SUCCEEDED": 2}
    print(f"\nfive tasks each: median {statistics.median(waits):.2f} s, max {max(waits):.2f} s")

    assert busy.alive
    assert max(waits) < 10
    assert house.sql("SELECT max(crashes) FROM task_completed WHERE queue = 'busy'") in (None, 0)


def test_beat_comes_back_and_leads_at_once(house: House) -> None:
    """Its rank is higher: the standby's lease need not end."""
    worker = house.worker()
    until(lambda: (house.sql(LEADER) or "").startswith("standby"), 20)
    house.worker()

    with Scans(house.engine) as scans:
        until(lambda: len(scans.seen) > 2)
        beat = house.beat()
        leader(house, [beat])
        until(lambda: "another one scans" in worker.log(), 5)
        since = house.sql("SELECT held_since FROM task_lease WHERE name = 'scan'")
        until(lambda: scans.seen and (scans.seen[-1] - since).total_seconds() > 6, 30)

    assert scans.longest_gap_s() <= 4
    assert house.sql("SELECT held_since FROM task_lease WHERE name = 'scan'") == since


def test_many_beats_make_no_task_run_twice(house: House) -> None:
    """Two beats, and one within a worker: one leads at a time."""
    calm = {"TASKS_APP_LEASE": "30s"}
    house.beat(**calm)
    house.beat(**calm)
    for worker in (house.worker("-B", **calm), house.worker(**calm)):
        worker.says(" ready.")  # until then workers greet each other over the broker
    ids: list[int] = []
    ends = time.monotonic() + LOAD_S
    while time.monotonic() < ends:
        ids += house.create("ok", 40)
        target = len(ids) - 2_000
        done = "SELECT count(*) >= :target FROM task_completed"
        until(lambda t=target, d=done: house.sql(d, target=t), 60)
        time.sleep(0.25)  # the pace of the load

    states = house.over(ids, 120)
    assert states == {"SUCCEEDED": len(ids)}
    assert house.effects() == (len(ids), len(ids))
    assert house.sql("SELECT sum(failures + crashes) FROM task_completed") == 0


def test_a_leader_that_sleeps_fires_nothing_when_it_wakes(
    house: House, redis: Redis, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """SIGSTOP; the standby takes over; SIGCONT: the entry of the user is not fired by both."""
    beats = []
    for _ in range(2):
        folder: Path = tmp_path_factory.mktemp("beat")
        (folder / "celeryconfig.py").write_text(MINE)
        beats.append(house.start("beat", "-l", "INFO", folder=folder))
    first = leader(house, beats)
    first.signal_all(signal.SIGSTOP)
    second = leader(house, [beat for beat in beats if beat is not first])
    fired, began = redis.llen("tasks_app:mine"), time.monotonic()
    first.signal_all(signal.SIGCONT)
    first.says("this beat stands by", 10)
    until(lambda: redis.llen("tasks_app:mine") >= fired + 8, 30)
    elapsed = time.monotonic() - began

    assert elapsed > 8 * 0.5 - 1
    assert leader(house, beats) is second


def test_beats_outlive_the_database_and_then_scan(house: House, postgres) -> None:
    beats = [house.beat(), house.beat()]
    worker = house.worker()
    leader(house, beats)
    postgres.kill()
    for beat in beats:
        beat.says("failed 1 times in a row", 30)
    postgres.start()
    house.engine.dispose()
    until(lambda: again(house), 30)
    assert all(process.alive for process in (*beats, worker))
    assert house.over(house.create("ok", 10), 60) == {"SUCCEEDED": 10}


def again(house: House) -> bool:
    try:
        return bool(house.sql("SELECT true"))
    except Exception:
        return False


def test_a_broker_connection_that_passes_nothing_on_is_noticed(house: House) -> None:
    """Half open: nobody says that the connection is gone, and nothing comes through it."""
    upstream = ("127.0.0.1", house.broker.port)
    with FaultProxy(upstream) as proxy:
        through = house.environment()["TASKS_APP_BROKER_URL"].replace(
            str(house.broker.port), str(proxy.port)
        )
        worker = house.worker(TASKS_APP_BROKER_URL=through)
        house.beat()
        assert house.over(house.create("ok", 5)) == {"SUCCEEDED": 5}

        proxy.swallow()
        began = time.monotonic()
        states = house.over(house.create("ok", 5), 60)
        print(f"\nserved again after {time.monotonic() - began:.1f} s")

    assert states == {"SUCCEEDED": 5}
    assert worker.alive
