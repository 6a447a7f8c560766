"""Hints: what a commit costs, what the broker holds in an outage, and what they are good for."""

from __future__ import annotations

import base64
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
from redis import Redis
from sqlalchemy.orm import Session

from dev.torture.fault_proxy import FaultProxy
from tasks_app import create_task
from tasks_app.broker.publisher import CeleryHints
from tasks_app.domain.config.settings import Settings
from tasks_app.embedded.servers import Valkey
from tasks_app.runtime.hint_sender import DEEP, READ_DEPTH_EVERY, Hint, HintSender
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.leader.dispatcher import SPARE_MESSAGES
from tests.broker.conftest import House
from tests.clock import until

ROUNDS = 100
PRODUCERS, RATE, OUTAGE_S = 2, 500, 8
CHILDREN = 2

PRODUCER = """
import json, os, sys, time
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tasks_app import NewTask, create_tasks
from tasks_app.runtime.hints import HINTS

engine = create_engine(os.environ["TASKS_APP_DATABASE_URL"])
rate, seconds = float(sys.argv[1]), float(sys.argv[2])
made, began = 0, time.monotonic()
while (passed := time.monotonic() - began) < seconds:
    owed = int(rate * passed) - made
    if not owed:
        time.sleep(0.001)
        continue
    with Session(engine) as session, session.begin():
        made += len(create_tasks(session, [NewTask("plain")] * min(owed, 50)))
HINTS.flush()
counts = HINTS.counts()
print(json.dumps([made, counts.sent, counts.silent, counts.dropped, counts.failed]))
"""


