"""Tasks lie in wait; the workers start. How long from the first handler's start to the end?

The end is when the last handler has ended *and* no unfinished row is left. The first fetch of
every system is free that way; ours is also counted from its first claim (``rate_from_claim``).
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from benchmarks.audit import audit
from benchmarks.marks import now
from benchmarks.processes import wait_for
from benchmarks.stage import Run, Stage
from benchmarks.systems.system import System

PATIENCE_S = 120


def drain(
    stage: Stage,
    system: System,
    n: int,
    handler: str = "noop",
    fill: tuple[str, int] | None = None,
    ideal_s: float | None = None,
) -> dict[str, Any]:
    """Measure one drain, of a database with so many other rows if any, and audit it.

    ``ideal_s`` is what a task would cost if nothing but its handler took time.
    """
    with stage.run(system, n, fill) as run:
        run.play("enqueue", n=n, handler=handler)
        result = drain_run(run, handler)
    if ideal_s is not None:
        result["share_of_ideal"] = n * ideal_s / result["seconds"]
    return result


def drain_run(run: Run, handler: str) -> dict[str, Any]:
    """Measure the drain of what lies in a run's database."""
    run.servers.settle_down(run.database)
    marks, work = run.marks, run.database_work()
    run.start()
    wait_for(lambda: marks.count() > 0, PATIENCE_S, run.services)
    before = run.cpu_seconds()
    wait_for(lambda: marks.count() >= run.n, PATIENCE_S, run.services)
    ended = _nothing_unfinished(run)
    after = run.cpu_seconds()
    run.end()
    transactions, wal = (b - a for a, b in zip(work, run.database_work(), strict=True))
    everything = list(run.marks.all())
    found = audit(run, everything, effects=handler.startswith("insert"))
    started = min(start for _, start, _ in everything)
    ended = max(ended, *(end for _, _, end in everything))
    result = {
        "seconds": (ended - started) / 1e9,
        "rate": run.n / (ended - started) * 1e9,
        "cpu_us_per_task": (after - before) / run.n * 1e6,
        "transactions_per_task": transactions / run.n,
        "wal_bytes_per_task": wal / run.n,
        "audit": found,
    }
    if run.system.first_claim is not None:
        offset = time.time_ns() - now()
        claimed = float(run.ask(run.system.first_claim)[0][0]) * 1e9 - offset
        result["rate_from_claim"] = run.n / (ended - claimed) * 1e9
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
