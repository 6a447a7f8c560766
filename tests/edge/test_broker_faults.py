"""A broker that is away, blocked or deaf."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery
from redis import Redis
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from dev.torture.fault_proxy import FaultProxy
from dev.torture.rabbit_node import Node, rabbitmq_program
from tasks_app import create_schedule
from tasks_app.embedded.servers import Valkey
from tests.broker.celery_process import CeleryProcess
from tests.broker.conftest import House
from tests.broker.side_by_side import CASES, _create
from tests.clock import until
from tests.edge.load import SPANS, Load
from tests.environment import run_program

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
        return self._url


class Scene:
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


@pytest.mark.timeout(400, method="thread")
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


@pytest.mark.timeout(400, method="thread")
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


FIRES = 5
LONGEST_S = 4.0
SCAN_AGE = (
    "SELECT extract(epoch FROM clock_timestamp() - done_at)::float FROM task_lease"
    " WHERE name = 'scan'"
)
FIRED = "SELECT count(*) FROM task_all WHERE name = 'when'"


@contextmanager
def memory_alarm(node: Node) -> Iterator[None]:
    node.control("set_vm_memory_high_watermark", "0.0000001")
    try:
        yield
    finally:
        node.control("set_vm_memory_high_watermark", "0.4")


def doctor(house: House) -> str:
    command = [Path(sys.executable).with_name("tasks-app"), "doctor"]
    run = run_program(command, env=house.environment(), timeout=60)
    return "\n".join(line for line in run.stdout.splitlines() if "broker" in line)


@pytest.fixture(params=[True, False], ids=["beat", "standbys"])
def lost(house: House, request: pytest.FixtureRequest) -> Iterator[tuple[int, CeleryProcess]]:
    """A task in the hands of a worker; another one lives, and a schedule is due each second."""
    doomed, worker = house.worker("-Q", "doomed", children=1), house.worker(children=1)
    processes = [doomed, worker, *([house.beat()] if request.param else [])]
    task_id = house.create("slow", payload={"seconds": 60}, queue="doomed", max_attempts=3)[0]
    until(lambda: house.task(task_id).state == "RUNNING", 30)
    with Session(house.engine) as session, session.begin():
        create_schedule(session, "each_second", "when", every="1s")
    yield task_id, doomed
    for process in processes:
        process.end()
    house.sql("DELETE FROM task_worker")
    house.sql("DELETE FROM task_schedule")


@pytest.mark.timeout(180, method="thread")
@pytest.mark.skipif(
    rabbitmq_program("rabbitmq-server") is None,
    reason="RabbitMQ is not tested: it needs rabbitmq-server installed",
)
@pytest.mark.parametrize("house", ["node"], indirect=True, scope="module")
def test_a_memory_alarm_stops_neither_scan_nor_schedules_nor_rescue(
    house: House, node: Node, lost: tuple[int, CeleryProcess]
) -> None:
    """On a node of its own: the alarm stops whoever publishes, tests of other jobs as well."""
    task_id, doomed = lost
    ages: list[float] = []
    with memory_alarm(node):
        doomed.signal_all(signal.SIGKILL)
        ids = house.create("ok", 20)
        until(lambda: house.task(task_id).crashes == 1, 30, "the rescue")  # it may have led
        fired = house.sql(FIRED)

        def goes_on() -> bool:
            ages.append(house.sql(SCAN_AGE))
            return house.sql(FIRED) >= fired + FIRES

        until(goes_on, 30, "schedules")
        said = doctor(house)
    alarm_over = time.monotonic()

    assert house.over(ids) == {"SUCCEEDED": 20}

    assert time.monotonic() - alarm_over < 10
    assert max(ages) < LONGEST_S, ages
    assert "refuses messages (connection.blocked" in said, said
    assert "nothing could be published since 20" in said, said
    until(lambda: "since 20" not in doctor(house))


POOLS = ("prefork", "threads", "solo")
BOUND_S = 75
"""A child starves when a task has been due for 45 s; it looks every six."""


def each(house: House) -> list[int]:
    return [task_id for pool in POOLS for task_id in house.create("ok", 5, queue=pool)]


@pytest.mark.timeout(180, method="thread")
@pytest.mark.parametrize("house", ["broker", "rabbitmq"], indirect=True)
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


FAILED = {
    *("retries used up, own exception", "retries used up, Celery's", "no retries", "Reject"),
    *("autoretry with backoff", "dont_autoretry_for", "an exception", "throws"),
    *("soft limit, not caught", "soft limit of the call", "a result that is no JSON"),
    "callbacks of failure",
}
ENDS = {name: "FAILED" if name in FAILED else "SUCCEEDED" for name in CASES}


ENDS |= {"Ignore": "SKIPPED", "expired": "EXPIRED"}


LIMITED = {name for name in CASES if name.startswith("soft limit")}
ALL, UNLIMITED = (
    {"TASKS_APP_CELERY_APP": "sample_celery"},
    {"TASKS_APP_IMPORTS": "sample_unlimited"},
)
"""Threads and solo refuse to start for tasks whose limits they cannot enforce."""


@pytest.mark.parametrize("pool", ["spawn", "threads", "solo"])
def test_every_case_ends_as_it_should(
    house: House, sample: Any, backend: Redis, tmp_path: Path, pool: str
) -> None:
    whole = pool == "spawn"
    if whole:
        (tmp_path / "celeryconfig.py").write_text("worker_pool_start_method = 'spawn'\n")
    names = [name for name in CASES if whole or name not in LIMITED]
    environment = {k: os.environ[k] for k in ("SAMPLE_BROKER", "SAMPLE_BACKEND")}
    short = {"TASKS_APP_SCAN_INTERVAL": "100ms", "TASKS_APP_LEASE": "20s"}
    kind = () if whole else ("-P", pool)
    worker = house.worker(
        *kind, folder=tmp_path, ready=False, **(ALL if whole else UNLIMITED),
        **environment, **short,
    )  # fmt: skip
    beat = house.beat(**short)
    house.ready(worker, 2 if whole else 1)
    began = sample.app.now()

    with house.engine.begin() as connection:
        ids = {n: _create(connection, sample, n, CASES[n], began) for n in names}
    house.over(list(ids.values()), 90)

    assert {n: str(house.task(ids[n]).state) for n in names} == {n: ENDS[n] for n in names}
    beat.stop()
    assert worker.stop() == 0
    backend.flushdb()
