"""Goals that must be met, and aims: as ratios to the best peer, or as absolute figures."""

from __future__ import annotations

from dev.benchmarks.locks import SHAPES
from dev.benchmarks.plan import NO_HISTORY, PEERS_ON_A_DATABASE, PEERS_WITH_HISTORY, SIZES
from dev.benchmarks.verdicts import Goal

DATABASE_PEERS = (*PEERS_ON_A_DATABASE, "graphile-2")
PEERS = (*DATABASE_PEERS, "celery", "dramatiq")
DELETING = ("graphile", "graphile-2")
"""Peers that delete what succeeded."""
ONE_BY_ONE = tuple(name for name in PEERS_WITH_HISTORY if name != "pgboss")
"""Peers that keep history and judge each job by itself. The handlers of pg-boss get up to 2,000
jobs, which succeed or fail together. Scenario drain-bulk compares those with our bulk handlers."""
_INSERT, _SCALE, _ONE = "drain-insert", "scale", "create-one"
_CONTROL, _LATENCY = "control", "latency"
GOALS: tuple[Goal, ...] = (
    Goal(
        "drain 100,000 no-op, Celery prefork, / best peer that keeps history, job by job",
        *("drain", "ours-celery", "rate", 1.3, 1.8),
        theirs=ONE_BY_ONE,
    ),
    Goal(
        "the same / plain Celery prefork",
        *("drain", "ours-celery", "rate", 20, None),
        theirs=("celery",),
    ),
    Goal(
        "the same through `tasks-app work`, / best peer that keeps history, job by job",
        *("drain", "ours-work", "rate", 1.5, 2.0),
        theirs=ONE_BY_ONE,
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
        "drain with one INSERT each through `ctx.connection`,"
        " / best peer that keeps history, job by job",
        *(_INSERT, "ours-celery", "rate", 0.8, 1.0),
        theirs=ONE_BY_ONE,
    ),
    Goal(
        "the same through `ctx.write`, / best peer that keeps history, job by job",
        *(_INSERT, "ours-celery-write", "rate", 0.8, 1.2),
        theirs=ONE_BY_ONE,
    ),
    Goal(
        "the same with 8 threads per child, or async handlers,"
        " / best peer that keeps history, job by job",
        *(_INSERT, "ours-celery-threads-write", "rate", 1.2, None),
        theirs=ONE_BY_ONE,
        or_ours=("ours-celery-threads", "ours-celery-async", "ours-celery-async-write"),
    ),
    Goal(
        'the same with `history="none"`, through `ctx.write`, / best peer that deletes',
        *(_INSERT, "ours-celery-write-no-history", "rate", 0.8, 1.2),
        theirs=DELETING,
    ),
    Goal(
        "`create_tasks`, 20,000, / PGQueuer's bulk call",
        *("create-many", "ours-celery", "rate", 1.5, 3.0),
        theirs=("pgqueuer",),
    ),
    *(
        Goal(
            f"`create_tasks`, {size:,} a transaction, on {where}, / PGQueuer's call of that size",
            *(f"create-{size}", ours, "rate", 1.2, None),
            theirs=("pgqueuer",),
        )
        for size in SIZES
        for ours, where in (("ours-session", "a Session"), ("ours-psycopg", "psycopg"))
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
        "the same on a Session, / PGQueuer's enqueue (0.77: 1.3 x its time)",
        *(_ONE, "ours-session", "rate", 0.77, 1.0),
        theirs=("pgqueuer",),
    ),
    Goal(
        "latency from the call, p50, / best peer on a database",
        *(_LATENCY, "ours-celery", "p50_ms", 1.2, 1.0, "most"),
        theirs=PEERS_ON_A_DATABASE,
    ),
    Goal(
        "latency from the call, p99, / PGQueuer",
        *(_LATENCY, "ours-celery", "p99_ms", 1.0, None, "most"),
        theirs=("pgqueuer",),
    ),
    Goal(
        "latency from the commit, p50, / best peer on a database",
        *(_LATENCY, "ours-celery", "commit_p50_ms", 1.0, None, "most"),
        theirs=PEERS_ON_A_DATABASE,
    ),
    Goal(
        "latency from the commit, p99, / PGQueuer",
        *(_LATENCY, "ours-celery", "commit_p99_ms", 1.0, None, "most"),
        theirs=("pgqueuer",),
    ),
    Goal(
        "lateness of delayed tasks, p99",
        *("delayed", "ours-celery", "p99_ms", 50, 10, "most"),
        unit="ms",
    ),
    Goal(
        "the same without hints (scan interval + 100 ms)",
        *("delayed", "ours-celery-no-hints", "p99_ms", 1_100, None, "most"),
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
            *(_CONTROL, f"ours-{keys}", "rate", 0.8, None),
            theirs=("ours-none",),
        )
        for keys, what in (
            ("unique", "a unique key each"),
            ("limit", "a limit key each"),
            ("tenants", "one of 100 limit keys each"),
            ("order", "an order key each"),
        )
    ),
    *(
        Goal(
            f"grants of a lock that all want, {shape}",
            *("locks", f"ours, {shape}", "grants_per_s", 500, None),
            unit="/s",
        )
        for shape in SHAPES
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
