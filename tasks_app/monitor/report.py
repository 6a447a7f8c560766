"""What happened since an instant, and how it stands now."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.finding import Finding, Level
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.fingerprint import traits_of
from tasks_app.domain.tasks.run import Cause
from tasks_app.monitor.checks.checkup import examine
from tasks_app.monitor.pages.history import History, Percentiles, read_history
from tasks_app.monitor.pages.overview import Overview, overview
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.connection.read_only import looking
from tasks_app.pool.error_groups import ErrorGroup
from tasks_app.pool.error_groups import groups
from tasks_app.pool.operations.schedule_trouble import ScheduleTrouble, schedule_trouble
from tasks_app.pool.statistics.read import Grain, Wanted, history, times
from tasks_app.pool.tasks.browse import attempts
from tasks_app.runtime.db.database import Database

LONGEST = timedelta(seconds=30)
"""Of one statement."""
PATIENCE = timedelta(minutes=1)
MOST_NAMES, MOST_GROUPS, MOST_QUEUES = 10, 10, 20
ASKED_GROUPS = 200
_CLASS = re.compile(r"[\w.]+")
_SPANS = ((timedelta(hours=3), Grain.MINUTE), (timedelta(days=14), Grain.HOUR))


@dataclass(frozen=True, slots=True)
class QueueTimes:
    """How long tasks of a queue waited and ran."""

    queue: str
    done: int
    waited: Percentiles
    ran: Percentiles


@dataclass(frozen=True, slots=True)
class NewError:
    """A cause of failures that was never seen before.

    Without its message: a report is mailed, and a message may repeat the payload.
    """

    fingerprint: str
    number: int
    first_at: datetime
    names: tuple[str, ...]
    kind: str
    where: str
    """The innermost function of the user's code; empty: none is known."""


@dataclass(frozen=True, slots=True)
class Report:
    """What happened from ``since`` to ``at``, and what is at ``at``."""

    since: datetime
    at: datetime
    history: History
    outcomes: dict[str, int]
    """How often runs and tasks ended so."""
    queues: tuple[QueueTimes, ...]
    new_errors: tuple[NewError, ...]
    """Of those that still lie in the error pool."""
    schedules: tuple[ScheduleTrouble, ...]
    now: Overview
    """Without the last errors: their messages have values."""
    findings: tuple[Finding, ...]
    """What doctor finds wrong in the database, the worst first."""

    @property
    def counted_until(self) -> datetime:
        """Ends of runs from then on are not counted yet."""
        return self.history.counted_until

    @property
    def done_per_s(self) -> float:
        return self.history.done / max(1.0, (self.at - self.since).total_seconds())

    @property
    def grain(self) -> str:
        """How long the time of a bar is, in words."""
        bars = self.history.bars
        length = bars[1].at - bars[0].at if len(bars) > 1 else timedelta(minutes=1)
        words = {timedelta(minutes=1): "minute", timedelta(hours=1): "hour"}
        return words.get(length, "day")


def read_report(
    database: Database,
    settings: Settings,
    since: datetime | timedelta,
    *,
    now: datetime | None = None,
) -> Report:
    """Read it. The last two minutes are not counted yet.

    Raises:
        ValueError: ``since`` is not in the past.
    """
    findings = _findings(settings)
    with looking(database.engine, LONGEST) as connection:
        at = now or instant(connection)
        begin = at - since if isinstance(since, timedelta) else since
        if begin >= at:
            raise ValueError("is not in the past")
        wanted = Wanted(_grain(at - begin), at - begin)
        points = history(connection, wanted, now=at)
        outcomes = {
            outcome.name.lower(): number
            for outcome in CountedOutcome
            if (number := sum(each.number for each in points if each.outcome is outcome))
        }
        name = f"{begin:%Y-%m-%d %H:%M} to {at:%Y-%m-%d %H:%M}"
        return Report(
            since=begin,
            at=at,
            history=read_history(connection, wanted, name, most=MOST_NAMES, now=at),
            outcomes=outcomes,
            queues=_queues(connection, wanted, at),
            new_errors=_new_errors(connection, begin, at),
            schedules=tuple(schedule_trouble(connection, begin, PATIENCE, now=at)),
            now=replace(overview(connection, settings), causes=()),
            findings=findings,
        )


def _grain(length: timedelta) -> Grain:
    return next((grain for most, grain in _SPANS if length <= most), Grain.DAY)


def _queues(connection: Connection, wanted: Wanted, at: datetime) -> tuple[QueueTimes, ...]:
    shares = (0.5, 0.95, 0.99)
    found = [
        QueueTimes(
            each.key,
            sum(each.waits),
            Percentiles(*map(each.waited_ms, shares)),
            Percentiles(*map(each.ran_ms, shares)),
        )
        for each in times(connection, wanted, by="queue", now=at)
    ]
    return tuple(sorted(found, key=lambda each: -each.done)[:MOST_QUEUES])


def _new_errors(connection: Connection, since: datetime, at: datetime) -> tuple[NewError, ...]:
    found = groups(connection, since=since, most=ASKED_GROUPS, now=at)
    new = [each for each in found if each.first_at >= since][:MOST_GROUPS]
    return tuple(
        NewError(e.fingerprint, e.number, e.first_at, tuple(e.names), *_place(connection, e))
        for e in new
    )


def _place(connection: Connection, group: ErrorGroup) -> tuple[str, str]:
    """Return class and function of the newest error of a cause."""
    sample = next(reversed(attempts(connection, group.sample_id)), None)
    if sample is None:
        kind = group.error.partition(": ")[0]
        return (kind if _CLASS.fullmatch(kind) else "", "")
    frames = traits_of(Cause(sample.kind, sample.message, sample.traceback)).frames
    return sample.kind, frames[-1] if frames else ""


def _findings(settings: Settings) -> tuple[Finding, ...]:
    # Causes of failed tasks stand in a table of their own, without their messages.
    found = [e for e in examine(settings) if e.level is not Level.OK and e.subject != "failed"]
    return tuple(sorted(found, key=lambda each: each.level is not Level.FAIL))
