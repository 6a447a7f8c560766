"""Measure: round by round, in each round one system after the other; keep every run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.environments import FOLDER, PROJECT, MissingError
from benchmarks.figures import read
from benchmarks.machine import commit, machine
from benchmarks.plan import SCENARIOS, Entry, Scenario
from benchmarks.report import goal_rows
from benchmarks.servers import Servers, servers
from benchmarks.stage import Stage
from benchmarks.systems import SYSTEMS

ROUNDS, QUICK_ROUNDS = 5, 1
QUICK_SHARE = 5


@dataclass(frozen=True, slots=True)
class Choice:
    """What of the plan is to be measured; empty: all of it."""

    scenarios: frozenset[str] = frozenset()
    systems: frozenset[str] = frozenset()
    rounds: int | None = None
    n: int | None = None
    quick: bool = False


def run(choice: Choice, output: Path | None) -> int:
    """Measure what was chosen; return 1 if anything failed."""
    path = output or _default_output()
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    failures = 0
    scenarios = list(_chosen(choice))
    with servers(FOLDER / "servers") as up, path.open("a", encoding="utf-8") as lines:
        _write(lines, {"kind": "session", **_about(up, choice)})
        _write(lines, {"kind": "versions", "versions": _versions(scenarios, choice)})
        stage = Stage(up)
        for scenario in scenarios:
            for record in _measure(stage, scenario, choice):
                failures += "failed" in record
                _write(lines, {"kind": "run", **record})
                _tell(record)
    where = path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path
    print(f"\n{time.monotonic() - begun:.0f} s, {failures} failures, in {where}\n")
    heading, *rows = goal_rows(read([path]))
    for row in (heading, *(row for row in rows if row[-1] != "not measured")):
        print("{:<68} {:<28} {:<40} {:<14} {:<9} {:<9} {}".format(*row))
    return 1 if failures else 0


def _chosen(choice: Choice) -> Iterator[Scenario]:
    for scenario in SCENARIOS:
        named = scenario.name in choice.scenarios
        if named or (not choice.scenarios and (scenario.quick or not choice.quick)):
            yield scenario


def _measure(stage: Stage, scenario: Scenario, choice: Choice) -> Iterator[dict[str, Any]]:
    print(f"\n{scenario.title}", flush=True)
    entries = []
    for entry in scenario.entries:
        if not _is_chosen(entry, choice):
            continue
        reason = _why_not(entry)
        if reason is None:
            entries.append(entry)
        else:
            yield {"scenario": scenario.name, "system": entry.name, "left_out": reason}
    rounds = choice.rounds or (QUICK_ROUNDS if choice.quick else ROUNDS)
    for number in range(rounds):
        for entry in entries:
            if number < min(rounds, entry.rounds or rounds):
                yield _one(stage, scenario, entry, number, choice)


def _why_not(entry: Entry) -> str | None:
    system = SYSTEMS[entry.system]
    try:
        system.environment.ensure()
    except MissingError as error:
        return str(error)
    return system.missing()


def _one(
    stage: Stage, scenario: Scenario, entry: Entry, number: int, choice: Choice
) -> dict[str, Any]:
    n = choice.n or (max(1, entry.n // QUICK_SHARE) if choice.quick else entry.n)
    facts: dict[str, Any] = {
        "scenario": scenario.name,
        "system": entry.name,
        "round": number + 1,
        "n": n,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    try:
        return facts | scenario.measure(stage, SYSTEMS[entry.system], n, **entry.options)
    except MissingError as error:
        return {"scenario": scenario.name, "system": entry.name, "left_out": str(error)}
    except Exception as error:  # it is reported, and the others are measured
        return facts | {"failed": f"{type(error).__name__}: {error}"}


def _versions(scenarios: list[Scenario], choice: Choice) -> dict[str, dict[str, str]]:
    """Set up what is needed, before anything is measured; return what it is made of."""
    found = {}
    names = {e.system for s in scenarios for e in s.entries if _is_chosen(e, choice)}
    for name in sorted(names):
        with suppress(MissingError):
            SYSTEMS[name].environment.ensure()
            found[name] = SYSTEMS[name].environment.versions()
    return found


def _is_chosen(entry: Entry, choice: Choice) -> bool:
    return not choice.systems or entry.name in choice.systems


def _about(up: Servers, choice: Choice) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "servers": up.versions,
        "quick": choice.quick,
    }


def _default_output() -> Path:
    name = f"{datetime.now(UTC):%Y-%m-%d}-{commit()}.jsonl"
    return PROJECT / "benchmarks" / "results" / name


def _write(lines: Any, record: dict[str, Any]) -> None:
    lines.write(json.dumps(record) + "\n")
    lines.flush()


def _tell(record: dict[str, Any]) -> None:
    if "left_out" in record:
        print(f"  {record['system']}: LEFT OUT: {record['left_out']}", flush=True)
        return
    if "failed" in record:
        print(f"  {record['round']} {record['system']}: FAILED: {record['failed']}", flush=True)
        return
    known = ("scenario", "system", "round", "n", "at", "audit")
    figures = [
        f"{key} {value:,.4g}"
        for key, value in record.items()
        if key not in known and isinstance(value, int | float)
    ]
    print(f"  {record['round']} {record['system']:<22} {'  '.join(figures)}", flush=True)
