"""How a figure of ours stands: by itself, or against the best of the others that were measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dev.benchmarks.figures import Figures, Spread


@dataclass(frozen=True, slots=True)
class Goal:
    """One row: a figure of ours, by itself or against the best of some others."""

    metric: str
    scenario: str
    ours: str
    figure: str
    must: float
    aim: float | None
    at: Literal["least", "most"] = "least"
    theirs: tuple[str, ...] = ()
    unit: str = "x"
    or_ours: tuple[str, ...] = ()
    """Other ways of ours: the best counts."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a goal stands."""

    goal: Goal
    ours: Spread | None = None
    way: str = ""
    best: str = ""
    theirs: Spread | None = None

    @property
    def value(self) -> float | None:
        """What is compared with must and aim."""
        if self.ours is None or (self.goal.theirs and self.theirs is None):
            return None
        return self.ours.median / self.theirs.median if self.theirs else self.ours.median

    @property
    def met(self) -> str:
        """Say ``aim``, ``must``, ``NO`` or ``not measured``."""
        value = self.value
        if value is None:
            return "not measured"
        reached = [
            name
            for name, bound in (("must", self.goal.must), ("aim", self.goal.aim))
            if bound is not None and (value >= bound if self.goal.at == "least" else value <= bound)
        ]
        return reached[-1] if reached else "NO"


def judge(goal: Goal, figures: Figures) -> Verdict:
    """Compare medians; against the best of the others that were measured."""
    way, ours = _best(goal, (goal.ours, *goal.or_ours), figures)
    best, theirs = _best(goal, goal.theirs, figures)
    return Verdict(goal, ours, way, best, theirs)


def _best(goal: Goal, names: tuple[str, ...], figures: Figures) -> tuple[str, Spread | None]:
    found = {name: figures.spread(goal.scenario, name, goal.figure) for name in names}
    measured = {name: spread for name, spread in found.items() if spread is not None}
    if not measured:
        return "", None
    choose = max if goal.at == "least" else min
    best = choose(measured, key=lambda name: measured[name].median)
    return best, measured[best]
