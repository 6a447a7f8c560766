"""A report of what happened since an instant, as tables for a terminal or a mail."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import (
    count,
    distance_in_words,
    milliseconds_in_words,
    to_the_minute,
    to_the_second,
)
from tasks_app.domain.finding import Finding, Level
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.error_text import traits_of
from tasks_app.domain.tasks.run import Cause
from tasks_app.monitor.checks.checkup import examine
from tasks_app.monitor.pages.history import History, Percentiles, read_history
from tasks_app.monitor.pages.overview import Overview, overview
from tasks_app.pool.connection.sessions import read_only_transaction
from tasks_app.pool.error_groups import ErrorGroup, find_error_groups
from tasks_app.pool.operations.trouble import ScheduleTrouble, schedule_trouble
from tasks_app.pool.statistics.read import Grain, Wanted, history, run_histograms
from tasks_app.pool.tables import database_now
from tasks_app.pool.tasks.browse import failed_attempts
from tasks_app.runtime.db.database import Database

LONGEST = timedelta(seconds=30)  # of one statement
PATIENCE = timedelta(minutes=1)
MOST_NAMES, MOST_GROUPS, MOST_QUEUES, MOST_LINES = 10, 10, 20, 20
MOST_GROUPS_READ = 200
_CLASS = re.compile(r"[\w.]+")
_SPANS = ((timedelta(hours=3), Grain.MINUTE), (timedelta(days=14), Grain.HOUR))


@dataclass(frozen=True, slots=True)
class QueueTimes:
    queue: str
    done: int
    waited: Percentiles
    ran: Percentiles


@dataclass(frozen=True, slots=True)
class NewError:
    """A new cause, without its message: a report is mailed, and it may repeat the payload."""

    fingerprint: str
    number: int
    first_at: datetime
    names: tuple[str, ...]
    kind: str
    where: str  # the innermost function of the user's code; empty: none is known


@dataclass(frozen=True, slots=True)
class Report:
    """What happened from ``since`` to ``at``, and what is at ``at``."""

    since: datetime
    at: datetime
    history: History
    outcomes: dict[str, int]  # how often runs and tasks ended so
    queues: tuple[QueueTimes, ...]
    new_errors: tuple[NewError, ...]  # of those that still lie in the error pool
    schedules: tuple[ScheduleTrouble, ...]
    now: Overview  # without the last errors: their messages have values
    findings: tuple[Finding, ...]  # what doctor finds wrong in the database, the worst first

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


def read_report(database: Database, settings: Settings, since: datetime | timedelta) -> Report:
    """Read it; a ValueError if ``since`` is not in the past."""
    # Causes of failed tasks have a table of their own, without their messages.
    findings = [e for e in examine(settings) if e.level is not Level.OK and e.subject != "failed"]
    with read_only_transaction(database.engine, LONGEST) as connection:
        at = database_now(connection)
        begin = at - since if isinstance(since, timedelta) else since
        length = at - begin
        if length <= timedelta(0):
            raise ValueError("is not in the past")
        grain = next((grain for most, grain in _SPANS if length <= most), Grain.DAY)
        wanted = Wanted(grain, length)
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
            findings=tuple(sorted(findings, key=lambda each: each.level is not Level.FAIL)),
        )


def _queues(connection: Connection, wanted: Wanted, at: datetime) -> tuple[QueueTimes, ...]:
    shares = (0.5, 0.95, 0.99)
    found = [
        QueueTimes(
            each.key,
            sum(each.waits),
            Percentiles(*map(each.waited_ms, shares)),
            Percentiles(*map(each.ran_ms, shares)),
        )
        for each in run_histograms(connection, wanted, by="queue", now=at)
    ]
    return tuple(sorted(found, key=lambda each: -each.done)[:MOST_QUEUES])


def _new_errors(connection: Connection, since: datetime, at: datetime) -> tuple[NewError, ...]:
    found = find_error_groups(connection, since=since, most=MOST_GROUPS_READ, now=at)
    new = [each for each in found if each.first_at >= since][:MOST_GROUPS]
    return tuple(
        NewError(e.fingerprint, e.number, e.first_at, tuple(e.names), *_place(connection, e))
        for e in new
    )


def _place(connection: Connection, group: ErrorGroup) -> tuple[str, str]:
    """Return class and function of the newest error of a cause."""
    sample = next(reversed(failed_attempts(connection, group.sample_id)), None)
    if sample is None:
        kind = group.error.partition(": ")[0]
        return (kind if _CLASS.fullmatch(kind) else "", "")
    frames = traits_of(Cause(sample.kind, sample.message, sample.traceback)).frames
    return sample.kind, frames[-1] if frames else ""


@dataclass(frozen=True, slots=True)
class Section:
    """A table with a remark below each row; without rows it says ``otherwise``."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    otherwise: str
    remarks: tuple[str, ...] = ()
    words: int = 1  # how many columns, from the left, are words; the others are figures


def headline(report: Report) -> str:
    return f"{to_the_second(report.since)} to {to_the_second(report.at)}"


def counted(report: Report) -> str:
    return f"Ends of runs are counted until {to_the_minute(report.counted_until)}."


