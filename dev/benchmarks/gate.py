"""``python -m dev.benchmarks gate``: has something become slower than it was recorded to be?

Only figures that a busy machine disturbs little: CPU time per task, in units of a loop that runs
in the same minute; that of create_task to that of a bare INSERT, by turns; what the database did
per task. The best of some tries counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dev.benchmarks.calibration import calibrate
from dev.benchmarks.environments import FOLDER, PROJECT
from dev.benchmarks.machine import commit, machine
from dev.benchmarks.scenarios.create import against_bare
from dev.benchmarks.scenarios.drain import drain_run
from dev.benchmarks.servers import servers
from dev.benchmarks.stage import Stage
from dev.benchmarks.systems import SYSTEMS

RECORD = PROJECT / "dev" / "benchmarks" / "gate.json"
OURS = SYSTEMS["ours-celery"]
DRAINS = {"noop": (20_000, 3), "insert": (4_000, 3)}
PAIRS, PAIRED_TRIES = 400, 3

Figures = dict[str, float]
TOLERANCES: dict[str, float] = {
    "noop_cpu": 1.25,
    "insert_cpu": 1.4,  # fewer share a commit when the machine is busy
    "insert_transactions": 1.45,
    "noop_wal": 1.1,
    "insert_wal": 1.1,
    "create_cpu": 1.12,
}
"""How many times its recorded value a figure may have. The tasks of a transaction are as many as
fit into some time, so their number depends on the machine; the bytes of log do not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure against its record."""

    name: str
    recorded: float | None
    measured: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether it is within the tolerance; a figure without a record is not."""
        return self.recorded is not None and self.measured <= self.recorded * self.tolerance

    def __str__(self) -> str:
        known = "never recorded" if self.recorded is None else f"recorded {self.recorded:.4g}"
        ratio = "" if self.recorded is None else f"  {self.measured / self.recorded:.2f} x"
        bound = f"allowed {self.tolerance:.2f} x"
        verdict = "ok " if self.holds else "BAD"
        return f"  {verdict} {self.name:<22} {self.measured:<10.4g} {known}{ratio}, {bound}"


def judge(recorded: Mapping[str, float], measured: Mapping[str, float]) -> list[Finding]:
    """Compare every figure of the gate; a missing one is an error."""
    return [
        Finding(name, recorded.get(name), measured[name], tolerance)
        for name, tolerance in TOLERANCES.items()
    ]


def gate(*, record: bool = False, slower: float = 1.0, path: Path = RECORD) -> int:
    """Measure and judge; or record. Return 1 if something is slower than it may be."""
    known = _recorded(path)
    measured = measure(_burn_ns(known, slower))
    if record:
        about = {"at": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit(), "machine": machine()}
        path.write_text(json.dumps({"figures": measured, **about}, indent=2) + "\n")
        print(f"recorded in {path.name}: {measured}")
        return 0
    findings = judge(known.get("figures", {}), measured)
    print("\n".join(str(finding) for finding in findings))
    if all(finding.holds for finding in findings):
        return 0
    print(
        "Something became slower. Find out what; if it is meant to be so, say why in the commit "
        "and run: make bench-gate ARGS=--record"
    )
    return 1


def measure(burn_ns: int = 0) -> Figures:
    tries: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        tries.setdefault(name, []).append(value)

    with servers(FOLDER / "servers") as up:
        stage = Stage(up)
        for _ in range(PAIRED_TRIES):
            note("create_cpu", against_bare(stage, OURS, PAIRS)["cpu_ratio"])
        for handler, (n, times) in DRAINS.items():
            for _ in range(times):
                before = calibrate()
                result = _drain(stage, n, handler, burn_ns)
                unit = (before + calibrate()) / 2
                note(f"{handler}_cpu", result["cpu_us_per_task"] / unit)
                note(f"{handler}_transactions", result["transactions_per_task"])
                note(f"{handler}_wal", result["wal_bytes_per_task"])
    return {name: min(values) for name, values in sorted(tries.items())}


def _drain(stage: Stage, n: int, handler: str, burn_ns: int) -> dict[str, Any]:
    with stage.run(OURS, n) as run:
        run.variables["BENCH_BURN_NS"] = str(burn_ns)
        run.play("enqueue", n=n, handler=handler)
        return drain_run(run, handler)


def _recorded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _burn_ns(known: Mapping[str, Any], slower: float) -> int:
    """Return by how many ns a task must be longer to cost ``slower`` times the record."""
    cpu_us = known.get("figures", {}).get("noop_cpu", 0) * calibrate()
    return int((slower - 1) * cpu_us * 1e3)
