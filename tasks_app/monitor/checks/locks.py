"""Is a lock held beyond its lease, or waited for long?"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.explain.words import rough
from tasks_app.domain.finding import Finding, ok, warn
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.locks.holders import Held
from tasks_app.pool.locks.holders import find

BEYOND, LONG_WAIT = timedelta(minutes=1), timedelta(minutes=1)
LOOKED_AT = 1_000


def held(connection: Connection, _settings: Settings) -> list[Finding]:
    """Are all leases kept, and all waits short?"""
    found = find(connection, most=LOOKED_AT)
    holding = [lock for lock in found if lock.state == "held"]
    waiting = [lock for lock in found if lock.state == "waiting" and lock.beyond < timedelta(0)]
    late = [lock for lock in holding if lock.beyond > BEYOND]
    long = [lock for lock in waiting if lock.age > LONG_WAIT]
    findings = []
    if late:
        first = max(late, key=lambda lock: lock.beyond)
        fact = f"{_named(first)} holds {first.resource} {rough(first.beyond)} beyond its lease"
        advice = "It is gone, or cannot renew: the next to ask gets the lock, unless a transaction "
        findings.append(warn("locks", fact + _more(late), f"{advice}guards it."))
    if long:
        first = max(long, key=lambda lock: lock.age)
        fact = f"{_named(first)} has waited for {first.resource} for {rough(first.age)}"
        advice = f"See who is in the way: tasks-app locks list {first.resource}"
        findings.append(warn("locks", fact + _more(long), advice))
    return findings or [ok("locks", f"{len(holding)} held, {len(waiting)} waited for")]


CHECKS: tuple[Check, ...] = (held,)


def _named(lock: Held) -> str:
    return f"task {lock.task_id} ({lock.who})" if lock.task_id else lock.who


def _more(locks: list[Held]) -> str:
    return f" and {len(locks) - 1} more" if len(locks) > 1 else ""
