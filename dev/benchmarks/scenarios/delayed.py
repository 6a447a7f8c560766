"""Tasks are due at random instants. How late does each start?"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from dev.benchmarks.audit import AuditError, audit
from dev.benchmarks.processes import wait_for
from dev.benchmarks.scenarios.latency import PATIENCE_S, WARM_WORKERS, percentiles
from dev.benchmarks.servers import rabbitmq
from dev.benchmarks.stage import Stage
from dev.benchmarks.systems.system import System

PER_SECOND = 5_000 / 60
LEAD_S = 15.0
"""All are created before the first is due."""


def delayed(stage: Stage, system: System, n: int, *, on_rabbitmq: bool = False) -> dict[str, Any]:
    """Measure n tasks, 83 per second."""
    span_s, everything = n / PER_SECOND, n + WARM_WORKERS
    broker = rabbitmq() if on_rabbitmq else nullcontext(stage.servers.broker_url)
    with broker as broker_url, stage.run(system, everything) as run:
        run.variables["TASKS_APP_BROKER_URL"] = broker_url
        run.servers.settle_down(run.database)
        marks = run.marks
        run.start()
        run.play("enqueue", n=WARM_WORKERS, handler="noop", first=n)
        wait_for(lambda: marks.count() >= WARM_WORKERS, PATIENCE_S, run.services)
        dues = run.play("delayed", n=n, lead_s=LEAD_S, span_s=span_s)
        patience_s = LEAD_S + span_s + PATIENCE_S
        wait_for(lambda: marks.count() >= everything, patience_s, run.services)
        wait_for(lambda: run.unfinished() == 0, PATIENCE_S, run.services)
        run.end()
        found = list(run.marks.all())
        checked = audit(run, found)
    started = {index: start for index, start, _ in found}
    spans = [(started[index] - due) / 1e6 for index, due in enumerate(dues)]
    if min(spans) < -1:  # the two clocks agree to well under a millisecond
        raise AuditError(f"a task started {-min(spans):.1f} ms before it was due")
    return {**percentiles(spans), "span_s": span_s, "audit": checked}
