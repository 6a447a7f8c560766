"""The rules: checks of ``doctor`` and counts that are read elsewhere, each with its key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.alerts.alert import Alert, alert_of
from tasks_app.domain.config.settings import Settings
from tasks_app.monitor.checks import schedules, work
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.connection.read_only import looking
from tasks_app.pool.errors import groups
from tasks_app.pool.metrics import storage
from tasks_app.runtime.db.errors import is_unanswered, sqlstate

LONGEST = timedelta(seconds=10)
BURST = timedelta(minutes=10)
Rule = Callable[[Connection, Settings], list[Alert]]


def bursts(connection: Connection, settings: Settings) -> list[Alert]:
    """Errors of one cause; the class alone is told, since a message may have values."""
    since = instant(connection) - BURST
    return [
        Alert(
            f"error-burst:{group.fingerprint}",
            f"{group.number} tasks failed in ten minutes: {group.error.partition(':')[0]}",
            f"tasks-app errors show {group.fingerprint}",
        )
        for group in groups.groups(connection, since=since)
        if group.number >= settings.alert_errors and group.known_by is None
    ]


def snapshot(connection: Connection, settings: Settings) -> list[Alert]:
    """Does somebody hold a snapshot so long that nothing can be cleared away?"""
    age = storage.snapshot_age(connection)
    if age < settings.alert_snapshot:
        return []
    fact = f"somebody has held a snapshot for {age} transactions"
    return [Alert("snapshot", fact, "Look in pg_stat_activity for an old backend_xmin.")]


def _of(key: str, check: Check) -> Rule:
    def rule(connection: Connection, settings: Settings) -> list[Alert]:
        found = alert_of(key, check(connection, settings))
        return [found] if found else []

    return rule


RULES: dict[str, Rule] = {
    "scan": _of("scan", work.scanning),
    "workers": _of("workers", work.living),
    "queues": _of("queues", work.reach),
    "due": _of("due", work.waiting),
    "schedules": _of("schedules", schedules.firing),
    "error-burst": bursts,
    "snapshot": snapshot,
}
"""By the first part of the keys of their alerts."""


def look(engine: Engine, settings: Settings) -> tuple[list[Alert], list[str]]:
    """Return what is wrong, and the rules that could not be read.

    Raises:
        DBAPIError: the database did not answer.
    """
    found: list[Alert] = []
    unread: list[str] = []
    for name, rule in RULES.items():
        try:
            with looking(engine, LONGEST) as connection:
                found += rule(connection, settings)
        except DBAPIError as error:
            if is_unanswered(error) or not sqlstate(error):
                raise
            unread.append(name)
    return found, unread
