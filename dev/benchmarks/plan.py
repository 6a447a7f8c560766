"""Which systems are measured at what, how many tasks, how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from dev.benchmarks.locks import SHAPES
from dev.benchmarks.scenarios.chain import chain
from dev.benchmarks.scenarios.contention import contention
from dev.benchmarks.scenarios.create import against_bare, create
from dev.benchmarks.scenarios.delayed import delayed
from dev.benchmarks.scenarios.drain import drain
from dev.benchmarks.scenarios.idle import idle
from dev.benchmarks.scenarios.latency import latency
from dev.benchmarks.scenarios.memory import memory
from dev.benchmarks.scenarios.standstill import standstill
from dev.benchmarks.scenarios.waking import flood, flush, order, two_queues

Measure = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One system in one scenario."""

    system: str
    n: int
    options: dict[str, Any] = field(default_factory=dict)
    rounds: int | None = None
    """Fewer than the others' for slow systems that are far behind."""
    label: str = ""
    """Instead of the system's name, when one is measured in several ways."""

    @property
    def name(self) -> str:
        return self.label or self.system


@dataclass(frozen=True, slots=True)
class Scenario:
    """Systems that are measured in turn, so that changes in the machine's speed hit all alike."""

    name: str
    title: str
    measure: Measure
    entries: tuple[Entry, ...]
    quick: bool = False
    together: bool = False
    """All entries are measured in one call, at the same time."""
    by_name: bool = False
    """Measured only when it is named: it judges a change, and is not on the page."""


