"""Hints of real producers: short-lived, forked, beside somebody else's Celery, without a broker."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import Redis

from dev.torture.fault_proxy import FaultProxy
from tasks_app.broker.app import make_celery
from tasks_app.broker.publisher import CeleryHints
from tasks_app.domain.config.settings import Settings
from tasks_app.runtime.hint_sender import Hint, HintCounts, HintSender
from tasks_app.runtime.hints import Hints
from tests.broker.conftest import House
from tests.clock import until

pytestmark = pytest.mark.test_all

HEAD = """
import json, os, sys, time
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from tasks_app import create_task
from tasks_app.runtime.hints import HINTS

engine = create_engine(os.environ["TASKS_APP_DATABASE_URL"], poolclass=NullPool)

def commit(name="plain", **options):
    with Session(engine) as session, session.begin():
        return create_task(session, name, **options)

def heard(number):
    ends = time.monotonic() + 30
    while HINTS.counts().sent < number and time.monotonic() < ends:
        time.sleep(0.005)
    return HINTS.counts().sent

def heavy():
    return [name for name in ("celery", "kombu", "redis") if name in sys.modules]

"""


@pytest.fixture(scope="module", autouse=True)
def worker(house: House) -> Any:
    """A worker and no beat: what runs was hinted."""
    return house.worker()


class Producer:
    """A script that commits tasks, in a folder of its own."""

    def __init__(self, house: House, folder: Path) -> None:
        self._house, self._folder = house, folder

    def run(self, script: str, said: str = "", **environment: str) -> Any:
        """Run to the end; return what it printed, as JSON; to stderr it must have ``said``."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TASKS_APP_", "CELERY_"))}
        done = subprocess.run(
            # Since 3.12 Python warns of any fork beside a thread, whose safety is what is tested.
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", HEAD + script],
            cwd=self._folder,
            env={**kept, **self._house.environment(), **environment},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        words = done.stderr.decode()
        assert said in words if said else not words, words
        return json.loads(done.stdout)


@pytest.fixture
def producer(house: House, tmp_path: Path) -> Producer:
    return Producer(house, tmp_path)


def test_a_script_that_commits_and_ends_is_heard(house: House, producer: Producer) -> None:
    """Its last act before the exit is the commit; Celery is not imported before that."""
    script = """
from tasks_app.runtime import hints
hints.HINTS.exit_patience_s = 30  # a busy machine needs more than a second to import Celery
import atexit
atexit.register(lambda: print(json.dumps([task_id, before, inside, HINTS.counts().sent])))  # last
before = heavy()
with Session(engine) as session, session.begin():
    task_id = create_task(session, "plain")
    inside = heavy()
"""
    task_id, before, inside, sent = producer.run(script)

    assert (before, inside, sent) == ([], [], 1)
    assert house.over([task_id]) == {"SUCCEEDED": 1}


def test_switched_off_no_thread_is_started_and_no_celery_imported(
    house: House, producer: Producer
) -> None:
    script = """
import threading
commit()
HINTS.flush()
print(json.dumps([heavy(), threading.active_count()]))
"""
    assert producer.run(script, TASKS_APP_HINTS="no") == [[], 1]


def test_parent_and_forked_child_are_both_heard(house: House, producer: Producer) -> None:
    """The child inherits neither thread nor socket; the parent's go on working."""
    script = """
ids = [commit()]
sent = [heard(1)]
read, write = os.pipe()
if not os.fork():
    ids = [commit(), commit()]
    os.write(write, json.dumps([ids, heard(2)]).encode())
    sys.exit()  # through atexit, as a parent
os.wait()
ids += [commit()]
theirs, their_sent = json.loads(os.read(read, 9999))
print(json.dumps([ids + theirs, [*sent, their_sent, heard(2)]]))
"""
    ids, sent = producer.run(script)

    assert sent == [1, 2, 2]
    assert house.over(ids) == {"SUCCEEDED": 4}


def test_somebody_elses_celery_is_not_disturbed(house: House, producer: Producer) -> None:
    script = """
import celery, celery._state, celery.signals as signals

theirs = celery.Celery("theirs", broker="memory://")
theirs.set_default()

@theirs.task(name="theirs.task")
def task(): ...

SIGNALS = [getattr(signals, name) for name in signals.__all__]
receivers = lambda: [len(signal.receivers or ()) for signal in SIGNALS]
before = receivers(), theirs.conf.broker_url, sorted(theirs.tasks)
task_id = commit()
sent = heard(1)
after = receivers(), theirs.conf.broker_url, sorted(theirs.tasks)
current = celery.current_app.main, celery._state.default_app.main
print(json.dumps([task_id, sent, before == after, current,
                  "tasks_app.celery" in sys.modules]))
"""
    task_id, sent, undisturbed, current, imported = producer.run(script)

    assert (sent, undisturbed, current, imported) == (1, True, ["theirs", "theirs"], False)
    assert house.over([task_id]) == {"SUCCEEDED": 1}


def test_a_handlers_tasks_are_heard(house: House) -> None:
    (task_id,) = house.create("parent", payload={"children": 3})
    hint(house, task_id)
    until(lambda: house.sql("SELECT count(*) FROM task_completed") == 4, 30)


def test_a_queue_that_nobody_serves_and_a_name_that_nobody_knows_do_no_harm(
    house: House, producer: Producer
) -> None:
    script = """
ids = [commit(queue="nobody") for _ in range(3)] + [commit("unknown") for _ in range(3)]
ids += [commit()]
heard(7)
print(json.dumps(ids))
"""
    *others, known = producer.run(script)
    assert house.over([known]) == {"SUCCEEDED": 1}
    assert {house.task(i).state for i in others} == {"PENDING"}
    assert {house.task(i).attempt for i in others} == {0}


EXIT = """
import atexit, time
import celery.app.amqp, kombu.transport.redis  # so that only the broker is waited for

began = []
atexit.register(lambda: print(json.dumps(time.monotonic() - began[0])))  # runs after ours
commit()
while {wait}:
    time.sleep(0.001)
began.append(time.monotonic())
"""


def test_a_broker_that_does_not_answer_delays_the_exit_by_a_second(
    producer: Producer, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"redis://127.0.0.1:{deaf.getsockname()[1]}/0"
        waited = producer.run(EXIT.format(wait="False"), TASKS_APP_BROKER_URL=url)
    patience_s = Hints().exit_patience_s
    assert patience_s - 0.1 < waited < patience_s + 2


@pytest.mark.parametrize("kind", ["broker", "rabbitmq"])
def test_how_many_wait_is_known_on_every_broker_and_a_dead_connection_is_replaced(
    request: pytest.FixtureRequest, kind: str
) -> None:
    url = urlsplit(request.getfixturevalue(kind).url_of(15))
    with FaultProxy((url.hostname, url.port)) as proxy:  # type: ignore[arg-type]
        through = url._replace(netloc=url.netloc.replace(f":{url.port}", f":{proxy.port}"))
        hints = CeleryHints(Settings(broker_url=through.geturl()))
        queue = f"depth-{kind}"
        assert hints.depth(queue) == (None if kind == "rabbitmq" else 0)

        worker = make_celery(Settings(broker_url=url.geturl()))
        with worker.connection_for_write() as connection:
            worker.amqp.queues[queue](connection).declare()  # as a worker does
            depths = []
            for n in range(1, 4):
                hints.publish(queue, [n, n])
                depths.append(hints.depth(queue))
                proxy.cut()
            hints.broker.drop()

    assert depths == [1, 2, 3]


class NotedHints(CeleryHints):
    """Notes which messages were started in the producer's thread."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.started: list[bool] = []

    def start(self, queue: str, ids: Sequence[int]) -> bool:
        self.started.append(super().start(queue, ids))
        return self.started[-1]


@pytest.mark.parametrize("loss", ["none", "cut"])
def test_what_goes_out_from_the_producers_thread_arrives_once_whatever_becomes_of_its_socket(
    house: House, loss: str
) -> None:
    url = urlsplit(house.broker.url_of(15))
    with (
        FaultProxy((url.hostname, url.port)) as proxy,  # type: ignore[arg-type]
        Redis.from_url(url.geturl()) as redis,
    ):
        through = url._replace(netloc=url.netloc.replace(f":{url.port}", f":{proxy.port}"))
        hints = NotedHints(Settings(broker_url=through.geturl()))
        hinter = HintSender(lambda: hints)
        assert not hints.start("q", [1]), "nothing is connected yet"
        for n in range(3):
            hinter.offer([Hint("q", n)])
            hinter.flush(20)
            if loss == "cut":
                proxy.cut()

        assert redis.llen("tasks_app:q") == 3
        assert hinter.counts == HintCounts(sent=3)
        assert hints.started == [False, True, True]
        redis.delete("tasks_app:q")
        hints.broker.drop()


def hint(house: House, *ids: int) -> None:
    """Tell the broker of tasks that a connection created."""
    settings = Settings(broker_url=house.environment()["TASKS_APP_BROKER_URL"])
    hinter = HintSender(lambda: CeleryHints(settings))
    hinter.offer(Hint("default", i) for i in ids)
    hinter.flush(20)
    assert hinter.counts.sent == len(ids)
