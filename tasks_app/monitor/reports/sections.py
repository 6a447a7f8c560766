"""A report as tables of texts: the same in a terminal and in a mail."""

from __future__ import annotations

from dataclasses import dataclass

from tasks_app.domain.explain.words import count, distance, exact, span, to_the_minute
from tasks_app.domain.finding import Finding
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.monitor.pages.history import Percentiles
from tasks_app.monitor.report import Report

MOST_LINES = 20
_TWICE = CountedOutcome.DUPLICATE.name.lower()
"""It is no end of a run: scan and producer may both have told the broker."""
_UNKEPT = CountedOutcome.UNKEPT.name.lower()


@dataclass(frozen=True, slots=True)
class Section:
    """A table with a remark below each row; without rows it says ``otherwise``."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    otherwise: str
    remarks: tuple[str, ...] = ()
    words: int = 1
    """How many columns, from the left, are words; the others are figures."""


def headline(report: Report) -> str:
    return f"{exact(report.since)} to {exact(report.at)}"


def counted(report: Report) -> str:
    return f"Ends of runs are counted until {to_the_minute(report.counted_until)}."


def summary(report: Report) -> tuple[str, ...]:
    """Return sentences on how much was done, and how well."""
    past = report.history
    outcomes = dict(report.outcomes)
    twice, unkept = outcomes.pop(_TWICE, 0), outcomes.pop(_UNKEPT, 0)
    ends = ", ".join(f"{number:,} {name}" for name, number in outcomes.items())
    dropped = f"{twice:,} ids of messages had nothing to start and were dropped: harmless."
    if not ends:
        return ("No task has ended, or the counters have not been added up: the leader does it.",)
    most = max(past.bars, key=lambda bar: bar.done + bar.failed + bar.retried)
    fullest = f"{past.highest:,} ends of runs, from {exact(most.at)} on"
    return (
        f"Ended: {ends}.",
        f"{report.done_per_s:,.2f} done a second. The fullest {report.grain} had {fullest}.",
        f"{_percent(past.bad_ratio)} of the runs did not succeed.",
        *([f"{unkept:,} of the done ones left no row, as their history says."] if unkept else []),
        *([dropped] if twice else []),
    )


def sections(report: Report) -> tuple[Section, ...]:
    parts = (_times, _slowest, _failing, _errors, _schedules, _waiting)
    return (_findings(report.findings), *(part(report) for part in parts))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _findings(findings: tuple[Finding, ...]) -> Section:
    return Section(
        "What doctor finds",
        ("level", "about", "finding"),
        tuple((str(f.level), f.subject, f.fact) for f in findings),
        "Nothing.",
        tuple(f.advice for f in findings),
        words=3,
    )


def _of(percentiles: Percentiles) -> tuple[str, str, str]:
    return span(percentiles.p50), span(percentiles.p95), span(percentiles.p99)


def _times(report: Report) -> Section:
    past = report.history
    found = [("all", past.done, past.waited, past.ran)] if past.done else []
    found += [(q.queue, q.done, q.waited, q.ran) for q in report.queues]
    return Section(
        "How long tasks waited and ran, by queue",
        ("queue", "done", "wait p50", "p95", "p99", "run p50", "p95", "p99"),
        tuple((queue, f"{done:,}", *_of(w), *_of(r)) for queue, done, w, r in found),
        "Nothing was done.",
    )


def _slowest(report: Report) -> Section:
    return Section(
        "Slowest on average",
        ("name", "done", "mean"),
        tuple((s.name, f"{s.number:,}", span(s.mean_ms)) for s in report.history.slowest),
        "Nothing was done.",
    )


def _failing(report: Report) -> Section:
    return Section(
        "Most failing",
        ("name", "failed", "retried", "done", "not succeeded"),
        tuple(
            (f.name, f"{f.failed:,}", f"{f.retried:,}", f"{f.done:,}", _percent(f.ratio))
            for f in report.history.most_failing
        ),
        "No run failed.",
    )


def _errors(report: Report) -> Section:
    new = report.new_errors
    return Section(
        "Errors that are new, of those that still lie in the error pool",
        ("cause", "names", "tasks", "first"),
        tuple(
            (e.fingerprint, ", ".join(e.names), f"{e.number:,}", distance(e.first_at, report.at))
            for e in new
        ),
        "None: what failed had failed so before, or nothing did.",
        tuple(f"{e.kind} in {e.where}" if e.where else e.kind for e in new),
        words=2,
    )


def _schedules(report: Report) -> Section:
    rows = []
    for each in report.schedules:
        wrong = [
            f"late by {span(each.late_now_s * 1000)} now" if each.late_now_s is not None else "",
            "broken" if each.broken else "",
            f"{each.late:,} late, at most {span(each.latest_s * 1000)}" if each.late else "",
            f"{each.skipped:,} left out as the task before still ran" if each.skipped else "",
            "the newest instant was missed" if each.last_outcome == "missed" else "",
        ]
        rows.append((each.name, f"{each.fired:,}", "; ".join(w for w in wrong if w)))
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
        oldest = distance(line.oldest_due_at, now.at) if line.oldest_due_at else "-"
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
