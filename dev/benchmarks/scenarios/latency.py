"""An idle system gets one task every 20 ms. How long until its handler starts?

Counted twice: from the start of the call, which is all that a producer does (begin, insert, commit
and whatever tells the workers), and from the return of its commit, which may be after the start.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from dev.benchmarks.audit import audit
from dev.benchmarks.processes import wait_for
from dev.benchmarks.stage import Stage
from dev.benchmarks.systems.system import System

GAP_S = 0.02
WARM_WORKERS, WARM_PRODUCER = 40, 20
PATIENCE_S = 30


def latency(stage: Stage, system: System, n: int) -> dict[str, Any]:
    """Measure n tasks, after some that warm workers and producer up."""
    everything = n + WARM_WORKERS + WARM_PRODUCER
    with stage.run(system, everything) as run:
        run.servers.settle_down(run.database)
        marks = run.marks
        run.start()
        run.play("enqueue", n=WARM_WORKERS, handler="noop", first=n)
        wait_for(lambda: marks.count() >= WARM_WORKERS, PATIENCE_S, run.services)
        warm = list(range(n + WARM_WORKERS, everything))
        begun, committed = run.play("latency", n=n, gap_s=GAP_S, warm=warm)
        wait_for(lambda: marks.count() >= everything, PATIENCE_S, run.services)
        wait_for(lambda: run.unfinished() == 0, PATIENCE_S, run.services)
        run.end()
        found = list(run.marks.all())
        checked = audit(run, found)
        started = {index: start for index, start, _ in found}
        from_call, from_commit = (
            percentiles([(started[index] - at) / 1e6 for index, at in enumerate(instants)])
            for instants in (begun, committed)
        )
    after = {f"commit_{name}": from_commit[name] for name in ("p50_ms", "p99_ms")}
    return {**from_call, **after, "audit": checked}


def percentiles(spans_ms: Sequence[float]) -> dict[str, float]:
    """Return what the report shows of a distribution."""
    cuts = statistics.quantiles(spans_ms, n=100, method="inclusive")
    return {
        "p50_ms": statistics.median(spans_ms),
        "p95_ms": cuts[94],
        "p99_ms": cuts[98],
        "max_ms": max(spans_ms),
    }
