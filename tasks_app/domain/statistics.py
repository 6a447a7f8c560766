"""What is counted of tasks: outcomes, histograms of milliseconds, and successes without a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from itertools import zip_longest

from tasks_app.domain.tasks.states import Event, State


class CountedOutcome(IntEnum):
    """As the database stores them. 10 is kept for tasks that were created."""

    DONE = 1
    SKIPPED = 2
    CANCELLED = 3
    EXPIRED = 4
    FAILED = 5
    RETRIED = 6
    RELEASED = 7
    """Went back before it started, or through no fault of its own."""
    RESCUED = 8
    """Went back because its process, or its connection, was gone."""
    SNOOZED = 9
    STALE = 11
    """A write that the database refused, as the lease had been lost: the task is another run's."""
    DUPLICATE = 12
    """An id of a message that could not be claimed: taken, over or held back."""
    UNKEPT = 13
    """Of the done ones, whose row was not kept: counted a second time."""
    LEFT = 14
    """A run that whoever carried it out had left without an end: it went back. None should be."""


_OVER = {
    State.SUCCEEDED: CountedOutcome.DONE,
    State.SKIPPED: CountedOutcome.SKIPPED,
    State.CANCELLED: CountedOutcome.CANCELLED,
    State.EXPIRED: CountedOutcome.EXPIRED,
    State.FAILED: CountedOutcome.FAILED,
}
_AGAIN = {
    Event.RETRY: CountedOutcome.RETRIED,
    Event.RELEASE: CountedOutcome.RELEASED,
    Event.RESCUE: CountedOutcome.RESCUED,
    Event.SNOOZE: CountedOutcome.SNOOZED,
}
FINAL = tuple(_OVER.values())
OTHER = "(other)"
"""The name and queue of what was over ``MOST_KEYS`` in a minute."""
MOST_KEYS = 500
"""Names, queues and outcomes in a minute that have a row of their own."""


def outcome_of(state: State, event: Event) -> CountedOutcome:
    """Return what a run came to that led to ``state``; ``event`` says why it is pending again."""
    over = _OVER.get(state)
    return _AGAIN[event] if over is None else over


def state_of(outcome: CountedOutcome) -> State | None:
    """Return the state of a task that is over by this outcome; None: it is not over."""
    return next((state for state, found in _OVER.items() if found is outcome), None)


BUCKETS = 25
LAST_BUCKET = BUCKETS - 1
BOUNDS_MS = tuple(1 << n for n in range(LAST_BUCKET))
"""Bucket n holds what is below ``BOUNDS_MS[n]`` and not below the bound before it."""


def bucket_of(ms: int) -> int:
    """Return the bucket of so many whole milliseconds."""
    return min(ms.bit_length(), LAST_BUCKET)


def merge_histograms(*histograms: Sequence[int]) -> list[int]:
    """Add histograms up; the shorter ones lack buckets that are empty."""
    return [sum(counts) for counts in zip_longest(*histograms, fillvalue=0)]


def trim_histogram(histogram: Sequence[int]) -> list[int]:
    """Leave out the empty buckets at the end."""
    used = len(histogram)
    while used and not histogram[used - 1]:
        used -= 1
    return list(histogram[:used])


def percentile(histogram: Sequence[int], share: float) -> float | None:
    """Return the milliseconds that ``share`` of what was counted stays below; None: none was.

    Of the last bucket, which has no upper bound, its lower bound.
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
