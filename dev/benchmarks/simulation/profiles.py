"""What was measured, as the model wants it: medians of the rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dev.benchmarks.simulation.measure import Record, read
from dev.benchmarks.simulation.observe import Trial
from dev.benchmarks.sizing.costs import Deployment, TaskCost
from dev.benchmarks.sizing.measured import INSERT_FLUSHES

PARTS = ("child_us", "parent_us", "beat_us", "database_us", "broker_us")
MOST_OTHERS = 0.12
"""Of its cores: a check beside which other processes took more is left out."""
WAITS_S = {"sleep": 0.1, "sleep_async": 1.0}
"""What the handlers of the measurement wait for."""
WAITED_FOR = {"insert": INSERT_FLUSHES}
"""Flushes of a task that a child waits for, where its housekeeper makes others meanwhile."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """Costs by handler, and what lies between the processes of this machine."""

    costs: dict[str, TaskCost]
    unit_ms: float
    """Speed of the machine that measured them: less is faster (dev/benchmarks/calibration.py)."""
    trip_s: float
    flush_s: float
    slowdown: float
    rounds: int

    def at(self, handler: str, unit_ms: float) -> TaskCost:
        """Return what a task cost while the machine had this speed."""
        cost, factor = self.costs[handler], unit_ms / self.unit_ms
        return replace(
            cost,
            child_s=cost.child_s * factor,
            database_s=cost.database_s * factor,
            parent_s=cost.parent_s * factor,
            beat_s=cost.beat_s * factor,
        )

    def own(self, handler: str, records: Sequence[Record]) -> tuple[TaskCost, float]:
        """Return what a task cost in these drains, and seconds of a flush."""
        cost = replace(
            self.costs[handler],
            child_s=_median(records, "child_us") / 1e6,
            database_s=_median(records, "database_us") / 1e6,
            parent_s=(_median(records, "parent_us") + _median(records, "broker_us")) / 1e6,
            beat_s=_median(records, "beat_us") / 1e6,
            flushes=_waited_for(handler, records),
            log_s=0.0,
        )
        return cost, _median(records, "flush_us") / 1e6

    def here(self, trial: Trial) -> Deployment:
        """Return the limits of a drain on this machine, all processes of which share the cores."""
        return Deployment(
            children=trial.children,
            cores=trial.cores,
            database_cores=None,
            lanes=max(trial.threads, trial.at_once),
            flush_s=self.flush_s,
            trip_s=self.trip_s,
            slowdown=self.slowdown,
        )


def profiles(records: Sequence[Record] | None = None) -> Profiles:
    """Return them, of all that was measured."""
    records = usable(read()) if records is None else records
    costs = [record for record in records if record["kind"] == "costs"]
    probes = [record for record in records if record["kind"] == "probe"]
    by_handler: dict[str, list[Record]] = {}
    for record in costs:
        by_handler.setdefault(record["trial"]["handler"], []).append(record)
    return Profiles(
        costs={handler: _cost(handler, by_handler) for handler in by_handler},
        unit_ms=_median(costs, "unit_ms"),
        trip_s=_median(probes, "trip_us") / 1e6,
        flush_s=_median(probes, "flush_us") / 1e6,
        slowdown=_median(probes, "slowdown"),
        rounds=len(by_handler["noop"]),
    )


def usable(records: Sequence[Record]) -> list[Record]:
    """Return them without the checks that were disturbed.

    Costs are CPU of the processes themselves, which others do not take away.
    """
    return [record for record in records if others(record) <= MOST_OTHERS]


def others(record: Record) -> float:
    """Return which part of a drain's cores was used by neither it nor the machine's host."""
    if record["kind"] != "checks":
        return 0.0
    ours = record["rate"] * sum(record[part] for part in PARTS) / 1e6 / record["trial"]["cores"]
    return float(1 - record["idle"] - record["stolen"] - ours)


def checks(records: Sequence[Record]) -> list[tuple[Trial, list[Record]]]:
    """Return what was run under limits, in order, each with its rounds."""
    found: dict[Trial, list[Record]] = {}
    for record in records:
        if record["kind"] == "checks":
            found.setdefault(Trial(**record["trial"]), []).append(record)
    kinds = list(dict.fromkeys(trial.handler for trial in found))

    def place(item: tuple[Trial, list[Record]]) -> tuple[int, ...]:
        trial = item[0]
        return kinds.index(trial.handler), trial.delay_us, trial.cores, trial.children

    return sorted(found.items(), key=place)


def _cost(handler: str, found: dict[str, list[Record]]) -> TaskCost:
    records = found[handler]
    flushes = _waited_for(handler, records)
    return TaskCost(
        child_s=_median(records, "child_us") / 1e6,
        database_s=_median(records, "database_us") / 1e6,
        parent_s=_median(records, "parent_us") / 1e6,
        # Beat also looks once a second where nothing is to be done: in a slow drain that is most.
        beat_s=_median(found["noop"], "beat_us") / 1e6,
        trips=_median(records, "waits"),
        flushes=flushes,
        log_s=_log_s(found),
        wait_s=WAITS_S.get(handler, 0.0),
        group=500 if handler == "noop" else 1,
    )


def _waited_for(handler: str, records: Sequence[Record]) -> float:
    """Return how many flushes of the log a child waits for: not those of its housekeeper."""
    return min(_median(records, "flushes"), WAITED_FOR.get(handler, math.inf))


def _log_s(found: dict[str, list[Record]]) -> float:
    """Return by how much a flush of many tasks takes longer than one of one, for each of them."""
    many, one = (_median(found[handler], "flush_us") for handler in ("noop", "insert"))
    return max(0.0, many - one) * _median(found["noop"], "flushes") / 1e6


def _median(records: Sequence[Record], name: str) -> float:
    return statistics.median(float(record[name]) for record in records if name in record)
