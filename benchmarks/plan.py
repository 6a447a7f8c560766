"""Which systems are measured at what, how many tasks, how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.scenarios.drain import drain

Measure = Callable[..., dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One system in one scenario."""

    system: str
    n: int
    options: dict[str, Any] = field(default_factory=dict)
    rounds: int | None = None
    """Fewer than the others' for slow systems that are far behind."""
    label: str = ""
    """Instead of the system's name, when one is measured in several ways."""

    @property
    def name(self) -> str:
        """What the results call it."""
        return self.label or self.system


@dataclass(frozen=True, slots=True)
class Scenario:
    """Systems that are measured in turn, so that the machine's moods hit all alike."""

    name: str
    title: str
    measure: Measure
    entries: tuple[Entry, ...]
    quick: bool = False


SLOW = 3
INSERT = {"handler": "insert"}
SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "drain",
        "Drain of tasks that do nothing",
        drain,
        (
            Entry("ours-celery", 100_000),
            Entry("pgqueuer", 100_000),
            Entry("ours-work", 100_000),
            Entry("graphile", 100_000),
            Entry("graphile-2", 100_000),
            Entry("celery", 6_000),
            Entry("dramatiq", 10_000, rounds=SLOW),
            Entry("procrastinate", 2_000, rounds=SLOW),
        ),
        quick=True,
    ),
    Scenario(
        "drain-insert",
        "Drain of tasks that insert one row each",
        drain,
        (
            Entry("ours-celery", 10_000, INSERT),
            Entry("pgqueuer", 10_000, INSERT),
            Entry("ours-celery-threads", 10_000, INSERT),
            Entry("graphile", 10_000, INSERT),
            Entry("ours-celery-batch", 20_000, {"handler": "insert_batch"}),
            Entry("graphile-2", 10_000, INSERT),
            Entry("celery", 5_000, INSERT, rounds=SLOW),
            Entry("dramatiq", 10_000, INSERT, rounds=SLOW),
            Entry("procrastinate", 2_000, INSERT, rounds=SLOW),
        ),
        quick=True,
    ),
)
