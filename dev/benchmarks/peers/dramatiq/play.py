"""Dramatiq on Valkey with its defaults."""

from __future__ import annotations

import threading
from typing import Any

import dramatiq
import psycopg
from dramatiq.brokers.redis import RedisBroker

from dev.benchmarks.marks import mark, now
from dev.benchmarks.peers.verbs import BROKER, DATABASE, EFFECT, answer

dramatiq.set_broker(RedisBroker(url=BROKER))
_local = threading.local()


@dramatiq.actor
def noop(i: int) -> None:
    """Nothing."""
    mark(i, now())


@dramatiq.actor
def insert(i: int) -> None:
    """Write one row on a connection that the thread keeps."""
    started = now()
    _connection().execute(EFFECT.format("%s"), [i])
    mark(i, started)


def _connection() -> psycopg.Connection[Any]:
    if not hasattr(_local, "connection"):
        _local.connection = psycopg.connect(DATABASE, autocommit=True)
    found: psycopg.Connection[Any] = _local.connection
    return found


def install() -> None:
    """Nothing to make."""


def enqueue(n: int, handler: str, first: int = 0) -> None:
    """Send one by one: there is no bulk call."""
    actor = {"noop": noop, "insert": insert}[handler]
    for i in range(first, first + n):
        actor.send(i)


if __name__ == "__main__":
    answer(install, enqueue)