SLOW = 3
STOPS = ("empty", "paused", "closed", "limited", "broken")
MILLION = 1_000_000
FINISHED, FUTURE = ({"fill": (kind, MILLION)} for kind in ("finished", "future"))
INSERT, INSERT_BATCH = {"handler": "insert"}, {"handler": "insert_batch"}
WRITE = {"handler": "insert_write"}
"""In one round trip with the outcome."""
INSERT_BULK, IN_ONE = {"handler": "insert_bulk"}, {"handler": "insert_bulk_in_one"}
"""Calls for a hundred tasks; ``IN_ONE``: pg-boss' whose outcomes commit with the effects."""
BULK, SINGLE = {"verb": "bulk"}, {"verb": "single"}
ON_A_SESSION = {"verb": "single_on_a_session"}
IN_TRANSACTIONS = {"verb": "single_in_transactions"}
PEERS_WITH_HISTORY = ("pgqueuer", "procrastinate", "pgboss", "dbos", "river", "oban")
PEERS_ON_A_DATABASE = (*PEERS_WITH_HISTORY, "graphile")
"""graphile-worker deletes what is done."""
WAYS = ("ours-celery", "ours-notify", "ours-poll")
"""A worker is told by the broker, by the database, or by nobody."""
NO_HISTORY = ("ours-celery-no-history", "ours-work-no-history")
"""As graphile-worker, they delete what succeeded."""
CREATORS = ("ours-celery", *PEERS_ON_A_DATABASE)
FEWER = {"dbos": 2_000, "oban": 5_000}
"""They have no statement for many."""
SIZES = (100, 1_000)
"""Tasks that are created in one transaction."""
SLOW_DRAINS = (
    Entry("dramatiq", 10_000, rounds=SLOW),
    Entry("procrastinate", 2_000, rounds=SLOW),
    Entry("pgboss", 20_000, rounds=SLOW),
    Entry("dbos", 2_000, rounds=SLOW),
    Entry("river", 20_000, rounds=SLOW),
    Entry("oban", 5_000, rounds=SLOW),
)
WAKING = tuple(
    Scenario(f"waking-{name}", title, measure, entries, by_name=True)
    for name, title, measure, entries in (
        (
            "drain",
            "Drain of tasks that do nothing, by 2 to 64 children",
            drain,
            tuple(Entry(f"ours-celery{more}", 50_000) for more in ("", "-16", "-40", "-64")),
        ),
        (
            "order",
            "Places by which tasks of 200 ms leave the order of their due times",
            order,
            (Entry("ours-celery", 120), Entry("ours-celery-16", 800)),
        ),
        (
            "queues",
            "100 new tasks of one queue beside 1,500 old ones of another",
            two_queues,
            (Entry("ours-celery-queues", 1_500),),
        ),
        (
            "flood",
            "50 tasks without a hint in a flood of hints",
            flood,
            (Entry("ours-celery", 3_000),),
        ),
        (
            "flush",
            "Drain whose broker loses all messages when a third is done",
            flush,
            (
                Entry("ours-celery", 50_000),
                Entry("ours-celery", 12_000, INSERT, label="ours-celery-insert"),
            ),
        ),
        (
            "delayed",
            "1,000 tasks due at random instants over 12 s",
            delayed,
            (
                Entry("ours-celery", 1_000),
                Entry("ours-celery", 1_000, {"on_rabbitmq": True}, label="ours-celery-rabbitmq"),
            ),
        ),
    )
)
SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "drain",
        "Drain of tasks that do nothing",
        drain,
        (
            Entry("ours-celery", 100_000),
            Entry("pgqueuer", 100_000),
            Entry("ours-work", 100_000),
            Entry("graphile", 100_000),
            Entry("graphile-2", 100_000),
            *(Entry(name, 100_000) for name in NO_HISTORY),
            Entry("celery", 6_000),
            *SLOW_DRAINS,
        ),
        quick=True,
    ),
    Scenario(
        "drain-insert",
        "Drain of tasks that insert one row each",
        drain,
        (
            Entry("ours-celery", 10_000, INSERT),
            Entry("pgqueuer", 10_000, INSERT),
            Entry("ours-celery-threads", 10_000, INSERT),
            Entry("graphile", 10_000, INSERT),
            Entry("ours-celery", 10_000, WRITE, label="ours-celery-write"),
            Entry("ours-celery-threads", 10_000, WRITE, label="ours-celery-threads-write"),
            Entry(NO_HISTORY[0], 10_000, WRITE, label="ours-celery-write-no-history"),
            Entry("ours-celery", 10_000, {"handler": "insert_async"}, label="ours-celery-async"),
            Entry(
                "ours-celery",
                10_000,
                {"handler": "insert_write_async"},
                label="ours-celery-async-write",
            ),
            Entry("ours-celery", 10_000, {"handler": "insert_driver"}, label="ours-celery-driver"),
            Entry("ours-work", 10_000, INSERT),
            Entry("ours-work", 10_000, WRITE, label="ours-work-write"),
            Entry("graphile-2", 10_000, INSERT, rounds=SLOW),
            Entry("pgboss", 20_000, INSERT_BATCH, rounds=SLOW, label="pgboss-batch"),
            Entry("celery", 5_000, INSERT, rounds=SLOW),
            *(replace(entry, options=INSERT) for entry in SLOW_DRAINS),
        ),
        quick=True,
    ),
    Scenario(
        "drain-bulk",
        "Drain of tasks that insert one row each, a hundred a call, or one by one",
        drain,
        (
            *(
                Entry(system, 10_000, options, label=f"{system}{way}")
                for system in ("ours-notify", "ours-celery")
                for way, options in (("-bulk", INSERT_BULK), ("", INSERT), ("-write", WRITE))
            ),
            Entry("pgboss", 10_000, INSERT_BULK, label="pgboss-bulk"),
            Entry("pgboss", 10_000, IN_ONE, label="pgboss-bulk-in-one"),
        ),
    ),
    Scenario(
        "create-many",
        "Tasks created by the bulk call",
        create,
        tuple(Entry(name, FEWER.get(name, 20_000), BULK) for name in CREATORS),
        quick=True,
    ),
    *(
        Scenario(
            f"create-{size}",
            f"Tasks created in transactions of {size:,}",
            create,
            (
                Entry("ours-celery", 20_000, {**BULK, "size": size}, label="ours-session"),
                Entry(
                    "ours-celery",
                    20_000,
                    {"verb": "bulk_on_psycopg", "size": size},
                    label="ours-psycopg",
                ),
                *(
                    Entry(name, FEWER.get(name, 20_000), {**BULK, "size": size})
                    for name in PEERS_ON_A_DATABASE
                ),
            ),
        )
        for size in SIZES
    ),
    Scenario(
        "create-one",
        "Tasks created one by one, each with its commit, on a raw connection or on a Session",
        create,
        (
            *(Entry(name, 2_000, SINGLE) for name in CREATORS),
            Entry("ours-celery", 2_000, ON_A_SESSION, label="ours-session"),
            Entry("ours-celery", 2_000, IN_TRANSACTIONS, label="ours-begin-commit"),
        ),
        quick=True,
    ),
    Scenario(
        "create-against-bare",
        "create_task on a Session against the bare INSERT, by turns",
        against_bare,
        (Entry("ours-celery", 2_000),),
        quick=True,
    ),
    Scenario(
        "latency",
        "Idle system, a task every 20 ms: from the call, and from the commit, to the handler",
        latency,
        tuple(Entry(name, 200) for name in (*WAYS, *PEERS_ON_A_DATABASE, "celery")),
        quick=True,
    ),
    Scenario(
        "scale",
        "Drain beside a million finished, or a million future rows",
        drain,
        (
            Entry("ours-celery", 50_000, label="ours-empty"),
            Entry("ours-celery", 50_000, FINISHED, label="ours-finished"),
            Entry("ours-celery", 50_000, FUTURE, label="ours-future"),
            Entry("pgqueuer", 50_000, FINISHED, 1, "pgqueuer-finished"),
            Entry("pgqueuer", 50_000, FUTURE, 1, "pgqueuer-future"),
            Entry("graphile", 50_000, FUTURE, 1, "graphile-future"),
        ),
    ),
    Scenario(
        "control",
        "Drain of tasks that have a key, and of such that have none",
        drain,
        tuple(
            Entry("ours-celery", 50_000, {"keys": keys}, label=f"ours-{keys}")
            for keys in ("none", "unique", "limit", "tenants", "order")
        ),
    ),
    *(
        Scenario(
            name,
            title,
            chain,
            tuple(
                Entry(system, steps, {"of": of})
                for system in ("ours-celery", "ours-work", "celery", "dbos")
            ),
        )
        for name, title, steps, of in (
            ("chain", "A chain of 1,000 steps", 1_000, 1_000),
            ("chains", "1,000 chains of 10 steps at once", 10_000, 10),
        )
    ),
    Scenario(
        "locks",
        "A lock that all want, for 5 s",
        contention,
        tuple(
            Entry("ours-celery", 5, {"shape": shape}, label=f"ours, {shape}") for shape in SHAPES
        ),
    ),
    Scenario(
        "async",
        "10,000 async handlers that wait for a second",
        drain,
        (
            Entry("ours-celery-async", 10_000, {"handler": "sleep_async"}),
            Entry("pgqueuer", 10_000, {"handler": "sleep_async"}, rounds=1),
        ),
    ),
    Scenario(
        "blocking",
        "2,000 handlers that block for 100 ms, 2 x 8 threads",
        drain,
        (Entry("ours-celery-threads", 2_000, {"handler": "sleep", "ideal_s": 0.1 / 16}),),
    ),
    Scenario(
        "delayed",
        "5,000 tasks due at random instants over a minute",
        delayed,
        (
            Entry("ours-celery", 5_000),
            Entry("ours-celery-no-hints", 1_000),
        ),
    ),
    Scenario(
        "idle",
        "30 s with nothing to do",
        idle,
        tuple(Entry(name, 30) for name in ("ours-celery", "procrastinate", "pgqueuer")),
        together=True,
    ),
    Scenario(
        "standstill",
        "100,000 tasks that wait for an operator, for 40 s",
        standstill,
        tuple(
            Entry("ours-celery", 100_000, {"stops": STOPS}, label=f"ours-{stop}") for stop in STOPS
        ),
        together=True,
    ),
    Scenario(
        "memory",
        "Memory of the children over a million tasks",
        memory,
        (Entry("ours-celery", MILLION, rounds=1),),
    ),
    *WAKING,
)
