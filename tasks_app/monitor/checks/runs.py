"""Checks on runs: those that take long, that the database refuses, that had no end."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.explain.words import count, rough, to_the_minute
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.connection.row_by_row import refusals
from tasks_app.pool.operations import diagnostics
from tasks_app.pool.statistics import read
from tasks_app.pool.statistics.read import Grain, Wanted
from tasks_app.runtime.api.tasks import PATIENCE

MOST_NAMES = 10
"""Of long runs, whose usual time is looked up."""
FAR, LEAST_RUNS = 4, 20
"""Times the 99th percentile, which is off by less than a factor of two; of so many runs."""
A_DAY = timedelta(days=1)


def slow_runs(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does a run take far longer than others of its name?"""
    runs = diagnostics.long_runs(connection, PATIENCE)
    if not runs:
        return []
    names = list(dict.fromkeys(run.name for run in runs))[:MOST_NAMES]
    usual = {
        name: timedelta(milliseconds=each.ran_ms(0.99) or 0)
        for name in names
        for each in read.times(connection, Wanted(Grain.HOUR, A_DAY, name))
        if sum(each.runs) >= LEAST_RUNS
    }
    slow = [run for run in runs if run.name in usual and run.ran > FAR * usual[run.name]]
    if not slow:
        return []
    first, more = slow[0], f", and {len(slow) - 1} more" if len(slow) > 1 else ""
    fact = (
        f"task {first.id} ({first.name}) has run for {rough(first.ran)}{more}; 99 of 100 of its "
        f"name end within {rough(usual[first.name])}"
    )
    advice = f"tasks-app explain {first.id}; to stop it: tasks-app cancel {first.id}"
    return [warn("slow runs", fact, advice)]


def refused(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does the database refuse what is to be done to single rows?"""
    advice = "Remove the cause: a trigger or constraint of yours, or an id that is there twice."
    return [
        fail(
            "rows",
            f"{each.what} refused: {each.rows} ({each.why}), lately at {to_the_minute(each.at)}",
            advice,
        )
        for each in refusals(connection)
    ]


def left(connection: Connection, _settings: Settings) -> list[Finding]:
    """Did each run have an end?"""
    wanted = Wanted(Grain.HOUR, A_DAY, outcomes=(CountedOutcome.LEFT,))
    number = sum(point.number for point in read.history(connection, wanted))
    if number:
        fact = f"{count(number, 'run')} of the last day had no end, and went back"
        return [warn("runs", fact, "That is a fault of tasks_app: report it, with the log.")]
    return [ok("runs", "each of the last day has had an end")]


CHECKS: tuple[Check, ...] = (slow_runs, refused, left)
