"""Celery on Valkey with its defaults; results are not kept, as nobody asks for them."""

from __future__ import annotations

import os
from typing import Any

import psycopg
from celery import Celery
from celery import chain as canvas_chain

from dev.benchmarks.marks import mark, now
from dev.benchmarks.peers.verbs import BROKER, DATABASE, EFFECT, Instants, answer, spread

app = Celery("benchmark", broker=BROKER)
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)

_connections: dict[int, psycopg.Connection[Any]] = {}


@app.task(name="noop")
def noop(i: int) -> None:
    """Nothing."""
    mark(i, now())


@app.task(name="insert")
def insert(i: int) -> None:
    """Write one row on a connection that the child keeps."""
    started = now()
    _connection().execute(EFFECT.format("%s"), [i])
    mark(i, started)


def _connection() -> psycopg.Connection[Any]:
    pid = os.getpid()
    if pid not in _connections:
        _connections[pid] = psycopg.connect(DATABASE, autocommit=True)
    return _connections[pid]


def install() -> None:
    """Nothing to make."""


def enqueue(n: int, handler: str, first: int = 0) -> None:
    """Send one by one: there is no bulk call."""
    task = app.tasks[handler]
    with app.producer_pool.acquire(block=True) as producer:
        for i in range(first, first + n):
            task.apply_async((i,), producer=producer)


def chain(n: int, of: int) -> float:
    """Return the seconds that it takes to send chains of so many steps."""
    started = now()
    for first in range(0, n, of):
        canvas_chain(*(noop.si(i) for i in range(first, first + of))).apply_async()
    return (now() - started) / 1e9


def latency(n: int, gap_s: float, warm: list[int]) -> Instants:
    """Send one by one. There is no commit: the second instant is when the broker has it."""
    begun, sent = [], []
    for i in warm:
        noop.apply_async((i,))
    for i in spread(n, gap_s):
        begun.append(now())
        noop.apply_async((i,))
        sent.append(now())
    return begun, sent


if __name__ == "__main__":
    answer(install, enqueue, chain, latency)
