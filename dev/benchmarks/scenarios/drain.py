"""Tasks lie in wait; the workers start. How long from the first handler's start to the end?

The end is when the last handler has ended *and* no unfinished row is left. The first fetch of
every system is free that way; ours is also counted from its first claim (``rate_from_scan``).
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from dev.benchmarks.audit import audit
from dev.benchmarks.marks import now
from dev.benchmarks.processes import wait_for
from dev.benchmarks.stage import Run, Stage
from dev.benchmarks.systems.system import System

PATIENCE_S = 120


def drain(
    stage: Stage,
    system: System,
    n: int,
    handler: str = "noop",
    fill: tuple[str, int] | None = None,
    ideal_s: float | None = None,
    keys: str | None = None,
) -> dict[str, Any]:
    """Measure one drain, of a database with this many other rows, and audit it.

    ``ideal_s`` is what a task would cost if nothing but its handler took time; ``keys`` names what
    else each task is created with.
    """
    with stage.run(system, n, fill) as run:
        others: dict[str, Any] = {"keys": keys} if keys else {}
        run.play("enqueue", n=n, handler=handler, **others)
        result = drain_run(run, handler)
    if ideal_s is not None:
        result["share_of_ideal"] = n * ideal_s / result["seconds"]
    return result


def drain_run(run: Run, handler: str, flush_at: float | None = None) -> dict[str, Any]:
    """Measure the drain of what lies in a run's database.

    ``flush_at``: after this share of the tasks the broker loses all its messages.
    """
    run.servers.settle_down(run.database)
    marks, work, sent = run.marks, run.database_work(), run.servers.messages()
    run.start()
    wait_for(lambda: marks.count() > 0, PATIENCE_S, run.services)
    before, flushed = run.cpu_seconds(), None
    if flush_at is not None:
        wait_for(lambda: marks.count() >= run.n * flush_at, PATIENCE_S, run.services)
        run.servers.forget_messages()
        flushed = now()
    wait_for(lambda: marks.count() >= run.n, PATIENCE_S, run.services)
    ended = _nothing_unfinished(run)
    workers, beat, backends = (b - a for a, b in zip(before, run.cpu_seconds(), strict=True))
    messages = run.servers.messages() - sent
    run.end()
    transactions, wal = (b - a for a, b in zip(work, run.database_work(), strict=True))
    everything = list(run.marks.all())
    found = audit(run, everything, effects=handler.startswith("insert"))
    started = min(start for _, start, _ in everything)
    ended = max(ended, *(end for _, _, end in everything))
    result = {
        "seconds": (ended - started) / 1e9,
        "rate": run.n / (ended - started) * 1e9,
        "cpu_us_per_task": (workers + beat + backends) / run.n * 1e6,
        "workers_us_per_task": workers / run.n * 1e6,
        "beat_us_per_task": beat / run.n * 1e6,
        "backends_us_per_task": backends / run.n * 1e6,
        "transactions_per_task": transactions / run.n,
        "wal_bytes_per_task": wal / run.n,
        "messages": messages,
        "audit": found,
    }
    if flushed is not None:
        result["after_flush_s"] = (ended - flushed) / 1e9
    claimed = run.ask(run.system.first_claim)[0][0] if run.system.first_claim else None
    if claimed is not None:
        offset = time.time_ns() - now()
        result["rate_from_scan"] = run.n / (ended - float(claimed) * 1e9 + offset) * 1e9
    return result


def _nothing_unfinished(run: Run) -> int:
    """Wait for it, if the system keeps rows; return when it was so."""
    if run.system.unfinished is None:
        return 0
    rows = run.system.unfinished.format(after=run.after)
    query = f"SELECT EXISTS (SELECT FROM {rows})".encode()
    url = run.servers.url(run.database)
    with psycopg.connect(url, autocommit=True) as connection:

        def done() -> bool:
            row = connection.execute(query).fetchone()
            return row is not None and not row[0]

        wait_for(done, PATIENCE_S, run.services)
    return now()
