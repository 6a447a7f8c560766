"""The rate that a system can hold: approximate mean value analysis of a closed network of queues.

Each task at once is a customer that goes round: its child's core, the network, the database's
cores, the flush of the log. Stations of several servers are taken as one fast server and a delay
(Seidmann), what a customer meets in a queue as its share of all others (Schweitzer).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dev.benchmarks.sizing.costs import Deployment, TaskCost

_TURNS = 400
_DAMPING = 0.3
_SERVED = 0.45
"""Of the one that is being served, so much is over, as bursts differ little (Reiser)."""
BUSY = 0.8
"""A resource that is used by this much is what limits the rate."""


@dataclass(frozen=True, slots=True)
class ExpectedRate:
    """What a system can do."""

    rate: float
    """Tasks a second."""
    used: Mapping[str, float]
    """Share of each resource: ``workers``, ``database``, ``beat``, ``log`` (what is
    written to it: that a flush is always going on limits nobody, as commits wait together); where
    workers and database share one host, ``host``."""

    @property
    def limit(self) -> str:
        """Return what is busy first; ``children``: there are too few to make anything busy."""
        name, share = max(self.used.items(), key=lambda pair: pair[1])
        return name if share >= BUSY else "children"


@dataclass(slots=True)
class _Station:
    """Cores: what a task takes of them on its way, and all in all; how many there are."""

    way_s: float
    all_s: float
    servers: int
    waiting: float = 0.0
    stay_s: float = 0.0
    slow: float = 1.0

    def meet(self, rate: float, others: float, slowdown: float) -> None:
        """Say how long a task stays that meets this share of all the others."""
        busy = min(1.0, rate * self.all_s * self.slow / self.servers)
        beside = max(0.0, busy * self.servers - 1) / max(1, self.servers - 1)
        self.slow = 1 + (slowdown - 1) * beside
        met = max(0.0, self.waiting - busy * _SERVED) * others
        apart = (self.servers - 1) / self.servers
        self.stay_s = self.way_s * self.slow * ((1 + met) / self.servers + apart)
        queue = rate * (self.stay_s - self.way_s * self.slow * apart)
        self.waiting += _DAMPING * (queue - self.waiting)

    def share(self, rate: float) -> float:
        return rate * self.all_s * self.slow / self.servers


def expect(cost: TaskCost, where: Deployment) -> ExpectedRate:
    """Return the rate of a backlog that never ends."""
    customers = where.all_children * where.lanes
    others = (customers - 1) / customers
    stations = _stations(cost, where)
    fixed_s = cost.wait_s + cost.trips * where.trip_s
    flush_s = where.flush_s + (cost.log_s / cost.flushes if cost.flushes else 0.0)
    rate, commits_s = 0.0, 0.0
    for _ in range(_TURNS):
        for station in stations.values():
            station.meet(rate, others, where.slowdown)
        between_s = fixed_s + sum(station.stay_s for station in stations.values())
        commits_s = _commits(cost, flush_s, rate * others, between_s)
        rate += _DAMPING * (customers / (between_s + commits_s) - rate)
    shares = [station.share(rate) for station in stations.values()]
    rate /= max(1.0, rate * cost.beat_s, rate * cost.log_s, *shares)
    used = {name: station.share(rate) for name, station in stations.items()}
    used |= {"beat": rate * cost.beat_s, "log": rate * cost.log_s}
    return ExpectedRate(rate, used)


def _stations(cost: TaskCost, where: Deployment) -> dict[str, _Station]:
    worker_s = cost.child_s + cost.parent_s
    if where.database_cores is None:
        way_s = worker_s + cost.database_s
        return {"host": _Station(way_s, way_s + cost.beat_s, where.cores)}
    # A child's interpreter runs one of its tasks at a time.
    at_once = where.hosts * min(where.children, where.cores)
    return {
        "workers": _Station(worker_s, worker_s, at_once),
        "database": _Station(cost.database_s, cost.database_s, where.database_cores),
    }


def _commits(cost: TaskCost, flush_s: float, others_rate: float, between_s: float) -> float:
    """Return what a task waits for flushes: one that comes during another's waits for its end.

    Who comes back soon after a flush finds the next one just begun.
    """
    if not cost.flushes:
        return 0.0
    during = _busy(others_rate * cost.flushes * flush_s)
    rest_s = max(flush_s / 2, flush_s - between_s / cost.flushes)
    return cost.flushes * (flush_s + during * rest_s)


def _busy(load: float) -> float:
    """Return the share of time in which a flush goes on, by the commits that come during one."""
    return load / (load + math.exp(-load)) if load else 0.0
