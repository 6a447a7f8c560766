"""How tasks find a free child: in which order, beside another queue, beside a flood of hints.

And after the broker has lost all messages. No task has a hint, but those of the flood.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import mean
from typing import Any

from dev.benchmarks.audit import Audit, audit
from dev.benchmarks.marks import now
from dev.benchmarks.processes import wait_for
from dev.benchmarks.scenarios.drain import PATIENCE_S, drain_run
from dev.benchmarks.scenarios.idle import WARM
from dev.benchmarks.stage import Run, Stage
from dev.benchmarks.systems.system import System

FLUSH_AT = 1 / 3
Found = list[tuple[int, int, int]]
NEW, BY_SQL = 100, 50
BUSY = 100
"""Tasks that have run when others are created: all children work, and many tasks wait."""
SIZE, GAP_S = 4, 0.01
"""Of the flood's transactions; two children need 40 ms for what each creates."""


def order(stage: Stage, system: System, n: int) -> dict[str, Any]:
    """Count by how many places tasks of 200 ms leave the order in which they became due."""
    with stage.run(system, n) as run:
        _insert(run, n, "sleep_200")
        run.servers.settle_down(run.database)
        sent = run.servers.messages()
        run.start()
        found, checked = _finish(run)
        messages = run.servers.messages() - sent
    indices = [index for _, index in sorted((start, index) for index, start, _ in found)]
    off = [abs(place - index) for place, index in enumerate(indices)]
    return {"mean_off": mean(off), "most_off": max(off), "messages": messages, "audit": checked}


def two_queues(stage: Stage, system: System, n: int) -> dict[str, Any]:
    """Measure how long new tasks of queue b take beside n old ones of queue a, of 20 ms each."""
    with stage.run(system, n + NEW) as run:
        _insert(run, n, "sleep_20", queue="a")
        run.servers.settle_down(run.database)
        run.start()
        _wait_for_marks(run, BUSY)
        at = _insert(run, NEW, "sleep_20", first=n, queue="b")
        found, checked = _finish(run)
    return {**_late(found, n, at), "audit": checked}


def flood(stage: Stage, system: System, n: int) -> dict[str, Any]:
    """Measure how long tasks without a hint take beside n with one, created faster than they run.

    ``passed_by`` counts those that were created later and began before the last of them.
    """
    early = n + BY_SQL
    with stage.run(system, early + WARM) as run, ThreadPoolExecutor(1) as thread:
        run.servers.settle_down(run.database)
        _insert(run, WARM, "noop", first=early)
        run.start()
        _wait_for_marks(run, WARM)
        producer = thread.submit(run.play, "flood", n=n, size=SIZE, gap_s=GAP_S)
        _wait_for_marks(run, WARM + BUSY)
        at = _insert(run, BY_SQL, "sleep_20", first=n)
        begun = producer.result()
        found, checked = _finish(run)
    flooded = [mark for mark in found if mark[0] < early]
    started = {index: start for index, start, _ in flooded}
    last = max(started[index] for index in range(n, early))
    passed_by = sum(at < begun[index // SIZE] and started[index] < last for index in range(n))
    flood_s = (begun[-1] - begun[0]) / 1e9
    run_s = (max(started.values()) - min(started.values())) / 1e9
    more = {"passed_by": passed_by, "times_capacity": run_s / flood_s, "audit": checked}
    return {**_late(flooded, n, at), **more}


def flush(stage: Stage, system: System, n: int, handler: str = "noop") -> dict[str, Any]:
    """Measure a drain whose broker loses all messages when a third is done."""
    with stage.run(system, n) as run:
        run.play("enqueue", n=n, handler=handler)
        return drain_run(run, handler, FLUSH_AT)


def _insert(run: Run, n: int, handler: str, first: int = 0, queue: str = "default") -> int:
    """Create tasks by SQL, each due a millisecond after the one before; return when they were."""
    run.ask(f"""
        INSERT INTO task_pending (name, queue, payload, due_at, scan_at)
        SELECT '{handler}', '{queue}', jsonb_build_object('i', {first} + g), due, due
        FROM generate_series(0, {n} - 1) AS g,
            LATERAL (SELECT now() - ({n} - g) * interval '1 ms' AS due) AS d ORDER BY g
    """)
    return now()


def _wait_for_marks(run: Run, least: int) -> None:
    marks = run.marks
    wait_for(lambda: marks.count() >= least, PATIENCE_S, run.services)


def _finish(run: Run) -> tuple[Found, Audit]:
    _wait_for_marks(run, run.n)
    wait_for(lambda: run.unfinished() == 0, PATIENCE_S, run.services)
    run.end()
    found = list(run.marks.all())
    return found, audit(run, found)


def _late(found: Sequence[tuple[int, int, int]], first: int, at: int) -> dict[str, float]:
    """Return how long after ``at`` the tasks from this index on began and were done."""
    spans = [(start, end) for index, start, end in found if index >= first]
    return {
        "first_s": (min(start for start, _ in spans) - at) / 1e9,
        "done_s": (max(end for _, end in spans) - at) / 1e9,
    }
