"""Goals that must be met, and aims: as ratios to the best peer, or as absolute figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.figures import Figures, Spread
from benchmarks.plan import NO_HISTORY, PEERS_ON_A_DATABASE

DATABASE_PEERS = (*PEERS_ON_A_DATABASE, "graphile-2")
PEERS = (*DATABASE_PEERS, "celery", "dramatiq")
DELETING = ("graphile", "graphile-2")
"""Peers that delete what succeeded."""
KEEPING = tuple(name for name in DATABASE_PEERS if name not in DELETING)
"""Peers that keep its rows."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One row: a figure of ours, by itself or against the best of some others."""

    metric: str
    scenario: str
    ours: str
    figure: str
    must: float
    aim: float | None
    at: Literal["least", "most"] = "least"
    theirs: tuple[str, ...] = ()
    unit: str = "x"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a goal stands."""

    goal: Goal
    ours: Spread | None = None
    best: str = ""
    theirs: Spread | None = None

    @property
    def value(self) -> float | None:
        """What is compared with must and aim."""
        if self.ours is None or (self.goal.theirs and self.theirs is None):
            return None
        return self.ours.median / self.theirs.median if self.theirs else self.ours.median

    @property
    def met(self) -> str:
        """Say ``aim``, ``must``, ``NO`` or ``not measured``."""
        value = self.value
        if value is None:
            return "not measured"
        reached = [
            name
            for name, bound in (("must", self.goal.must), ("aim", self.goal.aim))
            if bound is not None and (value >= bound if self.goal.at == "least" else value <= bound)
        ]
        return reached[-1] if reached else "NO"


def judge(goal: Goal, figures: Figures) -> Verdict:
    """Compare medians; against the best of the others that were measured."""
    ours = figures.spread(goal.scenario, goal.ours, goal.figure)
    found = {name: figures.spread(goal.scenario, name, goal.figure) for name in goal.theirs}
    measured = {name: spread for name, spread in found.items() if spread is not None}
    if not measured:
        return Verdict(goal, ours)
    choose = max if goal.at == "least" else min
    best = choose(measured, key=lambda name: measured[name].median)
    return Verdict(goal, ours, best, measured[best])


_INSERT, _SCALE, _ONE = "drain-insert", "scale", "create-one"
_CONTROL = "control"
GOALS: tuple[Goal, ...] = (
    Goal(
        "drain 100,000 no-op, Celery prefork, / best peer that keeps history",
        *("drain", "ours-celery", "rate", 1.3, 1.8),
        theirs=KEEPING,
    ),
    Goal(
        "the same / plain Celery prefork",
        *("drain", "ours-celery", "rate", 20, None),
        theirs=("celery",),
    ),
    Goal(
        "the same through `tasks-app work`, / best peer that keeps history",
        *("drain", "ours-work", "rate", 1.5, 2.0),
        theirs=KEEPING,
    ),
    *(
        Goal(
            f'the same with `history="none"`, {way}, / best peer that deletes',
            *("drain", ours, "rate", 1.0, 1.5),
            theirs=DELETING,
        )
        for ours, way in zip(NO_HISTORY, ("Celery prefork", "`tasks-app work`"), strict=True)
    ),
    Goal(
        'drain with one INSERT each, `commit="each"`, / best peer',
        *(_INSERT, "ours-celery", "rate", 0.4, None),
        theirs=PEERS,
    ),
    Goal(
        "the same with 8 threads per child, / best peer",
        *(_INSERT, "ours-celery-threads", "rate", 0.4, 1.0),
        theirs=PEERS,
    ),
    Goal(
        'drain with one INSERT each, `commit="batch"`, / best peer',
        *(_INSERT, "ours-celery-batch", "rate", 1.3, 2.5),
        theirs=PEERS,
    ),
    Goal(
        "`create_tasks`, 20,000, / PGQueuer's bulk call",
        *("create-many", "ours-celery", "rate", 1.5, 3.0),
        theirs=("pgqueuer",),
    ),
    Goal(
        "time of `create_task` + commit on a Session / the bare INSERT",
        *("create-against-bare", "ours-celery", "ratio", 1.10, 1.03, "most"),
    ),
    Goal(
        "one `create_task` + commit, / Procrastinate's defer",
        *(_ONE, "ours-celery", "rate", 1.0, 1.3),
        theirs=("procrastinate",),
    ),
    Goal(
        "one `create_task` + commit, / PGQueuer's enqueue",
        *(_ONE, "ours-celery", "rate", 1.0, 1.3),
        theirs=("pgqueuer",),
    ),
    Goal(
        "latency p50 / best peer on a database",
        *("latency", "ours-celery", "p50_ms", 1.6, 1.2, "most"),
        theirs=PEERS_ON_A_DATABASE,
    ),
    Goal(
        "latency p99 / PGQueuer",
        *("latency", "ours-celery", "p99_ms", 1.5, 1.0, "most"),
        theirs=("pgqueuer",),
    ),
    Goal(
        "lateness of delayed tasks, p99, with the delay index",
        *("delayed", "ours-celery-index", "p99_ms", 50, 10, "most"),
        unit="ms",
    ),
    Goal(
        "the same without it (scan interval + 100 ms)",
        *("delayed", "ours-celery-no-index", "p99_ms", 1_100, None, "most"),
        unit="ms",
    ),
    Goal(
        "drain rate kept with 1M finished rows",
        *(_SCALE, "ours-finished", "rate", 0.9, 1.0),
        theirs=("ours-empty",),
    ),
    Goal(
        "drain rate kept with 1M future rows",
        *(_SCALE, "ours-future", "rate", 0.9, 1.0),
        theirs=("ours-empty",),
    ),
    *(
        Goal(
            f"drain rate kept with {what}",
            *(_CONTROL, f"ours-{keys}", "rate", must, None),
            theirs=("ours-none",),
        )
        for keys, what, must in (
            ("unique", "a unique key each", 0.7),
            ("limit", "a limit key each", 0.5),
            ("tenants", "one of 100 limit keys each", 0.5),
            ("order", "an order key each", 0.3),
        )
    ),
    Goal(
        "10,000 async handlers that sleep 1 s, two children",
        *("async", "ours-celery-async", "seconds", 4, 2.5, "most"),
        unit="s",
    ),
    Goal(
        "2,000 handlers that block 100 ms, 2 x 8 threads, share of the ideal",
        *("blocking", "ours-celery-threads", "share_of_ideal", 0.8, 0.95),
    ),
    Goal(
        "idle 30 s: CPU / Procrastinate",
        *("idle", "ours-celery", "cpu_s", 2, 1, "most"),
        theirs=("procrastinate",),
    ),
    Goal(
        "idle: transactions per second",
        *("idle", "ours-celery", "transactions_per_s", 4, 2, "most"),
        unit="/s",
    ),
    *(
        Goal(
            f"100,000 tasks waiting: CPU of the database / idle, {what}",
            *("standstill", f"ours-{stop}", "backends_cpu_s", 1.2, None, "most"),
            theirs=("ours-empty",),
        )
        for stop, what in (
            ("paused", "queue paused"),
            ("closed", "queue outside of its window"),
            ("limited", "limit closed"),
            ("broken", "breaker open"),
        )
    ),
    Goal(
        "memory of a child over 1,000,000 tasks, change once warm",
        *("memory", "ours-celery", "growth_mib", 10, None, "most"),
        unit="MiB",
    ),
)
