"""Celery and Dramatiq on Valkey alone: no durable producer transaction, no history, no database."""

from __future__ import annotations

from dev.benchmarks.environments import Virtual
from dev.benchmarks.systems.system import System

_CELERY = Virtual("plain_celery", ("celery", "kombu", "redis", "hiredis"))
_DRAMATIQ = Virtual("dramatiq", ("dramatiq", "redis", "hiredis"))

CELERY = System(
    name="celery",
    title="plain Celery on Valkey, prefork 2",
    environment=_CELERY,
    services=(
        _CELERY.program(
            "celery", "-A", "dev.benchmarks.peers.plain_celery.play", "worker", "-c", "2"
        ),
    ),
)
DRAMATIQ = System(
    name="dramatiq",
    title="Dramatiq on Valkey, 2 processes, 8 threads each",
    environment=_DRAMATIQ,
    services=(_DRAMATIQ.program("dramatiq", "dev.benchmarks.peers.dramatiq.play", "-p2", "-t8"),),
)
