"""What becomes of an instant while an earlier task of its schedule waits or runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class Overlap(StrEnum):
    """What to do while an earlier task waits or runs."""

    ALLOW = "allow"
    """Make a task each time."""
    SKIP = "skip"
    """Make no task."""
    QUEUE = "queue"
    """One instant waits until the earlier task is over; further instants are skipped."""
    REPLACE = "replace"
    """Cancel the old task (at once if it waits; if it runs, ask it to stop). Make the new one."""


class Fired(StrEnum):
    """What became of an instant, as ``last_outcome`` stores it."""

    MADE = "made"
    """Its task was made."""
    QUEUED = "queued"
    """Its task will be made when the earlier one is over."""
    SKIPPED = "skipped"
    """No task: there was an earlier one, or its unique_key was taken."""
    REPLACED = "replaced"
    """No task: a later instant of the same pass replaces it."""
    MISSED = "missed"
    """No task: no leader fired in time, and the misfire policy skips it."""
    BROKEN = "broken"
    """The row cannot be read or its task not be written; it does not fire until it is repaired."""


@dataclass(slots=True)
class OverlapVerdict:
    """What to do for the due instants of one schedule."""

    made: list[datetime] = field(default_factory=list)
    queued: datetime | None = None
    without: dict[datetime, Fired] = field(default_factory=dict)
    """Instants that get no task, and why."""
    cancels: bool = False
    """Whether to cancel the earlier tasks."""


def judge(
    overlap: Overlap, instants: Sequence[datetime], queued: datetime | None, *, busy: bool
) -> OverlapVerdict:
    """Decide which instants get a task. ``busy``: one of the schedule's tasks is not over."""
    every = [*([] if queued is None else [queued]), *instants]
    room = 0 if busy else 1
    match overlap:
        case Overlap.ALLOW:
            return OverlapVerdict(made=every)
        case Overlap.REPLACE:
            without = dict.fromkeys(every[:-1], Fired.REPLACED)
            return OverlapVerdict(made=every[-1:], without=without, cancels=busy and bool(every))
        case Overlap.SKIP:
            return OverlapVerdict(
                made=every[:room], without=dict.fromkeys(every[room:], Fired.SKIPPED)
            )
        case Overlap.QUEUE:
            behind = every[room:]
            return OverlapVerdict(
                made=every[:room],
                queued=behind[0] if behind else None,
                without=dict.fromkeys(behind[1:], Fired.SKIPPED),
            )