def summary(report: Report) -> tuple[str, ...]:
    """Return sentences on how much was done, and how well."""
    past = report.history
    outcomes = dict(report.outcomes)
    # A duplicate is not the end of a run: scan and producer may both have sent a message.
    duplicates = outcomes.pop(CountedOutcome.DUPLICATE.name.lower(), 0)
    unkept = outcomes.pop(CountedOutcome.UNKEPT.name.lower(), 0)
    ends = ", ".join(f"{number:,} {name}" for name, number in outcomes.items())
    if not ends:
        return ("No task has ended, or the leader has not added up the counters yet.",)
    most = max(past.bars, key=lambda bar: bar.done + bar.failed + bar.retried)
    fullest = f"{past.highest:,} ends of runs, from {to_the_second(most.at)} on"
    sentences = [
        f"Ended: {ends}.",
        f"{report.done_per_s:,.2f} done a second. The fullest {report.grain} had {fullest}.",
        f"{_percent(past.bad_ratio)} of the runs did not succeed.",
    ]
    if unkept:
        sentences.append(f"{unkept:,} of the done ones left no row, as their history says.")
    if duplicates:
        sentences.append(
            f"{duplicates:,} ids of messages had nothing to start and were dropped: harmless."
        )
    return tuple(sentences)


def sections(report: Report) -> tuple[Section, ...]:
    past, found = report.history, report.findings
    return (
        Section(
            "What doctor finds",
            ("level", "about", "finding"),
            tuple((str(f.level), f.subject, f.fact) for f in found),
            "Nothing.",
            tuple(f.advice for f in found),
            words=3,
        ),
        _times(report),
        Section(
            "Slowest on average",
            ("name", "done", "mean"),
            tuple(
                (s.name, f"{s.number:,}", milliseconds_in_words(s.mean_ms)) for s in past.slowest
            ),
            "Nothing was done.",
        ),
        Section(
            "Most failing",
            ("name", "failed", "retried", "done", "not succeeded"),
            tuple(
                (f.name, f"{f.failed:,}", f"{f.retried:,}", f"{f.done:,}", _percent(f.ratio))
                for f in past.most_failing
            ),
            "No run failed.",
        ),
        _errors(report),
        _schedules(report),
        _waiting(report),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _times(report: Report) -> Section:
    past = report.history
    found = [("all", past.done, past.waited, past.ran)] if past.done else []
    found += [(q.queue, q.done, q.waited, q.ran) for q in report.queues]
    rows = []
    for queue, done, waited, ran in found:
        spans = (waited.p50, waited.p95, waited.p99, ran.p50, ran.p95, ran.p99)
        rows.append((queue, f"{done:,}", *map(milliseconds_in_words, spans)))
    return Section(
        "How long tasks waited and ran, by queue",
        ("queue", "done", "wait p50", "p95", "p99", "run p50", "p95", "p99"),
        tuple(rows),
        "Nothing was done.",
    )


def _errors(report: Report) -> Section:
    new = report.new_errors
    ages = [distance_in_words(each.first_at, report.at) for each in new]
    return Section(
        "Errors that are new, of those that are still in the error pool",
        ("cause", "names", "tasks", "first"),
        tuple(
            (each.fingerprint, ", ".join(each.names), f"{each.number:,}", age)
            for each, age in zip(new, ages, strict=True)
        ),
        "None: all causes were seen before, or nothing failed.",
        tuple(f"{each.kind} in {each.where}" if each.where else each.kind for each in new),
        words=2,
    )


def _schedules(report: Report) -> Section:
    rows = []
    for each in report.schedules:
        wrong = []
        if each.late_now_s is not None:
            wrong.append(f"late by {milliseconds_in_words(each.late_now_s * 1000)} now")
        if each.broken:
            wrong.append("broken")
        if each.late:
            span = milliseconds_in_words(each.latest_s * 1000)
            wrong.append(f"{each.late:,} late, at most {span}")
        if each.skipped:
            wrong.append(f"{each.skipped:,} skipped because the task before still ran")
        if each.last_outcome == "missed":
            wrong.append("the newest instant was missed")
        rows.append((each.name, f"{each.fired:,}", "; ".join(wrong)))
    return Section(
        "Schedules that were late, missed or broken",
        ("schedule", "fired"),
        tuple(row[:2] for row in rows),
        "None.",
        tuple(row[2] for row in rows),
    )


def _waiting(report: Report) -> Section:
    now = report.now
    rows = []
    for line in now.lines[:MOST_LINES]:
        more = "+" if line.queue in now.crowded else ""
        oldest = distance_in_words(line.oldest_due_at, now.at) if line.oldest_due_at else "-"
        figures = (f"{line.pending:,}{more}", f"{line.due:,}", oldest, f"{line.running:,}")
        rows.append((line.queue, line.name, *figures))
    left = len(now.lines) - len(rows)
    more = f", and {count(left, 'more line')}" if left else ""
    return Section(
        f"What waits and runs now ({count(now.children, 'child')} at work{more})",
        ("queue", "name", "pending", "due", "oldest due", "running"),
        tuple(rows),
        "Nothing.",
        words=2,
    )
