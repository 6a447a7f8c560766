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
from tasks_app.domain.schedules.timing import Timing, instants_between

ON_TIME = timedelta(minutes=1)  # a later instant is missed; a dead leader is replaced in seconds
PER_PASS = 500  # instants of one schedule in one transaction; the next pass continues
MOST = 10_000
_ALL = re.compile(r"^fire_all(?:\((\d{1,5})(?:, ?([^),]+))?\))?$")
_TICK = timedelta(microseconds=1)


class MisfirePolicy(StrEnum):
    """The two policies without parameters."""

    SKIP = "skip"  # fire no missed instant
    FIRE_ONCE = "fire_once"  # fire the newest one; none if another instant is on time


@dataclass(frozen=True, slots=True)
class FireAll:
    """Fire each missed instant: the newest ``most``, none older than ``max_age``."""

    most: int = 100
    max_age: timedelta | None = None

    def __str__(self) -> str:
        age = f", {format_duration(self.max_age)}" if self.max_age is not None else ""
        return f"fire_all({self.most}{age})"


class DueInstants(NamedTuple):
    instants: list[datetime]  # oldest first
    next_at: datetime | None  # when to evaluate the schedule next; None: never


def fire_all(most: int = 100, max_age: Duration | None = None) -> FireAll:
    """Fire for each missed instant, the newest ``most``, none older than ``max_age``.

    >>> daily = create_schedule(session, "d", "report.write", every="1d", missed=fire_all(7, "30d"))

    Raises:
        InvalidScheduleError: ``most`` is not 1 .. 10,000, or the age is not a duration.
    """
    if type(most) is not int or not 1 <= most <= MOST:
        raise _refusal(f"is fire_all of {most!r:.20}")
    try:
        return FireAll(most, None if max_age is None else parse_duration(max_age))
    except ValueError as error:
        raise _refusal(str(error)) from None


def parse_missed(value: str | MisfirePolicy | FireAll) -> MisfirePolicy | FireAll:
    """Return the policy in a text; raises InvalidScheduleError."""
    if isinstance(value, FireAll):
        return fire_all(value.most, value.max_age)
    if value in list(MisfirePolicy):
        return MisfirePolicy(value)
    found = _ALL.match(str(value))
    if found is None:
        raise _refusal(f"is {value!r:.60}")
    return fire_all(int(found[1] or 100), found[2])


def _refusal(problem: str) -> InvalidScheduleError:
    return InvalidScheduleError(
        "missed", problem, "skip, fire_once or fire_all, such as fire_all(100, 1d)"
    )


def due_instants(
    timing: Timing,
    missed: MisfirePolicy | FireAll,
    *,
    since: datetime,
    now: datetime,
    until: datetime | None,
) -> DueInstants:
    """Return which of the instants from ``since`` to ``until`` (both included) fire at ``now``.

    A year of missed seconds takes no longer than one missed second.
    """
    end = now if until is None else min(now, until)
    on_time_from = max(since, now - ON_TIME)
    instants = list(instants_between(timing, on_time_from, end + _TICK))
    missed_until = min(on_time_from, end + _TICK)
    if isinstance(missed, FireAll):
        first = since if missed.max_age is None else max(since, now - missed.max_age)
        instants = _newest(timing, first, missed_until, missed.most) + instants
    elif missed == MisfirePolicy.FIRE_ONCE and not instants:
        instants = _newest(timing, since, missed_until, 1)
    if len(instants) > PER_PASS:
        return DueInstants(instants[:PER_PASS], instants[PER_PASS])
    return DueInstants(instants, next_at(timing, now, until))


def _newest(timing: Timing, first: datetime, end: datetime, most: int) -> list[datetime]:
    """Return the last ``most`` instants of a span, searching backwards in growing steps."""
    span = ON_TIME
    while first < end:
        start = max(first, end - span)
        found = deque(instants_between(timing, start, end), maxlen=most)
        if len(found) == most or start == first:
            return list(found)
        span *= 4
    return []


def next_at(timing: Timing, after: datetime, until: datetime | None) -> datetime | None:
    """Return the first instant after ``after``, unless it is after ``until``."""
    following = timing.next_after(after)
    return None if following is None or (until is not None and following > until) else following


def first_at(
    timing: Timing, now: datetime, since: datetime | None, until: datetime | None
) -> datetime | None:
    """Return the first instant after ``now`` and not before ``since``."""
    return next_at(timing, now if since is None else max(now, since - _TICK), until)


class Overlap(StrEnum):
    """What to do while an earlier task waits or runs."""

    ALLOW = "allow"  # create a task each time
    SKIP = "skip"  # create no task
    QUEUE = "queue"  # one instant waits until the earlier task is over; others are skipped
    REPLACE = (
        "replace"  # cancel the earlier task (a running one is asked to stop); create a new one
    )


class Fired(StrEnum):
    """The outcome of an instant, as stored in ``last_outcome``."""

    MADE = "made"  # its task was created
    QUEUED = "queued"  # its task will be created when the earlier one is over
    SKIPPED = "skipped"  # no task: there was an earlier one, or its unique_key was taken
    REPLACED = "replaced"  # no task: a later instant of the same pass replaces it
    MISSED = "missed"  # no task: no leader fired in time, and the misfire policy skips it
    BROKEN = "broken"  # its row or task is invalid; the schedule is off until it is repaired


@dataclass(slots=True)
class OverlapVerdict:
    made: list[datetime] = field(default_factory=list)
    queued: datetime | None = None
    without: dict[datetime, Fired] = field(default_factory=dict)  # instants without a task, and why
    cancels: bool = False  # the earlier tasks


def judge_overlap(
    overlap: Overlap, instants: Sequence[datetime], queued: datetime | None, *, busy: bool
) -> OverlapVerdict:
    """Decide which instants get a task. ``busy``: an earlier task of the schedule is not over."""
    every = [*([] if queued is None else [queued]), *instants]
    room = 0 if busy else 1
    match overlap:
        case Overlap.ALLOW:
            return OverlapVerdict(made=every)
        case Overlap.REPLACE:
            without = dict.fromkeys(every[:-1], Fired.REPLACED)
            return OverlapVerdict(made=every[-1:], without=without, cancels=busy and bool(every))
        case Overlap.SKIP:
            without = dict.fromkeys(every[room:], Fired.SKIPPED)
            return OverlapVerdict(every[:room], None, without)
        case Overlap.QUEUE:
            without = dict.fromkeys(every[room + 1 :], Fired.SKIPPED)
            return OverlapVerdict(every[:room], next(iter(every[room:]), None), without)
