"""What is counted: how runs and tasks ended, each with a number that never changes."""

from __future__ import annotations

from enum import IntEnum

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
