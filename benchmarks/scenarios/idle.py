"""Everything runs and there is nothing to do. What does that cost?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.processes import wait_for
from benchmarks.stage import Run, Stage
from benchmarks.systems.system import System

SETTLING_S = 12.0
"""Idle backends report their transactions after up to ten seconds."""
PATIENCE_S = 30


def idle(stage: Stage, system: System, n: int) -> dict[str, Any]:
    """Measure ``n`` seconds, after the system has run a few tasks and come to rest."""
    warm = 20
    with stage.run(system, warm) as run:
        run.servers.settle_down(run.database)
        marks = run.marks
        run.start()
        run.play("enqueue", n=warm, handler="noop")
        wait_for(lambda: marks.count() >= warm, PATIENCE_S, run.services)
        time.sleep(SETTLING_S)
        before = _counts(run)
        time.sleep(n)
        after = _counts(run)
        services, backends, transactions = (b - a for a, b in zip(before, after, strict=True))
    return {
        "workers_cpu_s": services,
        "backends_cpu_s": backends,
        "cpu_s": services + backends,
        "transactions_per_s": transactions / n,
        "seconds": n,
    }


def _counts(run: Run) -> tuple[float, float, float]:
    members = [member.pid for service in run.services for member in service.tree()]
    # Asked on another database, so that the question is not among the answers.
    transactions = run.servers.ask(
        f"SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{run.database}'"
    )
    backends = run.servers.backends(run.database)
    return _exact_cpu(members), _exact_cpu(backends), float(transactions[0][0])


def _exact_cpu(pids: list[int]) -> float:
    """Sum CPU seconds of all threads by the scheduler's nanoseconds: ticks are too coarse here."""
    total = 0
    for pid in pids:
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            total += int(file.read_text().split()[0])
    return total / 1e9
