"""Why a plan must not start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import Partition

MOST_SHOWN = 20


class Wrong(StrEnum):
    """Kinds of problems."""

    TOO_FEW = "too few"
    DUPLICATE_NUMBER = "duplicate number"
    WRONG_TYPE = "wrong type"
    MIXED = "mixed"
    TOO_LONG = "too long"
    REVERSED = "reversed"
    EMPTY = "empty"
    OVERLAP = "overlap"
    GAP = "gap"
    SHORT = "short coverage"
    UNOWNED = "unowned"
    SPANNING = "spanning"
    NO_SOURCE = "no such source"


class Problem(NamedTuple):
    """Why a plan must not start."""

    kind: Wrong
    message: str
    """What is wrong, with the ranges, and what to do."""
    numbers: tuple[int, ...] = ()
    """The numbers of the partitions concerned."""

    def __str__(self) -> str:
        return self.message


class WrongPlanError(PlanError):
    """A plan does not give every row exactly one owner; nothing was started.

    Attributes:
        problems: all that is wrong.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        shown = "\n".join(f"- {problem}" for problem in problems[:MOST_SHOWN])
        rest = len(problems) - MOST_SHOWN
        more = f"\n- and {rest} more" if rest > 0 else ""
        super().__init__(f"The plan is wrong, nothing was started:\n{shown}{more}")
        self.problems: tuple[Problem, ...] = tuple(problems)


def named(partitions: Iterable[Partition]) -> str:
    """Return partitions with what they own, MOST_SHOWN of them at most."""
    shown = [str(each) for each in partitions]
    more = f" and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
    return ", ".join(shown[:MOST_SHOWN]) + more


def numbers(partitions: Iterable[Partition]) -> tuple[int, ...]:
    """Return their numbers, each once."""
    return tuple(dict.fromkeys(each.number for each in partitions))
