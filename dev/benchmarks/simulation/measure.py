"""Measure what the model is fed with, and drains that it has to predict."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg

from dev.benchmarks.calibration import calibrate, work
from dev.benchmarks.environments import FOLDER, PROJECT
from dev.benchmarks.machine import commit, machine
from dev.benchmarks.processes import left_over
from dev.benchmarks.servers import Servers, servers
from dev.benchmarks.simulation.observe import Trial, observe
from dev.benchmarks.stage import Stage

MEASURED = PROJECT / "dev" / "benchmarks" / "simulation" / "measured.jsonl"
PROBES = 1_000
Record = dict[str, Any]
COSTS = (
    Trial("noop", 30_000, cores=2),
    Trial("insert", 2_500, cores=2),
    Trial("sleep", 300, cores=2, threads=8),
    Trial("sleep_async", 5_000, cores=2, at_once=1_000),
)
"""One child and two cores, so that nobody waits for a core."""
CHECKS = (
    Trial("noop", 30_000, 1, 1),
    Trial("noop", 30_000, 2, 1),
    Trial("insert", 2_500, 1, 1),
    Trial("noop", 40_000, 4, 2, delay_us=5_000),
    Trial("insert", 3_000, 4, 1),
    Trial("insert", 500, 1, 2, delay_us=5_000),
    Trial("noop", 40_000, 2, 2),
    Trial("noop", 40_000, 4, 2),
    Trial("insert", 2_500, 2, 1),
    Trial("insert", 4_000, 2, 2),
    Trial("insert", 4_000, 4, 2),
    Trial("insert", 1_000, 1, 2, delay_us=1_000),
    Trial("insert", 3_000, 4, 2, delay_us=1_000),
    Trial("insert", 2_000, 4, 2, delay_us=5_000),
    Trial("insert", 3_000, 8, 2, delay_us=5_000),
    Trial("sleep", 500, 2, 2, threads=8),
    Trial("sleep_async", 8_000, 2, 2, at_once=1_000),
)


def measure(only: str, some: slice) -> None:
    """Append what was measured to the file: ``costs``, or a part of the ``checks``.

    Raises:
        SystemExit: workers of another run live, which would take this one's messages.
    """
    ours = [pid for pid in left_over("BENCH_MARKS") if _is_of_this_checkout(pid)]
    if ours:
        raise SystemExit(f"End the processes of another run: kill {' '.join(map(str, ours))}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left running
    with servers(FOLDER / "servers") as up, MEASURED.open("a", encoding="utf-8") as lines:
        up.ask("ALTER SYSTEM SET track_wal_io_timing = on")
        up.ask("SELECT pg_reload_conf()")
        for record in _records(up, only, some):
            lines.write(json.dumps({**_about(), **record}) + "\n")
            lines.flush()
            print(json.dumps(record), flush=True)


def _is_of_this_checkout(pid: int) -> bool:
    """Tell whether it would take our messages; those of another checkout have another broker."""
    with suppress(psutil.Error):
        return psutil.Process(pid).environ()["BENCH_MARKS"].startswith(str(FOLDER))
    return False


def _records(up: Servers, only: str, some: slice) -> Iterator[Record]:
    if only in ("costs", "probe"):
        yield {"kind": "probe", **probe(up)}
    stage = Stage(up)
    trials: Sequence[Trial] = {"costs": COSTS, "checks": CHECKS}.get(only, ())
    for trial in trials[some]:
        before = calibrate()
        try:
            found = observe(stage, trial)
        except (RuntimeError, TimeoutError) as error:
            print(f"FAILED: {trial}: {error}", file=sys.stderr)
            continue
        unit = (before + calibrate()) / 2
        yield {"kind": only, "trial": dataclasses.asdict(trial), "unit_ms": unit, **found}


def _about() -> Record:
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {"at": at, "commit": commit(), "machine": machine()}


def probe(up: Servers) -> Record:
    """Return the round trip, the flush, and how much slower a core is beside a busy one."""
    os.sched_setaffinity(0, set(range(os.cpu_count() or 1)))
    with psycopg.connect(up.url("postgres"), autocommit=True) as connection:
        trip_us = _trip_us(connection)
        connection.execute("CREATE TABLE IF NOT EXISTS probe (i int)")
        spans: dict[str, float] = {}
        for setting in ("on", "off", "on", "off"):
            connection.execute(f"SET synchronous_commit = {setting}".encode())
            span = _median_us(lambda: connection.execute("INSERT INTO probe VALUES (1)"))
            spans[setting] = min(span, spans.get(setting, span))
        connection.execute("DROP TABLE probe")
    # By turns, as the machine's speed changes from one second to the next.
    ratios = [beside / alone for alone, beside in ((work(), calibrate()) for _ in range(5))]
    return {
        "trip_us": trip_us,
        "flush_us": spans["on"] - spans["off"],
        "slowdown": statistics.median(ratios),
    }


def _trip_us(connection: psycopg.Connection[Any]) -> float:
    """Return what a round trip takes beside the CPU of both ends, which the costs have."""
    backend = Path(f"/proc/{connection.info.backend_pid}/schedstat")

    def used_ns() -> int:
        return time.thread_time_ns() + int(backend.read_text().split()[0])

    used, began = used_ns(), time.perf_counter_ns()
    for _ in range(PROBES):
        connection.execute("SELECT 1")
    span, used = time.perf_counter_ns() - began, used_ns() - used
    return max(0, span - used) / PROBES / 1e3


def _median_us(act: Callable[[], object]) -> float:
    spans = []
    for _ in range(PROBES):
        began = time.perf_counter()
        act()
        spans.append(time.perf_counter() - began)
    return statistics.median(spans) * 1e6


def read(path: Path = MEASURED) -> Sequence[Record]:
    """Return all that was measured."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
