"""Chains of steps that do nothing, side by side: how long a step takes, from one to the next."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from dev.benchmarks.audit import AuditError
from dev.benchmarks.processes import wait_for
from dev.benchmarks.stage import Stage
from dev.benchmarks.systems.system import System

PATIENCE_S = 300


def chain(stage: Stage, system: System, n: int, of: int) -> dict[str, Any]:
    """Measure ``n`` steps in chains ``of`` so many. Each must run once, after the one before it."""
    with stage.run(system, n) as run:
        created_s = run.play("chain", n=n, of=of)
        run.servers.settle_down(run.database)
        run.start()
        wait_for(lambda: run.marks.count() > 0, PATIENCE_S, run.services)
        before = run.cpu_seconds()
        wait_for(lambda: run.marks.count() >= n, PATIENCE_S, run.services)
        cpu_s = sum(b - a for a, b in zip(before, run.cpu_seconds(), strict=True))
        run.end()
        steps = sorted(run.marks.all())
        if [step for step, _, _ in steps] != list(range(n)):
            raise AuditError(f"{system.name}: {len(steps)} steps ran, of {n}")
        early = [b for (a, _, end), (b, start, _) in pairwise(steps) if b % of and start < end]
        if early:
            raise AuditError(f"{system.name}: step {early[0]} ran before the one that it needs")
        seconds = (max(end for _, _, end in steps) - min(start for _, start, _ in steps)) / 1e9
    return {
        "seconds": seconds,
        "ms_per_step": seconds * 1e3 / n,
        "cpu_us_per_task": cpu_s / n * 1e6,
        "create_us": created_s / n * 1e6,
    }
