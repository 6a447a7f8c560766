"""What becomes of an instant that was missed, or that comes while an earlier task still runs."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from tasks_app.domain.durations import Duration, format_duration, parse_duration
from tasks_app.domain.errors import InvalidScheduleError
from tasks_app.domain.schedules.timing import Timing, between

ON_TIME = timedelta(minutes=1)
"""An instant that fires this late is not missed: a dead leader is replaced within seconds."""
PER_PASS = 500
"""Instants of one schedule in one transaction; the next pass continues."""
MOST = 10_000
_ALL = re.compile(r"^fire_all(?:\((\d{1,5})(?:, ?([^),]+))?\))?$")
_TICK = timedelta(microseconds=1)


class MisfirePolicy(StrEnum):
    """The two policies without parameters."""

    SKIP = "skip"
    """Fire no missed instant."""
    FIRE_ONCE = "fire_once"
    """Fire the newest for all of them; none if an instant that is on time follows anyway."""


@dataclass(frozen=True, slots=True)
class FireAll:
    """Fire each missed instant: the newest ``most``, none older than ``max_age``."""

    most: int = 100
    max_age: timedelta | None = None

    def __str__(self) -> str:
        age = f", {format_duration(self.max_age)}" if self.max_age is not None else ""
        return f"fire_all({self.most}{age})"


class DueInstants(NamedTuple):
    """The instants that a schedule fires now."""

    instants: list[datetime]
    """Oldest first."""
    next_at: datetime | None
    """When to evaluate the schedule next; None: never again."""


def fire_all(most: int = 100, max_age: Duration | None = None) -> FireAll:
    """Fire for each missed instant, the newest ``most``, none older than ``max_age``.

    >>> daily = create_schedule(session, "d", "report.write", every="1d", missed=fire_all(7, "30d"))

    Raises:
        InvalidScheduleError: ``most`` is not 1 .. 10,000, or the age is no duration.
    """
    if type(most) is not int or not 1 <= most <= MOST:
        raise _refused(f"is fire_all of {most!r:.20}")
    try:
        return FireAll(most, None if max_age is None else parse_duration(max_age))
    except ValueError as error:
        raise _refused(str(error)) from None


def parse_missed(value: str | MisfirePolicy | FireAll) -> MisfirePolicy | FireAll:
    """Return the policy of this text; raises InvalidScheduleError."""
    if isinstance(value, FireAll):
        return fire_all(value.most, value.max_age)
    if value in list(MisfirePolicy):
        return MisfirePolicy(value)
    found = _ALL.match(str(value))
    if found is None:
        raise _refused(f"is {value!r:.60}")
    return fire_all(int(found[1] or 100), found[2])


def due_instants(
    timing: Timing,
    missed: MisfirePolicy | FireAll,
    *,
    since: datetime,
    now: datetime,
    until: datetime | None,
) -> DueInstants:
    """Return what fires at ``now`` of the instants from ``since`` to ``until``, both included.

    A year of missed seconds takes no longer than one missed second.
    """
    end = now if until is None else min(now, until)
    on_time_from = max(since, now - ON_TIME)
    chosen = _missed(timing, missed, since, min(on_time_from, end + _TICK), now)
    on_time = list(between(timing, on_time_from, end + _TICK))
    if missed != MisfirePolicy.FIRE_ONCE or not on_time:
        on_time = chosen + on_time
    if len(on_time) > PER_PASS:
        return DueInstants(on_time[:PER_PASS], on_time[PER_PASS])
    return DueInstants(on_time, next_at(timing, now, until))


def next_at(timing: Timing, after: datetime, until: datetime | None) -> datetime | None:
    """Return the first instant after ``after``, unless it is after ``until``."""
    following = timing.next_after(after)
    return None if following is None or (until is not None and following > until) else following


def first_at(
    timing: Timing, now: datetime, since: datetime | None, until: datetime | None
) -> datetime | None:
    """Return the first instant after ``now`` and not before ``since``."""
    return next_at(timing, now if since is None else max(now, since - _TICK), until)


def _missed(
    timing: Timing,
    missed: MisfirePolicy | FireAll,
    since: datetime,
    before: datetime,
    now: datetime,
) -> list[datetime]:
    if missed == MisfirePolicy.SKIP:
        return []
    if isinstance(missed, FireAll):
        first = since if missed.max_age is None else max(since, now - missed.max_age)
        return _newest(timing, first, before, missed.most)
    return _newest(timing, since, before, 1)


def _newest(timing: Timing, first: datetime, end: datetime, most: int) -> list[datetime]:
    """Return the last ``most`` instants of a span; search backwards in growing steps."""
    span = ON_TIME
    while first < end:
        start = max(first, end - span)
        found = deque(between(timing, start, end), maxlen=most)
        if len(found) == most or start == first:
            return list(found)
        span *= 4
    return []


def _refused(problem: str) -> InvalidScheduleError:
    return InvalidScheduleError(
        "missed", problem, "skip, fire_once or fire_all, such as fire_all(100, 1d)"
    )


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


def judge_overlap(
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
