"""What faults can hit in a run: processes, servers, and the connections between them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from sqlalchemy import Engine

from dev.torture.fault_proxy import FaultProxy
from dev.torture.processes import Service
from dev.torture.surroundings import Servers

Hurt = Callable[["World"], object]


@dataclass
class World:
    """The processes, servers and proxies of one run."""

    workers: list[Service]
    beats: list[Service]
    servers: Servers
    database: FaultProxy
    """Between our processes and PostgreSQL, or what stands before it."""
    broker_line: FaultProxy
    """Between our processes and the broker."""
    engine: Engine
    """The torturer's own, straight to PostgreSQL."""
    lease_s: float
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    recorded: list[Any] = field(default_factory=list)
    """Messages that were seen in the broker."""

    @property
    def services(self) -> list[Service]:
        """All workers and beats."""
        return [*self.workers, *self.beats]

    @property
    def psycopg_url(self) -> str:
        """The database, past the proxy."""
        return self.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)

    def ask(self, statement: str) -> None:
        """Run a statement by itself, past the proxy."""
        with psycopg.connect(self.psycopg_url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def hurt(self, name: str, fault: Hurt) -> None:
        self.counts[name] += 1
        fault(self)
