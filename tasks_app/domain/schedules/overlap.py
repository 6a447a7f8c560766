"""What becomes of an instant that finds a task of its schedule still waiting or running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class Overlap(StrEnum):
    """The policies."""

    ALLOW = "allow"
    """A task each time."""
    SKIP = "skip"
    """No task while one of them waits or runs."""
    QUEUE = "queue"
    """One instant waits until the task before it is over; more that come meanwhile are skipped."""
    REPLACE = "replace"
    """The old task is cancelled: at once if it waits, told if it runs. The new one is made."""


class Fired(StrEnum):
    """What became of an instant; a schedule's last outcome."""

    MADE = "made"
    """Its task was made."""
    QUEUED = "queued"
    """Its task will be made when the one before it is over."""
    SKIPPED = "skipped"
    """No task: an earlier one was there, or held its unique_key."""
    REPLACED = "replaced"
    """No task: a later instant of the same moment replaces it."""
    MISSED = "missed"
    """No task: nobody was there to fire, and the policy makes none up for it."""
    BROKEN = "broken"
    """The row cannot be read or its task cannot be written; it fires no more until it is mended."""


@dataclass(slots=True)
class Verdict:
    """What is to be done for the instants of one schedule."""

    made: list[datetime] = field(default_factory=list)
    queued: datetime | None = None
    without: dict[datetime, Fired] = field(default_factory=dict)
    """Instants that get no task, and why."""
    cancels: bool = False
    """The tasks that were there are to be cancelled."""


def judge(
    overlap: Overlap, instants: Sequence[datetime], queued: datetime | None, *, busy: bool
) -> Verdict:
    """Return which instants get a task. ``busy``: one of the schedule's tasks is not over."""
    every = [*([] if queued is None else [queued]), *instants]
    room = 0 if busy else 1
    match overlap:
        case Overlap.ALLOW:
            return Verdict(made=every)
        case Overlap.REPLACE:
            without = dict.fromkeys(every[:-1], Fired.REPLACED)
            return Verdict(made=every[-1:], without=without, cancels=busy and bool(every))
        case Overlap.SKIP:
            return Verdict(made=every[:room], without=dict.fromkeys(every[room:], Fired.SKIPPED))
        case Overlap.QUEUE:
            behind = every[room:]
            return Verdict(
                made=every[:room],
                queued=behind[0] if behind else None,
                without=dict.fromkeys(behind[1:], Fired.SKIPPED),
            )
