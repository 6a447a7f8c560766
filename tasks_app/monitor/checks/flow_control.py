"""What holds queues back: pauses, windows, breakers."""

from __future__ import annotations

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.explain.words import count, to_the_minute
from tasks_app.domain.finding import Finding, ok, warn
from tasks_app.domain.flow_control.circuit_breaker import BreakerMode, BreakerStanding, BreakerState
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.flow_control import pause
from tasks_app.pool.flow_control import queue_settings
from tasks_app.pool.tables import EVERY_QUEUE


def paused(connection: Connection, _settings: Settings) -> list[Finding]:
    """Is a queue paused, and perhaps forgotten?"""
    return [
        warn("queues", _stopped(each), f"When it may go on: tasks-app resume {_given(each)}")
        for each in pause.paused(connection)
    ]


def standing(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does a queue wait for its window, or for other queues?"""
    findings = []
    for each in queue_settings.find(connection):
        opens_at = each.opens_at
        if not each.is_open and opens_at is None:
            advice = f"Change them: tasks-app queues set {each.queue} --window …"
            fact = f"{each.queue} is closed: none of its windows opens within a year"
            findings.append(warn("queues", fact, advice))
        elif opens_at is not None:
            findings.append(ok("queues", f"{each.queue} is closed until {to_the_minute(opens_at)}"))
        elif each.shut is not None:
            fact = f"{each.queue} gives way: it runs only while {each.gate}"
            findings.append(ok("queues", fact))
    return findings


def dependencies(connection: Connection, _settings: Settings) -> list[Finding]:
    """Is a dependency of tasks down, or its breaker left to nobody's judgement?"""
    found = circuit_breakers.find(connection)
    by_hand = [
        warn(
            "breakers",
            f"{each.breaker.dependency} is kept {each.mode} by hand since "
            f"{to_the_minute(each.since)}, whatever its calls come to; "
            f"{count(each.held, 'task')} held",
            f"To leave it to the outcomes again: tasks-app breakers auto {each.breaker.dependency}",
        )
        for each in found
        if each.mode is not BreakerMode.AUTO
    ]
    judged = (each for each in found if each.mode is BreakerMode.AUTO)
    return by_hand + [_judged(each) for each in judged if each.state is not BreakerState.CLOSED]


def _judged(each: BreakerStanding) -> Finding:
    name = each.breaker.dependency
    fact = (
        f"{name} is {each.state} since {to_the_minute(each.since)}"
        f"{each.reason and f': {each.reason}'}; {count(each.held, 'task')} held"
    )
    if each.state is BreakerState.OPEN:
        tries = "Some tasks are let through to try; to do so now:"
        return warn("breakers", fact, f"Look at {name}. {tries} tasks-app breakers auto {name}")
    later = f"; for those that met the outage: tasks-app run-now --retrying --name {each.names[0]}"
    if each.state is BreakerState.RAMPING:
        return ok("breakers", fact, f"Nothing to do: its tasks are let go{each.names and later}")
    if each.held:
        return warn("breakers", fact, f"Look at {name}. Some tasks are let through to try.")
    return ok("breakers", fact, "Nothing to do: the next task decides.")


def _given(each: pause.Pause) -> str:
    """Return the argument; the shell would expand a bare star."""
    return "--all" if each.queue == EVERY_QUEUE else each.queue


def _stopped(each: pause.Pause) -> str:
    who = "all are" if each.queue == EVERY_QUEUE else f"{each.queue} is"
    until = f" until {to_the_minute(each.resume_at)}" if each.resume_at else ""
    reason = f": {each.reason}" if each.reason else ""
    return f"{who} paused since {to_the_minute(each.since)}{until}{reason}"


CHECKS: tuple[Check, ...] = (paused, standing, dependencies)
