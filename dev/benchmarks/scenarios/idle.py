"""Everything runs and there is nothing to do. What does that cost?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from dev.benchmarks.marks import Marks
from dev.benchmarks.processes import wait_for
from dev.benchmarks.stage import Run, Stage
from dev.benchmarks.systems.system import System

Counts = tuple[float, float, float]
WARM = 20
LONGEST_S = 30
SETTLING_S = 12.0
"""Idle backends report their transactions after up to ten seconds."""
PATIENCE_S = 30


def idle(stage: Stage, systems: Sequence[System], n: int) -> list[dict[str, Any]]:
    """Measure ``n`` seconds of several systems at once, each on a database of its own.

    Before, each has run a few tasks and come to rest. Idle systems do not disturb each other.
    """
    n = min(n, LONGEST_S)
    with ExitStack() as stack:
        runs = [stack.enter_context(stage.run(system, WARM)) for system in systems]
        for run in runs:
            run.servers.settle_down(run.database)
            run.start()
            run.play("enqueue", n=WARM, handler="noop")
        for run in runs:
            wait_for(partial(has_run, run.marks), PATIENCE_S, run.services)
        time.sleep(SETTLING_S)
        before = [counts(run) for run in runs]
        time.sleep(n)
        after = [counts(run) for run in runs]
    return [spent(a, b, n) for a, b in zip(before, after, strict=True)]


def has_run(marks: Marks) -> bool:
    """Whether the first few tasks are over."""
    return marks.count() >= WARM


def spent(before: Counts, after: Counts, seconds: int) -> dict[str, Any]:
    """Return what was used between two looks."""
    services, backends, transactions = (b - a for a, b in zip(before, after, strict=True))
    return {
        "workers_cpu_s": services,
        "backends_cpu_s": backends,
        "cpu_s": services + backends,
        "transactions_per_s": transactions / seconds,
        "seconds": seconds,
    }


def counts(run: Run) -> Counts:
    """Look at a system's processes, its backends, and its transactions."""
    members = [member.pid for service in run.services for member in service.tree()]
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
