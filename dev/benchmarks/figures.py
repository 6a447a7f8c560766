"""The measured figures, as the report and the goals ask for them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

Key = tuple[str, str]  # scenario, system


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure of one system over all rounds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)


@dataclass(slots=True)
class Figures:
    """All runs of some files of results; for the same row the later file counts."""

    sessions: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    runs: dict[Key, list[dict[str, Any]]] = field(default_factory=dict)
    left_out: dict[Key, str] = field(default_factory=dict)

    def read(self, lines: Iterable[str]) -> None:
        runs: dict[Key, list[dict[str, Any]]] = {}
        for line in lines:
            record = json.loads(line)
            if record["kind"] == "session":
                self.sessions.append(record)
            elif record["kind"] == "versions":
                self.versions |= record["versions"]
            elif "left_out" in record:
                self.left_out[_key(record)] = record["left_out"]
            else:
                runs.setdefault(_key(record), []).append(record)
        self.runs |= runs
        for key in runs:
            self.left_out.pop(key, None)

    def spread(self, scenario: str, system: str, figure: str) -> Spread | None:
        """Return a figure's values, or None if no run has it."""
        found = [run.get(figure) for run in self.runs.get((scenario, system), ())]
        values = tuple(float(value) for value in found if value is not None)
        return Spread(values) if values else None

    def failures(self) -> list[dict[str, Any]]:
        return [run for runs in self.runs.values() for run in runs if "failed" in run]


def read(paths: Iterable[Path]) -> Figures:
    figures = Figures()
    for path in paths:
        figures.read(path.read_text(encoding="utf-8").splitlines())
    return figures


def _key(record: dict[str, Any]) -> Key:
    return record["scenario"], record["system"]
