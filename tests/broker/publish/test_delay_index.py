"""The delay index: what is due is hinted at then, and whatever happens to it costs no task."""

from __future__ import annotations

import base64
import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator

import pytest
from celery import Celery
from redis import Redis

from tasks_app.broker.config.configuration import configuration
from tasks_app.broker.guard.other_pools import POOL_VARIABLE
from tasks_app.broker.publish import delay_index as room
from tasks_app.broker.publish.delay_index import Moved, RedisDelayIndex, delay_index
from tasks_app.domain.config.settings import Settings
from tasks_app.pool.dispatch.upcoming import Upcoming
from tasks_app.pool.pool_name import pool_name
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.broker.publish.lateness import lateness
from tests.waiting import until

DUE, PUMP = "tasks_app:delay.due", "tasks_app:delay.pump"
"""Of an index that knows no pool."""
MESSAGES = "SELECT last_value FROM task_dispatch_id_seq"


@pytest.fixture
def redis(house: House) -> Iterator[Redis]:
    with Redis.from_url(house.broker.url_of(13)) as redis:
        redis.flushdb()
        yield redis


@pytest.fixture
def make(
    house: House, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], RedisDelayIndex]]:
    """Another process's index."""
    monkeypatch.delenv(POOL_VARIABLE, raising=False)
    made: list[RedisDelayIndex] = []

    def make() -> RedisDelayIndex:
        settings = Settings(broker_url=house.broker.url_of(13))
        app = Celery("pumps", set_as_current=False)
        app.conf.update(configuration(settings))
        index = delay_index(app, settings)
        assert index is not None
        made.append(index)
        return index

    yield make
    for index in made:
        index.broker.drop()


@pytest.fixture
def index(make: Callable[[], RedisDelayIndex]) -> RedisDelayIndex:
    return make()


def entry(task_id: int, due_in_s: float = 0.0, queue: str = "mail") -> Upcoming:
    return Upcoming(task_id, queue, due_in_s)


def seconds_until_it_fails(index: RedisDelayIndex) -> float:
    began = time.monotonic()
    with pytest.raises(Exception, match=r"[Tt]ime"):
        index.move()
    return time.monotonic() - began


def hinted(redis: Redis, queue: str = "mail") -> list[list[int]]:
    """The ids of each message in the queue, first sent first."""
    bodies = [
        json.loads(raw)["body"] for raw in reversed(redis.lrange(f"tasks_app:{queue}", 0, -1))
    ]
    return [json.loads(base64.b64decode(body))[0][1] for body in bodies]


