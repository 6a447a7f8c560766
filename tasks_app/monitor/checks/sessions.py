"""Do our sessions, and those of handlers, have the settings that they need?"""

from __future__ import annotations

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import format_duration
from tasks_app.domain.finding import Finding, ok, warn
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.connection.listening import is_pooled
from tasks_app.pool.connection.planner import PLANNED
from tasks_app.pool.operations import diagnostics, notify_trigger

CUTTING = ("idle_in_transaction_session_timeout", "transaction_timeout")
SHORT_S = 60
"""A handler may call a slow service between two statements; it limits a longer call itself."""


def planner(connection: Connection, _settings: Settings) -> list[Finding]:
    """Are our statements planned as we ask for when we connect?"""
    found = diagnostics.in_force(connection, PLANNED)
    other = [f"{name} = {value}" for name, value in found.items() if value != PLANNED[name]]
    if other:
        fact = f"what we set when we connect is not in force: {', '.join(sorted(other))}"
        advice = "A pooler drops it: set TASKS_APP_PREPARE=off, or connect past it."
        return [warn("planner", fact, advice)]
    return [ok("planner", "each statement of ours has one plan, which is not compiled (jit = off)")]


def handlers(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does the server let handlers end their transactions?"""
    found = diagnostics.in_force(connection, (*CUTTING, "jit"))
    short = [
        f"{name} = {int(found[name]) / 1000:g} s"
        for name in CUTTING
        if 0 < int(found.get(name, 0)) < SHORT_S * 1000
    ]
    if short:
        fact = f"their transactions are cut off by {' and '.join(short)}"
        advice = "ALTER ROLE ... SET it higher than any handler pauses between two statements."
        return [warn("handlers' SQL", fact, advice)]
    return [ok("handlers' SQL", f"is planned as for everybody (jit = {found['jit']})")]


def wake_ups(connection: Connection, settings: Settings) -> list[Finding]:
    """Is a worker without a broker told of new tasks, or does it poll?"""
    polls = f"tasks-app work looks for work every {format_duration(settings.scan_interval)}"
    if not settings.hints:
        return [ok("wake-ups", f"TASKS_APP_HINTS is off: {polls}")]
    if is_pooled(connection):
        return [ok("wake-ups", f"LISTEN does not pass the pooler before the database: {polls}")]
    of_sql = "of all tasks"
    if not notify_trigger.is_installed(connection):
        of_sql = "not of those that SQL creates (tasks-app notify install)"
    return [ok("wake-ups", f"the database tells tasks-app work and beat by NOTIFY, {of_sql}")]


CHECKS: tuple[Check, ...] = (planner, wake_ups)
"""In our own sessions."""
CHECKS_OF_HANDLERS: tuple[Check, ...] = (handlers,)
"""In the sessions of handlers."""
