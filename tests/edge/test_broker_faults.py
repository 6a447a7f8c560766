"""Brokers that are stopped, wiped, cut off or restarted under load: workers resume by themselves.

Every task is done, every effect is there once; printed is how long it
took from the fault's end until the first task was done again, and until nothing was left over.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from redis import Redis
from sqlalchemy import Engine

from dev.torture.fault_proxy import FaultProxy
from dev.torture.rabbit_node import Node, rabbitmq_program
from tasks_app.embedded.servers import Valkey
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.edge.load import SPANS, Load
from tests.waiting import until

pytestmark = [pytest.mark.test_all, pytest.mark.timeout(400, method="thread")]

OUTAGE_S = 8
SINCE = "SELECT count(*) FROM task_completed WHERE finished_at > :instant"
CONSUMER_TIMEOUT = (
    "application:set_env(rabbit, consumer_timeout, {}), "
    "application:set_env(rabbit, channel_tick_interval, {})."
)
"""In milliseconds: how long a message may stay unacknowledged, and how often that is looked at."""
CLOCK = "SELECT clock_timestamp()"


class Proxied:
    """A broker behind a proxy, as a house's broker."""

    def __init__(self, url: str, proxy: FaultProxy) -> None:
        parts = urlsplit(url)
        account = parts.netloc.rpartition("@")[0]
        self._url = parts._replace(netloc=f"{account}@127.0.0.1:{proxy.port}").geturl()

    def url_of(self, _number: int) -> str:
        """Return the URL that leads through the proxy."""
        return self._url


class Scene:
    """A worker and a beat on a broker."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.worker: CeleryProcess = house.worker(**SPANS)
        self.beat: CeleryProcess = house.beat(**SPANS)

    def after(self, load: Load, what: str) -> None:
        """The fault is over: measure, let the load end, and count."""
        house = self.house
        ended, began = house.sql(CLOCK), time.monotonic()
        until(lambda: house.sql(SINCE, instant=ended) > 0, 120, "the first task after the fault")
        first = time.monotonic() - began
        load.goes_on(2)
        load.__exit__()
        states = house.over(load.ids, 180)
        took = time.monotonic() - began
        number = len(load.ids)
        print(
            f"\n| {what} | {number} | {number - states.get('SUCCEEDED', 0)} "
            f"| {house.effects()[0] - number} | {first:.1f} s | {took:.1f} s |"
        )
        assert states == {"SUCCEEDED": number}
        assert house.effects() == (number, number)
        assert self.worker.alive
        assert self.beat.alive


@pytest.fixture
def scene_on(
    shared_engine: Engine, database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[object], Scene]]:
    houses: list[House] = []

    def start(broker: object) -> Scene:
        house = House(shared_engine, database_url, broker, tmp_path_factory.mktemp("faults"))
        houses.append(house)
        house.sql("DELETE FROM task_worker")
        house.clean()
        return Scene(house)

    yield start
    for house in houses:
        house.end()


class TestValkey:
    def test_stopped(self, scene_on: Callable[[object], Scene], broker: Valkey) -> None:
        scene = scene_on(broker)
        with Load(scene.house) as load:
            send_signal(broker, signal.SIGSTOP)
            load.goes_on(OUTAGE_S)
            send_signal(broker, signal.SIGCONT)
            scene.after(load, f"Valkey SIGSTOP {OUTAGE_S} s")

    def test_wiped(self, scene_on: Callable[[object], Scene], broker: Valkey) -> None:
        scene = scene_on(broker)
        with Load(scene.house) as load:
            load.ids += scene.house.create("ok", 1500)
            with Redis.from_url(scene.house.environment()["TASKS_APP_BROKER_URL"]) as redis:
                until(lambda: redis.llen("tasks_app:default"))
                redis.flushall()
            scene.after(load, "Valkey FLUSHALL with 1,500 tasks published")

    def test_in_a_black_hole(self, scene_on: Callable[[object], Scene], broker: Valkey) -> None:
        with FaultProxy(("127.0.0.1", broker.port)) as proxy:
            scene = scene_on(Proxied(broker.url_of(9), proxy))
            with Load(scene.house) as load:
                proxy.black_out()
                load.goes_on(OUTAGE_S)
                proxy.cut()
                proxy.let_through()
                scene.after(load, f"Valkey black-holed {OUTAGE_S} s")

    def test_out_of_memory(self, scene_on: Callable[[object], Scene], broker: Valkey) -> None:
        scene = scene_on(broker)
        with (
            Load(scene.house) as load,
            Redis.from_url(scene.house.environment()["TASKS_APP_BROKER_URL"]) as redis,
        ):
            redis.config_set("maxmemory", "1mb")
            load.goes_on(6)
            redis.config_set("maxmemory", "0")
            scene.after(load, "Valkey out of memory for 6 s, noeviction")


def send_signal(broker: Valkey, number: signal.Signals) -> None:
    assert broker.started is not None
    os.kill(broker.started.pid, number)


@pytest.mark.skipif(
    rabbitmq_program("rabbitmq-server") is None,
    reason="RabbitMQ is not tested: it needs rabbitmq-server installed",
)
class TestRabbitMQ:
    def test_restarted(self, scene_on: Callable[[object], Scene], node: Node) -> None:
        scene = scene_on(node)
        with Load(scene.house) as load:
            node.control("stop_app")
            load.goes_on(5)
            node.control("start_app")
            scene.after(load, "RabbitMQ stop_app, start_app after 5 s")

    def test_in_a_black_hole(self, scene_on: Callable[[object], Scene], node: Node) -> None:
        with FaultProxy(("127.0.0.1", node.port)) as proxy:
            scene = scene_on(Proxied(node.url, proxy))
            with Load(scene.house) as load:
                proxy.black_out()
                load.goes_on(OUTAGE_S)
                proxy.cut()
                proxy.let_through()
                scene.after(load, f"RabbitMQ black-holed {OUTAGE_S} s")

    def test_a_channel_that_it_closes_is_opened_again(
        self, scene_on: Callable[[object], Scene], node: Node
    ) -> None:
        """Messages behind busy children are not acknowledged yet: its consumer_timeout hits."""
        node.control("eval", CONSUMER_TIMEOUT.format(3_000, 1_000))
        try:
            scene = scene_on(node)
            ids = scene.house.create("slow", 8, {"seconds": 5.0})
            scene.worker.says("delivery acknowledgement", 60)
            states = scene.house.over(ids, 120)
        finally:
            node.control("eval", CONSUMER_TIMEOUT.format(1_800_000, 60_000))

        assert states == {"SUCCEEDED": 8}
        assert scene.house.effects() == (8, 8)
        assert scene.worker.alive
