"""Many tasks wait for an operator, and nothing runs. What does that cost the database?

Beside a system whose pool is empty, at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from dev.benchmarks.processes import wait_for
from dev.benchmarks.scenarios.idle import PATIENCE_S, SETTLING_S, WARM, counts, has_run, spent
from dev.benchmarks.stage import Run, Stage
from dev.benchmarks.systems.system import System

SECONDS = 40
PUTTING_ASIDE_S = 300
NOBODY_WAITS = ("empty",)
STAND_IN_LINE = ("paused", "closed")
"""Their tasks stay where they are; all others are put aside, one by one."""
_ASIDE = "SELECT count(*) FROM task_pending WHERE parked IS NOT NULL OR scan_at > now()"


def standstill(
    stage: Stage, systems: Sequence[System], n: int, stops: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Measure the systems at once, each with ``n`` tasks behind one of ``stops``."""
    with ExitStack() as stack:
        runs = [stack.enter_context(stage.run(system, WARM)) for system in systems]
        for place, (run, stop) in enumerate(zip(runs, stops, strict=True), start=1):
            run.variables["TASKS_APP_BROKER_URL"] = f"{stage.servers.broker_url[:-2]}/{place}"
            run.start()
            run.play("enqueue", n=WARM, handler="noop")
            wait_for(partial(has_run, run.marks), PATIENCE_S, run.services)
            if stop not in NOBODY_WAITS:
                run.play("stand_still", how=stop, n=n)
        for run, stop in zip(runs, stops, strict=True):
            if stop not in (*NOBODY_WAITS, *STAND_IN_LINE):
                wait_for(partial(_all_aside, run, n), PUTTING_ASIDE_S, run.services)
            stage.servers.ask("VACUUM", run.database)  # as autovacuum does within a minute
            run.servers.settle_down(run.database)
        time.sleep(SETTLING_S)
        before = [counts(run) for run in runs]
        time.sleep(SECONDS)
        after = [counts(run) for run in runs]
        unmoved = [run.unfinished() for run in runs]
    found = [spent(a, b, SECONDS) for a, b in zip(before, after, strict=True)]
    return [{**each, "waiting": waiting} for each, waiting in zip(found, unmoved, strict=True)]


def _all_aside(run: Run, n: int) -> bool:
    return int(run.ask(_ASIDE)[0][0]) >= n
