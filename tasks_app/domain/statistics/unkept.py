"""Successes that left no row, in the words of every page that would show them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

UNKEPT_WITHIN = timedelta(days=30)
MOST_NAMES = 5


@dataclass(frozen=True, slots=True)
class Unkept:
    """How many of the last 30 days, as the counters know; the ids are gone."""

    number: int
    names: tuple[str, ...]
    """Those with most of them, at most ``MOST_NAMES``."""
    more: bool
    """There are more names."""

    @property
    def words(self) -> str:
        """A sentence."""
        names = ", ".join(self.names) + (" and others" if self.more else "")
        tasks = "1 task" if self.number == 1 else f"{self.number:,} tasks"
        return (
            f"{tasks} of {names} succeeded in the last {UNKEPT_WITHIN.days} days and left no row, "
            "as their history says; they are counted."
        )
