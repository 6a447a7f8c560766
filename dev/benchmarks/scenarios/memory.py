"""A million tasks through the same children. Does their memory grow?"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from dev.benchmarks.audit import audit
from dev.benchmarks.processes import Service, wait_for
from dev.benchmarks.scenarios.drain import PATIENCE_S
from dev.benchmarks.stage import Stage
from dev.benchmarks.systems.system import System

WARM_SHARE = 0.1
"""Caches and pools are full after this share of the tasks."""
EVERY_S = 0.5


def memory(stage: Stage, system: System, n: int) -> dict[str, Any]:
    """Watch the children's own memory; mapped files, for instance the marks, do not count."""
    with stage.run(system, n) as run:
        run.play("enqueue", n=n, handler="noop", patience_s=PATIENCE_S * 5)
        run.servers.settle_down(run.database)
        marks = run.marks
        run.start()
        samples: dict[int, list[tuple[int, float]]] = {}
        until = time.monotonic() + PATIENCE_S * 10
        while (done := marks.count()) < n:
            run.services[0].check()
            if time.monotonic() > until:
                raise TimeoutError(f"{done} of {n} tasks in {PATIENCE_S * 10} s")
            for pid, mib in _children(run.services[0]):
                samples.setdefault(pid, []).append((done, mib))
            time.sleep(EVERY_S)
        wait_for(lambda: run.unfinished() == 0, PATIENCE_S, run.services)
        run.end()
        checked = audit(run, list(run.marks.all()))
    grown = {pid: _grown(found, n) for pid, found in samples.items() if found[-1][0] > n / 2}
    return {
        "growth_mib": max((abs(last - first) for first, last, _ in grown.values()), default=None),
        "swing_mib": max((swing for _, _, swing in grown.values()), default=None),
        "children": [{"after_warm_mib": a, "at_end_mib": b} for a, b, _ in grown.values()],
        "incarnations": len(samples),
        "audit": checked,
    }


def _grown(samples: list[tuple[int, float]], n: int) -> tuple[float, float, float]:
    """Return the memory when warm, at the end, and the widest difference in between."""
    warm = [mib for done, mib in samples if done >= n * WARM_SHARE]
    return warm[0], warm[-1], max(warm) - min(warm)


def _children(service: Service) -> list[tuple[int, float]]:
    found = []
    for process in service.tree()[1:]:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue
        kib = re.search(r"^RssAnon:\s+(\d+)", status, re.MULTILINE)
        if kib is not None:
            found.append((process.pid, int(kib.group(1)) / 1024))
    return found
