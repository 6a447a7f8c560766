"""What the measurements must know of a system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dev.benchmarks.environments import Environment


@dataclass(frozen=True, slots=True)
class System:
    """A system in one configuration.

    Its ``play`` understands the verbs ``install``, ``enqueue`` and whatever its scenarios need.
    """

    name: str
    title: str
    environment: Environment
    services: tuple[list[str], ...]
    """Commands that run beside each other."""
    parties: int = 1
    """Processes that wait for each other at their start (``marks.gather``)."""
    unfinished: str | None = None
    """SQL after FROM: the rows that are to be done, above id ``{after}``. None: it keeps none."""
    finished: str | None = None
    """SQL: how many tasks lie in which pool, as rows of (pool, rows, distinct tasks)."""
    keeps_rows: bool = True
    """False: a task that succeeded leaves none, so ``finished`` finds none."""
    first_claim: str | None = None
    """SQL, asked at the end: when the first task was claimed, as seconds since 1970."""
    fills: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """SQL that makes ``{rows}`` rows of an old and busy system: ``finished``, ``future``."""
    variables: Mapping[str, str] = field(default_factory=dict)
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot be run yet, if so."""
