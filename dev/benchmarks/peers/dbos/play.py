"""DBOS as its documents run a queue: enqueued by a client, run as workflows in threads."""

from __future__ import annotations

import os
import signal
import threading

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, EnqueueOptions
from psycopg_pool import ConnectionPool

from dev.benchmarks.marks import gather, mark, now
from dev.benchmarks.peers.verbs import DATABASE, EFFECT, WARM, Instants, answer, spread

APPLICATION, VERSION, QUEUE = "benchmark", "1", "tasks"
URL = DATABASE.replace("postgresql:", "postgresql+psycopg:")
WORKERS, POLL_S = 100, 0.01
AT_ONCE = 1_000
POOL = 10
pool = ConnectionPool(
    DATABASE, open=False, min_size=POOL, max_size=POOL, kwargs={"autocommit": True}
)


@DBOS.workflow(name="noop")
def noop(i: int) -> None:
    """Nothing."""
    mark(i, now())


@DBOS.workflow(name="insert")
def insert(i: int) -> None:
    """Write one row, without a step: a step would be another row."""
    started = now()
    with pool.connection() as connection:
        connection.execute(EFFECT.format("%s"), [i])
    mark(i, started)


@DBOS.step(name="step")
def step(i: int) -> None:
    """Nothing."""
    mark(i, now())


@DBOS.workflow(name="chain")
def steps(first: int, of: int) -> None:
    """Steps in the process that runs the workflow: each is a row."""
    for i in range(first, first + of):
        step(i)


def _client() -> DBOSClient:
    return DBOSClient(system_database_url=URL, application_name=APPLICATION)


def _options(handler: str) -> EnqueueOptions:
    return {"queue_name": QUEUE, "workflow_name": handler, "app_version": VERSION}


def _launch() -> None:
    DBOS(
        config={
            "name": APPLICATION,
            "system_database_url": URL,
            "application_version": VERSION,
            "executor_id": str(os.getpid()),
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=WORKERS, polling_interval_sec=POLL_S)


def install() -> None:
    """Make its tables, and the queue, which a process finds at once if it is there before."""
    _launch()
    DBOS.destroy()


def enqueue(n: int, handler: str, first: int = 0) -> None:
    """Enqueue many in a transaction: there is no bulk call."""
    _enqueue(_client(), n, handler, first)


def bulk(n: int, size: int = AT_ONCE) -> float:
    """Return the seconds of n workflows, ``size`` a transaction."""
    client = _client()
    _enqueue(client, WARM, "noop")
    started = now()
    _enqueue(client, n, "noop", size=size)
    return (now() - started) / 1e9


def _enqueue(client: DBOSClient, n: int, handler: str, first: int = 0, size: int = AT_ONCE) -> None:
    engine, options = sa.create_engine(URL), _options(handler)
    for start in range(first, first + n, size):
        with engine.begin() as connection:
            for i in range(start, min(first + n, start + size)):
                client.enqueue_in_transaction(connection, options, i)


def chain(n: int, of: int) -> float:
    """Return the seconds that it takes to enqueue workflows of so many steps."""
    client, engine, options = _client(), sa.create_engine(URL), _options("chain")
    started = now()
    with engine.begin() as connection:
        for first in range(0, n, of):
            client.enqueue_in_transaction(connection, options, first, of)
    return (now() - started) / 1e9


def single(n: int) -> float:
    """Return the seconds that n calls take, one after the other."""
    client, options = _client(), _options("noop")
    for _ in range(WARM):
        client.enqueue(options, 0)
    started = now()
    for i in range(n):
        client.enqueue(options, i)
    return (now() - started) / 1e9


def latency(n: int, gap_s: float, warm: list[int]) -> Instants:
    """Enqueue one by one; each call is its transaction."""
    client, options = _client(), _options("noop")
    begun, committed = [], []
    for i in warm:
        client.enqueue(options, i)
    for i in spread(n, gap_s):
        begun.append(now())
        client.enqueue(options, i)
        committed.append(now())
    return begun, committed


def work() -> None:
    """One worker process."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    pool.open()
    gather("dbos")
    _launch()
    ended.wait()
    DBOS.destroy(workflow_completion_timeout_sec=5)
    pool.close()


if __name__ == "__main__":
    answer(install, enqueue, bulk, chain, single, latency, work)
    os._exit(0)  # a client's threads would keep it alive
