"""Measure: in every round each scenario, in each scenario one system after the other.

So the machine's moods hit all alike, and a session that runs out of time lacks rounds, not rows.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dev.benchmarks.environments import FOLDER, PROJECT, MissingError
from dev.benchmarks.figures import read
from dev.benchmarks.machine import commit, machine
from dev.benchmarks.plan import SCENARIOS, Entry, Scenario
from dev.benchmarks.processes import left_over
from dev.benchmarks.report import goal_rows
from dev.benchmarks.servers import Servers, servers
from dev.benchmarks.stage import Stage
from dev.benchmarks.systems import SYSTEMS

ROUNDS, QUICK_ROUNDS = 5, 1
QUICK_SHARE = 5
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """What of the plan is to be measured; empty: all of it."""

    scenarios: frozenset[str] = frozenset()
    systems: frozenset[str] = frozenset()
    rounds: int | None = None
    n: int | None = None
    quick: bool = False
    minutes: float | None = None
    """After this no further round of a scenario begins."""

    def plan(self) -> list[tuple[Scenario, tuple[Entry, ...]]]:
        """Return the chosen scenarios with their chosen entries."""
        return [
            (scenario, tuple(e for e in scenario.entries if self._has(e)))
            for scenario in SCENARIOS
            if scenario.name in self.scenarios
            or (not self.scenarios and not scenario.by_name and (scenario.quick or not self.quick))
        ]

    def tasks(self, entry: Entry) -> int:
        """Return how many tasks an entry is measured with."""
        return self.n or (max(1, entry.n // QUICK_SHARE) if self.quick else entry.n)

    def _has(self, entry: Entry) -> bool:
        return not self.systems or entry.name in self.systems


def run(choice: Choice, output: Path | None) -> int:
    """Measure what was chosen; return 1 if anything failed."""
    if others := left_over("BENCH_MARKS"):
        pids = " ".join(map(str, others))
        print(
            "Processes of another run are alive, and would take this one's messages. "
            f"End them: kill {pids}",
            file=sys.stderr,
        )
        return 1
    path = output or _default_output(choice)
    path.parent.mkdir(parents=True, exist_ok=True)
    begun, failures = time.monotonic(), 0
    with servers(FOLDER / "servers") as up, path.open("a", encoding="utf-8") as lines:
        for record in _records(up, choice, begun):
            failures += "failed" in record
            lines.write(json.dumps(record) + "\n")
            lines.flush()
            _tell(record)
    where = path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path
    print(f"\n{time.monotonic() - begun:.0f} s, {failures} failures, in {where}\n")
    heading, *rows = goal_rows(read([path]))
    for row in (heading, *(row for row in rows if row[-1] != "not measured")):
        print("{:<68} {:<28} {:<40} {:<14} {:<9} {:<9} {}".format(*row))
    return 1 if failures else 0


def _records(up: Servers, choice: Choice, begun: float) -> Iterator[Record]:
    plan, stage = choice.plan(), Stage(up)
    yield {"kind": "session", **_about(up, choice)}
    yield {"kind": "versions", "versions": _versions(plan)}
    left_out = {}
    for scenario, entries in plan:
        for entry in entries:
            reason = _why_not(entry)
            if reason is not None:
                left_out[scenario.name, entry.name] = reason
                yield _left_out(scenario, entry, reason)
    for number in range(choice.rounds or (QUICK_ROUNDS if choice.quick else ROUNDS)):
        for scenario, entries in plan:
            if choice.minutes and time.monotonic() - begun > choice.minutes * 60:
                yield _left_out(scenario, None, f"no time for round {number + 1}")
                continue
            turn = [
                entry
                for entry in entries
                if (scenario.name, entry.name) not in left_out and number < (entry.rounds or 99)
            ]
            yield from _turn(stage, scenario, turn, number, choice)


def _turn(
    stage: Stage, scenario: Scenario, entries: list[Entry], number: int, choice: Choice
) -> Iterator[Record]:
    """Measure one round of one scenario."""
    turned = number % max(1, len(entries))  # nobody is always behind the same one
    in_turn = entries[turned:] + entries[:turned]
    groups = [entries] if scenario.together and entries else [[entry] for entry in in_turn]
    for group in groups:
        first, at = group[0], _now()
        names = [SYSTEMS[entry.system] for entry in group]
        system = names if scenario.together else names[0]
        try:
            found = scenario.measure(stage, system, choice.tasks(first), **first.options)
        except MissingError as error:
            yield _left_out(scenario, first, str(error))
            continue
        except Exception as error:  # it is reported, and the others are measured
            found = {"failed": f"{type(error).__name__}: {error}"}
        results = found if isinstance(found, list) else [found] * len(group)
        for entry, result in zip(group, results, strict=True):
            facts = {"scenario": scenario.name, "system": entry.name, "round": number + 1, "at": at}
            yield {"kind": "run", **facts, "n": choice.tasks(entry), **result}


def _left_out(scenario: Scenario, entry: Entry | None, reason: str) -> Record:
    system = entry.name if entry else "all"
    return {"kind": "left out", "scenario": scenario.name, "system": system, "left_out": reason}


def _why_not(entry: Entry) -> str | None:
    system = SYSTEMS[entry.system]
    try:
        system.environment.ensure()
    except MissingError as error:
        return str(error)
    return system.missing()


def _versions(plan: list[tuple[Scenario, tuple[Entry, ...]]]) -> dict[str, dict[str, str]]:
    """Set up what is needed, before anything is measured; return what it is made of."""
    found = {}
    for name in sorted({entry.system for _, entries in plan for entry in entries}):
        with suppress(MissingError):
            SYSTEMS[name].environment.ensure()
            found[name] = SYSTEMS[name].environment.versions()
    return found


def _about(up: Servers, choice: Choice) -> Record:
    return {
        "at": _now(),
        "commit": commit(),
        "machine": machine(),
        "servers": up.versions,
        "quick": choice.quick,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _default_output(choice: Choice) -> Path:
    """Keep whole sessions; quick looks and single rows go to the folder that git ignores."""
    whole = not (choice.quick or choice.scenarios or choice.systems or choice.n or choice.rounds)
    folder = PROJECT / "dev" / "benchmarks" / "results" if whole else FOLDER / "results"
    return folder / f"{datetime.now(UTC):%Y-%m-%d}-{commit()}.jsonl"


def _tell(record: Record) -> None:
    if "left_out" in record:
        print(f"  {record['scenario']}, {record['system']}: LEFT OUT: {record['left_out']}")
    elif record["kind"] == "run":
        known = ("round", "n")
        figures = [
            f"{key} {value:,.4g}"
            for key, value in record.items()
            if key not in known and isinstance(value, int | float)
        ]
        told = f"FAILED: {record['failed']}" if "failed" in record else "  ".join(figures)
        print(f"  {record['round']} {record['scenario']:<20} {record['system']:<22} {told}")
