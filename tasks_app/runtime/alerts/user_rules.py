"""Rules of operators: each figure is of the counters, or of the pools."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from sqlalchemy import Connection

from tasks_app.domain.alerts.alert import Alert
from tasks_app.domain.alerts import RuleKind
from tasks_app.domain.alerts import UserRule
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.explain.words import rough
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.operations import trouble
from tasks_app.pool.statistics.read import Grain, Wanted, history, live

FEWEST_RUNS = 10
"""A share of fewer says nothing."""
_RUNS = (CountedOutcome.DONE, CountedOutcome.FAILED, CountedOutcome.RETRIED)
_ADVICE = {
    RuleKind.FAILED: "See them: tasks-app errors",
    RuleKind.RATIO: "See them: tasks-app errors",
    RuleKind.AGE: "See what runs: tasks-app list --state RUNNING. Start more workers.",
    RuleKind.PENDING: "See what waits: tasks-app stats. Start more workers.",
    RuleKind.SILENCE: "See whether it is made, waits or fails: tasks-app list, tasks-app errors",
}


def user(connection: Connection, settings: Settings) -> Iterator[Alert]:
    """Judge each rule of the settings."""
    for rule in settings.user_rules:
        fact = _fact(connection, rule, settings)
        if fact:
            yield Alert(rule.key, fact, _ADVICE[rule.kind])


def _fact(connection: Connection, rule: UserRule, settings: Settings) -> str:
    """Return what is above the limit, or nothing."""
    span = rough(rule.span)
    match rule.kind:
        case RuleKind.FAILED:
            number = sum(_ended(connection, rule, (CountedOutcome.FAILED,), settings).values())
            return f"{number} of {rule.target} failed in {span}" if number > rule.limit else ""
        case RuleKind.RATIO:
            ended = _ended(connection, rule, _RUNS, settings)
            runs = sum(ended.values())
            share = 1 - ended.get(CountedOutcome.DONE, 0) / max(1, runs)
            if runs < FEWEST_RUNS or share <= rule.limit:
                return ""
            return f"{share:.0%} of {runs} runs of {rule.target} did not succeed in {span}"
        case RuleKind.AGE:
            ages = {each.queue: each.waits for each in trouble.oldest_due(connection)}
            oldest = ages.get(rule.queue or "", timedelta(0))
            return f"a task of {rule.target} is due for {rough(oldest)}" * (oldest > rule.span)
        case RuleKind.PENDING:
            limit = int(rule.limit)
            above = trouble.more_than(connection, limit, queue=rule.queue, name=rule.name)
            return f"more than {limit} of {rule.target} wait" * above
        case RuleKind.SILENCE:
            done = sum(_ended(connection, rule, (CountedOutcome.DONE,), settings).values())
            return "" if done else f"none of {rule.target} has succeeded for {span}"


def _ended(
    connection: Connection, rule: UserRule, outcomes: tuple[CountedOutcome, ...], settings: Settings
) -> dict[CountedOutcome, int]:
    """Count what ended in the span, its first minute whole; in hours where minutes are gone."""
    fine = rule.span <= settings.keep_minute_counts
    grain = Grain.MINUTE if fine else Grain.HOUR
    wanted = Wanted(grain, rule.span, rule.name, rule.queue, outcomes)
    since = instant(connection) - rule.span - timedelta(minutes=grain)
    found: dict[CountedOutcome, int] = {}
    for point in (*history(connection, wanted), *live(connection, wanted)):
        if point.at > since:
            found[point.outcome] = found.get(point.outcome, 0) + point.number
    return found
