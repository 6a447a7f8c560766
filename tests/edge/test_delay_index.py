"""The delay index under fire: pumps are killed, Redis is restarted, many tasks wait."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from tasks_app import NewTask, create_tasks
from tasks_app.embedded import Valkey
from tests.broker.conftest import House
from tests.broker.publish.lateness import keys_of, lateness
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)
HISTORY = "SELECT count(*) FROM task_all WHERE attempt > 1"


@pytest.fixture(autouse=True)
def _alone(house: House) -> Iterator[None]:
    """No processes of other tests: one beat leads, and it may be on another Redis."""
    yield
    house.end()


def spread(house: House, number: int, first_s: float, span_s: float) -> list[int]:
    """Create tasks that become due at random instants."""
    with house.engine.begin() as connection:
        return create_tasks(
            connection,
            [
                NewTask("plain", {}, {"delay": first_s + random.random() * span_s})
                for _ in range(number)
            ],
        )  # type: ignore[return-value]


def report(what: str, late: list[float]) -> None:
    ms = sorted(1000 * each for each in late)
    print(
        f"\n{what}: lateness median {ms[len(ms) // 2]:.1f} ms, p99 {ms[int(len(ms) * 0.99)]:.1f},"
        f" most {ms[-1]:.1f}"
    )


def test_pumps_are_killed_and_no_task_is_lost_or_run_twice(house: House) -> None:
    """Three workers; twice the parent that pumps dies, and its children with it."""
    house.beat()
    workers = [house.worker(children=1) for _ in range(3)]
    redis = Redis.from_url(house.broker.url_of(house.number % 16))
    ids = spread(house, 300, 3.0, 8.0)
    for _ in range(2):
        until(lambda: redis.exists(keys_of(house)[1]))
        before = redis.get(keys_of(house)[1])
        pumping = [
            w for w in workers if w.alive and w.log().count("this worker starts delayed tasks")
        ][-1]
        pumping.signal_all(signal.SIGKILL)
        until(lambda before=before: redis.get(keys_of(house)[1]) not in (None, before))

    assert house.over(ids, 60) == {"SUCCEEDED": 300}
    assert house.effects() == (0, 0)
    assert house.sql(HISTORY) <= 10  # what was running in the killed children
    report("two pumps killed", lateness(house, ids))
    redis.close()


def test_redis_is_restarted_and_delayed_tasks_run(house: House, open_folder: Path) -> None:
    with Valkey(open_folder / "own", persist=False) as valkey:
        address = {"TASKS_APP_BROKER_URL": valkey.url}
        house.beat(**address)
        worker = house.worker(**address)
        worker.says("this worker starts delayed tasks on time")
        ids = spread(house, 200, 3.0, 8.0)
        until(lambda: Redis.from_url(valkey.url).zcard(keys_of(house)[0]))
        valkey.stop()
        ends = time.monotonic() + 2
        until(lambda: time.monotonic() > ends)
        valkey.start()

        assert house.over(ids, 90) == {"SUCCEEDED": 200}
        assert house.sql(HISTORY) == 0
        report("Redis away for two seconds", lateness(house, ids))


def test_a_hundred_thousand_delayed_tasks_leave_the_index_small(house: House) -> None:
    house.sql(
        "INSERT INTO task_pending (name, queue, priority, payload, due_at, scan_at)"
        " SELECT 'plain', 'default', 5, '{}', t, t FROM ("
        " SELECT now() + interval '1 hour' + n * interval '10 ms' AS t"
        " FROM generate_series(1, 100000) n)"
    )
    try:
        house.beat()
        house.worker()
        redis = Redis.from_url(house.broker.url_of(house.number % 16))
        until(lambda: redis.exists(keys_of(house)[1]))
        ids = spread(house, 200, 3.0, 5.0)
        most = 0

        def passed() -> bool:
            nonlocal most
            most = max(most, redis.zcard(keys_of(house)[0]))
            return house.sql("SELECT count(*) FROM task_completed") == 200

        until(passed, 60)
        assert most <= 1_000
        report("beside a hundred thousand", lateness(house, ids))
        redis.close()
    finally:
        house.sql("TRUNCATE task_pending")
