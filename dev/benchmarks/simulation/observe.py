"""One real drain under limits: which cores, how many children, how long a flush of the log takes.

What is told is the steady middle of a drain, so that neither the start of the worker nor its last
group is in it, and who used how much CPU.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil

from dev.benchmarks.audit import audit
from dev.benchmarks.environments import Ours
from dev.benchmarks.processes import cpu_seconds
from dev.benchmarks.stage import Run, Stage
from dev.benchmarks.systems import SYSTEMS
from dev.benchmarks.systems.system import System

PATIENCE_S = 60
BEGIN, END = 0.15, 0.85
"""The middle: between these parts of the tasks."""
_FLUSHES = """
    SELECT coalesce(sum(fsyncs), 0), coalesce(sum(fsync_time), 0)
    FROM pg_stat_io WHERE object = 'wal'
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is run, and under which limits."""

    handler: str
    n: int
    children: int = 1
    cores: int = 1
    """The worker, beat, the broker and the database share them."""
    delay_us: int = 0
    """Before each flush of the log: PostgreSQL's ``commit_delay``."""
    threads: int = 1
    at_once: int = 1
    """Async handlers in each child."""


def observe(stage: Stage, trial: Trial) -> dict[str, Any]:
    """Run it, audit it, and return rate and costs."""
    system = _system(trial)
    with stage.run(system, trial.n) as run:
        run.play("enqueue", n=trial.n, handler=trial.handler)
        _limit(run, trial)
        run.servers.settle_down(run.database)
        flushed = _flushes(run)
        run.start()
        marks = run.marks
        _until(run, lambda: marks.count() >= BEGIN * run.n)
        before, cores = _used(run), _cores(trial)
        _until(run, lambda: marks.count() >= END * run.n)
        used = {name: after - before[name] for name, after in _used(run).items()}
        idle, stolen = _not_ours(cores, _cores(trial))
        _until(run, lambda: marks.count() >= run.n)
        _until(run, lambda: run.unfinished() == 0)
        run.end()
        flushes, flush_ms = (b - a for a, b in zip(flushed, _flushes(run), strict=True))
        everything = sorted(run.marks.all(), key=lambda mark: mark[2])
        audit(run, everything, effects=trial.handler.startswith("insert"))
    ends = [end for _, _, end in everything]
    first, last = int(BEGIN * trial.n), int(END * trial.n)
    done = used.pop("done")
    return {
        "rate": (last - first) / (ends[last] - ends[first]) * 1e9,
        "waits": used.pop("waits") / done,
        **{f"{name}_us": seconds / done * 1e6 for name, seconds in used.items()},
        "idle": idle,
        "stolen": stolen,
        "flushes": flushes / trial.n,
        "flush_us": flush_ms / max(flushes, 1) * 1e3,
    }


def _until(run: Run, condition: Callable[[], bool]) -> None:
    """Look ten times a second: more often, a watcher of four children would take half a core."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        for service in run.services:
            service.check()
        if time.monotonic() > until:
            raise TimeoutError(f"not done after {PATIENCE_S} s")
        time.sleep(0.1)


def _system(trial: Trial) -> System:
    limit = ["taskset", "-c", ",".join(map(str, range(trial.cores)))]
    program = Ours().program
    worker = program("celery", "-A", "tasks_app", "worker", "-c", str(trial.children))
    beat = program("celery", "-A", "tasks_app", "beat", "--pidfile=")
    variables = {
        **SYSTEMS["ours-celery"].variables,
        "TASKS_APP_THREADS": str(trial.threads),
        "TASKS_APP_ASYNC_CONCURRENCY": str(trial.at_once),
    }
    services = ([*limit, *worker], [*limit, *beat])
    return replace(SYSTEMS["ours-celery"], services=services, variables=variables)


def _limit(run: Run, trial: Trial) -> None:
    """Let the servers have the same cores; the watcher has the last of the machine."""
    for process in _servers(run):
        process.cpu_affinity(list(range(trial.cores)))
    every = os.cpu_count() or 1
    os.sched_setaffinity(0, {every - 1} if trial.cores < every else set(range(every)))
    for name, value in (("commit_delay", trial.delay_us), ("commit_siblings", 0)):
        run.servers.ask(f"ALTER DATABASE {run.database} SET {name} = {value}")


def _servers(run: Run) -> Sequence[psutil.Process]:
    found = [psutil.Process(pid) for pid in run.servers.pids]
    return [*found, *(child for parent in found for child in parent.children(recursive=True))]


def _used(run: Run) -> dict[str, float]:
    """Return CPU seconds so far, by who used them, and how many tasks were done by then."""
    worker, beat = run.services
    parent, *children = worker.tree()
    postgres, valkey = (psutil.Process(pid) for pid in run.servers.pids)
    backends = [process for process in postgres.children() if process.is_running()]
    return {
        "done": run.marks.count(),
        "waits": sum(child.num_ctx_switches().voluntary for child in children),
        "child": cpu_seconds(children),
        "parent": cpu_seconds([parent]) - _reaped(parent),
        "beat": cpu_seconds(beat.tree()),
        "database": cpu_seconds(backends),
        "broker": cpu_seconds([valkey]),
    }


def _cores(trial: Trial) -> Counter[str]:
    """Return the seconds of the cores that the drain may use, by what they were spent on."""
    found: Counter[str] = Counter()
    for core in psutil.cpu_times(percpu=True)[: trial.cores]:
        found.update(core._asdict())
    return found


def _not_ours(before: Counter[str], after: Counter[str]) -> tuple[float, float]:
    """Return which parts of them were idle, and were taken by the machine's host."""
    spans = {name: after[name] - before[name] for name in after}
    parts = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    whole = sum(spans.get(name, 0.0) for name in parts)
    return (spans["idle"] + spans.get("iowait", 0.0)) / whole, spans.get("steal", 0.0) / whole


def _reaped(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


def _flushes(run: Run) -> Iterator[float]:
    """Yield how many flushes of the log there were, and milliseconds that they took."""
    return (float(value) for value in run.servers.ask(_FLUSHES)[0])
