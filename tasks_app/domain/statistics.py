"""What is counted of tasks: outcomes, histograms of milliseconds, and successes without a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from itertools import zip_longest

from tasks_app.domain.tasks.states import Event, State


class CountedOutcome(IntEnum):
    """As the database stores them. 10 is reserved for created tasks."""

    DONE = 1
    SKIPPED = 2
    CANCELLED = 3
    EXPIRED = 4
    FAILED = 5
    RETRIED = 6
    RELEASED = 7  # went back before it started, or through no fault of its own
    RESCUED = 8  # went back because its process or connection died
    SNOOZED = 9
    STALE = 11  # a write that the database refused: the lease was lost, another run has the task
    DUPLICATE = 12  # an id in a message that could not be claimed: taken, over or held back
    UNKEPT = 13  # of DONE, those whose row was not kept: counted a second time
    LEFT = 14  # a run that ended without an outcome, and went back; this should never happen


_FINAL_OUTCOMES = {
    State.SUCCEEDED: CountedOutcome.DONE,
    State.SKIPPED: CountedOutcome.SKIPPED,
    State.CANCELLED: CountedOutcome.CANCELLED,
    State.EXPIRED: CountedOutcome.EXPIRED,
    State.FAILED: CountedOutcome.FAILED,
}
_REPEAT_OUTCOMES = {
    Event.RETRY: CountedOutcome.RETRIED,
    Event.RELEASE: CountedOutcome.RELEASED,
    Event.RESCUE: CountedOutcome.RESCUED,
    Event.SNOOZE: CountedOutcome.SNOOZED,
}
FINAL = tuple(_FINAL_OUTCOMES.values())
MOST_KEYS = 500  # combinations of name, queue and outcome with a row of their own in a minute
OTHER = "(other)"  # the name and queue of all further ones


def outcome_of(state: State, event: Event) -> CountedOutcome:
    """Return the outcome of a run that led to ``state``; ``event`` tells apart the pending ones."""
    return _FINAL_OUTCOMES.get(state) or _REPEAT_OUTCOMES[event]


def state_of(outcome: CountedOutcome) -> State | None:
    """Return the final state that the outcome leads to; None: it leads to none."""
    return next((state for state, found in _FINAL_OUTCOMES.items() if found is outcome), None)


BUCKETS = 25
LAST_BUCKET = BUCKETS - 1
BOUNDS_MS = tuple(1 << n for n in range(LAST_BUCKET))  # upper bounds, exclusive


def bucket_of(ms: int) -> int:
    return min(ms.bit_length(), LAST_BUCKET)


def merge_histograms(*histograms: Sequence[int]) -> list[int]:
    """Add histograms; the shorter ones lack the empty buckets at their end."""
    return [sum(counts) for counts in zip_longest(*histograms, fillvalue=0)]


def trim_histogram(histogram: Sequence[int]) -> list[int]:
    used = len(histogram)
    while used and not histogram[used - 1]:
        used -= 1
    return list(histogram[:used])


def percentile(histogram: Sequence[int], share: float) -> float | None:
    """Return the milliseconds below which ``share`` of the counted values lie; None: no values.

    For the last bucket, which has no upper bound, return its lower bound.
    """
    total = sum(histogram)
    if not total:
        return None
    left = share * total
    for bucket, number in enumerate(histogram):
        if number and left <= number:
            low = BOUNDS_MS[bucket - 1] if bucket else 0
            if bucket >= LAST_BUCKET:
                return float(low)
            return low + (BOUNDS_MS[bucket] - low) * max(left, 0.0) / number
        left -= number
    return float(BOUNDS_MS[-1])


UNKEPT_WITHIN = timedelta(days=30)
MOST_NAMES = 5


@dataclass(frozen=True, slots=True)
class Unkept:
    """Successes of the last 30 days without a row, from the counters; their ids are unknown."""

    number: int
    names: tuple[str, ...]  # the most frequent ones, at most MOST_NAMES
    more: bool  # there are more names

    @property
    def words(self) -> str:
        names = ", ".join(self.names) + (" and others" if self.more else "")
        tasks = "1 task" if self.number == 1 else f"{self.number:,} tasks"
        return (
            f"{tasks} of {names} succeeded in the last {UNKEPT_WITHIN.days} days and left no row, "
            "as their history setting says; the counters include them."
        )