class TestTheIndex:
    def test_what_is_due_goes_to_its_queue_and_the_rest_waits(
        self, index: RedisDelayIndex, redis: Redis
    ) -> None:
        index.enter([entry(1), entry(2, 50.0), entry(3, 0.0, "a queue")])

        moved = index.move()

        assert (moved.pumps, moved.tasks) == (True, 2)
        assert 49.0 < moved.wait_s <= 50.0
        assert hinted(redis) == [[1]]
        assert hinted(redis, "a queue") == [[3]]
        assert redis.zrange(DUE, 0, -1) == [b"2 mail"]
        assert index.move().tasks == 0

    def test_nothing_is_early(self, index: RedisDelayIndex) -> None:
        index.enter([entry(1, 0.3)])
        first = index.move()

        assert first.tasks == 0
        assert until(lambda: index.move().tasks == 1)

    def test_a_redis_that_hangs_holds_nobody_up_for_longer_than_a_second(
        self, index: RedisDelayIndex, house: House
    ) -> None:
        """On a connection that was fine just now, and on a fresh one."""
        index.move()
        os.kill(house.broker.pid, signal.SIGSTOP)
        try:
            took = [seconds_until_it_fails(index) for _ in range(2)]
        finally:
            os.kill(house.broker.pid, signal.SIGCONT)

        assert max(took) < 1.7
        assert index.move().pumps

    def test_of_several_estimates_the_earliest_counts(
        self, index: RedisDelayIndex, redis: Redis
    ) -> None:
        """Each is late by its own way from the database."""
        for due_in_s in (30.0, 20.0, 25.0):
            index.enter([entry(1, due_in_s)])

        assert 19.0 < index.move().wait_s <= 20.0

    def test_one_pumps_until_it_leaves_or_dies(
        self, make: Callable[[], RedisDelayIndex], redis: Redis
    ) -> None:
        one, other = make(), make()
        assert not one.enter([entry(1), entry(2, 0.0, "b")])
        assert one.move().pumps

        assert other.enter([entry(3)])
        assert other.move() == Moved(pumps=False)
        assert one.move().tasks == 1
        assert 0 < redis.pttl(PUMP) <= 1000 * room.LOCK_S
        one.leave()
        assert other.move().pumps
        one.leave()  # late: it is somebody else's now
        assert not one.move().pumps
        redis.delete(PUMP)  # its time is over
        assert one.move().pumps

    def test_a_task_that_is_entered_again_for_later_stays_when_its_old_entry_is_taken(
        self, index: RedisDelayIndex, redis: Redis
    ) -> None:
        index.enter([entry(1)])
        assert index.move().tasks == 1
        index.enter([entry(1, 30.0)])  # it snoozed

        assert index.move().tasks == 0
        assert redis.zcard(DUE) == 1

    def test_a_deep_queue_gets_nothing(self, index: RedisDelayIndex, redis: Redis) -> None:
        redis.rpush("tasks_app:mail", *["m"] * room.DEEP)
        index.enter([entry(1), entry(2, 0.0, "b")])

        index.move()

        assert redis.llen("tasks_app:mail") == room.DEEP
        assert hinted(redis, "b") == [[2]]

    def test_while_messages_wait_what_becomes_due_shares_one(
        self, index: RedisDelayIndex, redis: Redis
    ) -> None:
        index.enter([entry(1), entry(2)])
        assert index.move().wait_s > room.CROWDED_S
        index.enter([entry(3), entry(4)])
        index.enter([entry(5, 0.01)])

        assert index.move().wait_s >= room.CROWDED_S
        one, two, rest = hinted(redis)
        assert (one, two, rest[:2]) == ([1], [2], [3, 4])

    def test_a_crowd_shares_messages_and_memory_is_bounded(
        self, index: RedisDelayIndex, redis: Redis
    ) -> None:
        index.enter([entry(n) for n in range(1, room.MOST + 2)])

        moved = index.move()

        assert (moved.tasks, moved.wait_s) == (room.MOST, 0.0)
        assert [len(ids) for ids in hinted(redis)] == [room.MOST // room.MESSAGES] * room.MESSAGES
        assert 0 < redis.ttl(DUE) <= room.KEPT_S

    def test_a_flushed_redis_is_only_an_empty_index(
        self, index: RedisDelayIndex, redis: Redis
    ) -> None:
        index.enter([entry(1)])
        index.move()
        redis.flushdb()
        redis.script_flush()

        assert not index.enter([entry(2)])
        assert index.move().tasks == 1

    def test_there_is_none_on_rabbitmq_and_none_when_switched_off(self, house: House) -> None:
        for settings in (
            Settings(broker_url="amqp://nobody"),
            Settings(broker_url=house.broker.url_of(13), delay_index=False),
        ):
            app = Celery("pumps", set_as_current=False)
            app.conf.update(configuration(settings))
            assert delay_index(app, settings) is None


@pytest.fixture(scope="module")
def worker(house: House) -> CeleryProcess:
    house.beat(TASKS_APP_SCAN_INTERVAL="2s")
    return house.worker()


@pytest.mark.test_all
@pytest.mark.timeout(120, method="thread")
class TestWithWorkers:
    """A scan every other second; what runs earlier than that, and is in no ledger, was pumped."""

    @pytest.fixture
    def own(self, house: House) -> Iterator[Redis]:
        with Redis.from_url(house.broker.url_of(house.number % 16)) as redis:
            yield redis

    @pytest.fixture
    def due(self, house: House) -> str:
        """The index of this pool."""
        with house.engine.connect() as connection:
            return f"tasks_app:delay.{pool_name(connection)}.due"

    @pytest.mark.test_all
    def test_delayed_tasks_start_when_they_are_due(
        self, house: House, worker: CeleryProcess
    ) -> None:
        worker.says("this worker starts delayed tasks on time")
        before = house.sql(MESSAGES)
        ids = [i for n in range(30) for i in house.create("plain", delay=3.0 + n / 15)]

        assert house.over(ids) == {"SUCCEEDED": 30}

        assert statistics.median(lateness(house, ids)) < 0.1  # the scan comes every 2 s
        assert min(lateness(house, ids)) >= 0
        assert house.sql(MESSAGES) - before < 10

    @pytest.mark.test_all
    def test_what_was_cancelled_or_put_off_after_it_was_entered_does_not_run_then(
        self, house: House, worker: CeleryProcess, own: Redis, due: str
    ) -> None:
        cancelled, later = house.create("plain", 2, delay=4.0)
        until(lambda: own.zcard(due) >= 2)
        house.sql("DELETE FROM task_pending WHERE id = :id", id=cancelled)
        house.sql(
            "UPDATE task_pending SET due_at = due_at + interval '3 s', scan_at = scan_at"
            " + interval '3 s' WHERE id = :id",
            id=later,
        )

        assert house.over([later]) == {"SUCCEEDED": 1}
        assert house.task(later).attempt == 1
        assert min(lateness(house, [later])) >= 0

    def test_a_paused_queue_keeps_what_becomes_due_until_it_is_resumed(
        self, house: House, worker: CeleryProcess, own: Redis, due: str
    ) -> None:
        task_id = house.create("plain", delay=3.0)[0]
        until(lambda: own.zcard(due) == 1)
        house.sql("INSERT INTO task_queue_pause VALUES ('default')")
        until(lambda: own.zcard(due) == 0)
        assert house.task(task_id).state == "PENDING"

        house.sql("DELETE FROM task_queue_pause")

        assert house.over([task_id]) == {"SUCCEEDED": 1}

    def test_a_flush_in_between_costs_no_task(
        self, house: House, worker: CeleryProcess, own: Redis, due: str
    ) -> None:
        ids = house.create("plain", 20, delay=5.0)
        until(lambda: own.zcard(due) == 20)

        own.flushdb()

        assert house.over(ids) == {"SUCCEEDED": 20}
        assert max(lateness(house, ids)) < 2 + 1
        assert {house.task(i).attempt for i in ids} == {1}