def producer(house: House, rate: float, seconds: float) -> subprocess.Popen[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TASKS_APP_", "CELERY_"))}
    return subprocess.Popen(
        [sys.executable, "-c", PRODUCER, str(rate), str(seconds)],
        env={**kept, **house.environment()},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.timeout(900)
def test_while_all_workers_are_down_the_broker_holds_little_and_then_all_is_done(
    house: House,
) -> None:
    done = "SELECT count(*) FROM task_completed WHERE state = 'SUCCEEDED'"
    house.beat()
    worker = house.worker(children=CHILDREN)
    broker = Redis.from_url(house.environment()["TASKS_APP_BROKER_URL"])
    (made, sent, *_) = said_by(producer(house, 50, 2))
    until(lambda: house.sql(done) == made, 30)
    assert sent == made

    worker.end()
    house.clean()
    running = [producer(house, RATE / PRODUCERS, OUTAGE_S) for _ in range(PRODUCERS)]
    lengths = []
    while any(each.poll() is None for each in running):
        lengths.append(broker.llen("tasks_app:default"))
        pause(0.02)
    made, sent, silent, dropped, failed = map(sum, zip(*map(said_by, running), strict=True))
    ids = sum(map(ids_in, broker.lrange("tasks_app:default", 0, -1)))
    waiting = house.sql("SELECT count(*) FROM task_pending")
    assert waiting == made

    began = time.monotonic()
    house.worker(children=CHILDREN)
    until(lambda: house.sql("SELECT count(*) FROM task_pending") == 0, 400, "the end of all tasks")
    took = time.monotonic() - began
    print(
        f"\n{made} tasks in {OUTAGE_S} s without a worker: LLEN at most {max(lengths)} messages"
        f" ({ids} ids at the end); hints sent {sent}, silent {silent}, dropped {dropped},"
        f" failed {failed}; all done {took:.0f} s after the start of a worker"
    )
    assert made > 0.9 * RATE * OUTAGE_S
    assert max(lengths) <= DEEP + PRODUCERS * READ_DEPTH_EVERY + 2 * CHILDREN + SPARE_MESSAGES
    assert house.sql(done) == made
    assert house.sql("SELECT count(*) FROM task_attempt") == 0


def said_by(process: subprocess.Popen[str]) -> list[int]:
    return list(json.loads(process.communicate()[0]))


def ids_in(message: bytes) -> int:
    """How many ids a message of Celery's carries."""
    body = base64.b64decode(json.loads(message)["body"])
    return len(json.loads(body)[0][1])


@pytest.fixture
def hinted_by() -> Iterator[Callable[[HintSender | None], None]]:
    """Let this hinter, or none, hear of what this process commits from now on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TASKS_APP_BROKER_URL", "redis://nobody")
        before = HINTS.provide(CeleryHints)
        HINTS._current()  # listens to sessions
        yield partial(patch.setattr, HINTS, "_sender")
    HINTS.provide(before)


def hinter_of(url: str) -> HintSender:
    settings = Settings(broker_url=url)
    hinter = HintSender(lambda: CeleryHints(settings))
    hinter.offer([Hint("default", 1)])
    hinter.flush(20)
    return hinter


@contextmanager
def every_kind(folder: Path, free_port: int) -> Iterator[dict[str, HintSender | None]]:
    """Hinters of brokers that all worked once, but for one; then something happened."""
    with ExitStack() as stack:
        up, stopped = (
            stack.enter_context(Valkey(folder / name, persist=False)) for name in ("up", "stopped")
        )
        proxy = stack.enter_context(FaultProxy(("127.0.0.1", up.port)))
        kinds = {
            "up": hinter_of(up.url),
            "stopped": hinter_of(stopped.url),
            "refused": hinter_of(f"redis://127.0.0.1:{free_port}/0"),
            "black hole": hinter_of(up.url.replace(f":{up.port}/", f":{proxy.port}/")),
        }
        assert [each.counts.sent for each in kinds.values()] == [1, 1, 0, 1]
        process = psutil.Process(stopped.pid)
        process.suspend()
        stack.callback(process.resume)
        proxy.swallow()
        stack.enter_context(_consumer(up))
        yield {"none": None, **kinds}


@contextmanager
def _consumer(broker: Valkey) -> Iterator[None]:
    """Take messages away, so that the queue never is deep."""
    client, over = Redis.from_url(broker.url), threading.Event()

    def take() -> None:
        while not over.is_set():
            client.brpop("tasks_app:default", 1)

    thread = threading.Thread(target=take)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.timeout(300)
def test_a_commit_takes_as_long_as_without_a_broker_whatever_the_broker_does(
    house: House, open_folder: Path, free_port: int, hinted_by: Callable[[HintSender | None], None]
) -> None:
    """All kinds in turn, one commit each, so that the machine's moods hit all alike."""
    with every_kind(open_folder, free_port) as hinters:
        times: dict[str, list[float]] = {kind: [] for kind in hinters}
        for _ in range(ROUNDS):
            for kind, hinter in random.sample(list(hinters.items()), len(hinters)):
                if hinter is not None:
                    hinter._silent_until = 0.0  # each commit is one that is to be hinted
                hinted_by(hinter)
                with Session(house.engine) as session:
                    create_task(session, "t")
                    began = time.perf_counter()
                    session.commit()
                    times[kind].append(1000 * (time.perf_counter() - began))

    medians = {kind: statistics.median(each) for kind, each in times.items()}
    print("\ncommit, ms:")
    for kind, each in times.items():
        tail = statistics.quantiles(each, n=100)[98]
        counts = getattr(hinters[kind], "counts", "")
        print(f"  {kind:10} median {medians[kind]:.2f}, p99 {tail:.2f}  {counts}")
    assert all(each - medians["none"] < 5 for each in medians.values())
    assert max(medians.values()) < 1.5 * medians["none"] + 0.5


@pytest.mark.timeout(300)
def test_tasks_start_sooner_with_hints_than_without(
    house: House, hinted_by: Callable[[HintSender | None], None]
) -> None:
    """Every other task is hinted; all at the same pace, beside the same scan."""
    house.beat()
    house.worker()
    hinter = hinter_of(house.environment()["TASKS_APP_BROKER_URL"])
    committed: dict[bool, dict[int, float]] = {True: {}, False: {}}
    for n in range(100):
        hinted = bool(n % 2)
        hinted_by(hinter if hinted else None)
        with Session(house.engine) as session:
            task_id = create_task(session, "when")
            session.commit()
        committed[hinted][task_id] = time.time()
        pause(0.053)
    everything = [*committed[True], *committed[False]]
    assert house.over(everything) == {"SUCCEEDED": 100}

    waited = {
        hinted: sorted(1000 * (house.task(i).result - at) for i, at in each.items())
        for hinted, each in committed.items()
    }
    median = {hinted: statistics.median(each) for hinted, each in waited.items()}
    tail = {hinted: each[-3] for hinted, each in waited.items()}
    print(
        f"\ncommit to start of the handler: hinted median {median[True]:.1f} ms, p95"
        f" {tail[True]:.1f} ms; not hinted median {median[False]:.0f} ms, p95 {tail[False]:.0f} ms"
    )
    assert median[True] < median[False] / 5


def pause(seconds: float) -> None:
    ends = time.monotonic() + seconds
    until(lambda: time.monotonic() > ends)
