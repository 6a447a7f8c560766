"""Are there connections enough for all children that live?"""

from __future__ import annotations

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.explain.words import count
from tasks_app.domain.finding import Finding, ok, warn
from tasks_app.monitor.checks.database import Check
from tasks_app.pool.operations import diagnostics
from tasks_app.pool.operations.connection_limits import connection_limits
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.heartbeats import Worker

OF_CELERY = 2
"""Ours in a child of Celery beside one for each of its threads: its housekeeper's, and that of
whatever meets both, such as standing by for beat, or a large value."""
OF_WORK = 3
"""Ours in a child of ``tasks-app work``, which claims and leads itself. It listens on another."""
FOR_LATE_WRITES = 1
"""Of all threads of a child together: what handlers only asked to write is committed there."""
MOST_AT_ONCE = 8
"""Threads of Celery's pool of threads that find one of ours: the others wait for it."""


def connections(connection: Connection, settings: Settings) -> list[Finding]:
    """May all children have as many as they take?"""
    found = heartbeats.live(connection, settings.lease)
    needed = sum(_most(child, settings) for child in found)
    most = diagnostics.server(connection).connections
    whose = _whose(found)
    verb = "takes" if len(found) == 1 else "take"
    fact = f"{whose} {verb} up to {needed} of {most}"
    less = "start fewer children, or put a pooler between."
    findings = []
    if needed > most:
        findings.append(warn("connections", fact, f"Raise max_connections, {less}"))
    for limit in connection_limits(connection):
        if limit.is_tight(needed):
            what, _, name = limit.of.partition(" ")
            short = (
                f"{whose} {verb} up to {needed}, the connection limit of {limit.of} is "
                f"{limit.most}, and {limit.used} are in use"
            )
            advice = f"ALTER {what.upper()} {name} CONNECTION LIMIT …, {less}"
            findings.append(warn("connections", short, advice))
    return findings or [ok("connections", fact)]


def _most(child: Worker, settings: Settings) -> int:
    """Return how many it takes if each of its threads runs a handler that writes by ``ctx``.

    What others write by ``ctx.write`` alone goes out by one more.
    """
    if child.of_celery:
        ours = OF_CELERY + min(child.threads, MOST_AT_ONCE)
    else:
        ours = OF_WORK + settings.hints
    return ours + max(child.threads, settings.threads) + FOR_LATE_WRITES


def _whose(found: list[Worker]) -> str:
    celerys = sum(child.of_celery for child in found)
    others = len(found) - celerys
    if not others:
        return count(celerys, "child")
    if not celerys:
        return f"{count(others, 'child')} of tasks-app work"
    return f"{count(celerys, 'child')} of Celery and {others} of tasks-app work"


CHECKS: tuple[Check, ...] = (connections,)
