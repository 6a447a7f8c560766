"""Is the database fit for us? One function for each question, in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Connection

from tasks_app.domain.config.retention import format_age
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import SchemaError
from tasks_app.domain.explain.words import count, rough
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.pool.operations import diagnostics
from tasks_app.pool.operations.maintenance import sizes
from tasks_app.pool.operations.sequences import behind
from tasks_app.pool.retention import partitions as days
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.schema import check_schema, newest

OLDEST_MAJOR, NEWEST_MAJOR = 14, 18
"""Each of them is tested. client_connection_check_interval came with 14."""
FEW_DAYS_AHEAD = 3
LATE_DAYS = timedelta(days=1)
"""Maintenance runs once an hour."""
LONG_OPEN, LONG_IDLE = timedelta(minutes=5), timedelta(minutes=1)
SHOWN = 3

Check = Callable[[Connection, Settings], list[Finding]]


def version(connection: Connection, _settings: Settings) -> list[Finding]:
    """Is it a version that we know?"""
    server = diagnostics.server(connection)
    name = f"PostgreSQL {server.version}"
    if server.major < OLDEST_MAJOR:
        return [fail("database", f"{name} is too old", f"Upgrade it to {NEWEST_MAJOR}.")]
    if server.encoding != "UTF8":
        advice = "Move to a database made with ENCODING 'UTF8'."
        return [fail("database", f"{name}, encoding {server.encoding}", advice)]
    if server.major > NEWEST_MAJOR:
        advice = (
            f"This tasks_app is tested on {OLDEST_MAJOR} to {NEWEST_MAJOR}; look for a newer one."
        )
        return [warn("database", f"{name} answers", advice)]
    return [ok("database", f"{name} answers")]


def schema(connection: Connection, _settings: Settings) -> list[Finding]:
    """May this code run on it?"""
    try:
        notice = check_schema(connection)
    except SchemaError as error:
        fact, _, advice = str(error).rpartition(". ")
        return [fail("schema", fact, advice)]
    if notice:
        fact, _, advice = notice.rpartition(". ")
        return [warn("schema", fact, advice)]
    return [ok("schema", f"up to date ({newest()})")]


def privileges(connection: Connection, _settings: Settings) -> list[Finding]:
    """May this role do what a worker does?"""
    server = diagnostics.server(connection)
    missing = [f"{what} on {table}" for table, what in diagnostics.forbidden(connection)]
    if missing:
        fact = f"{server.role} lacks {_some(missing)}"
        advice = "Ask as the role of the workers, or GRANT what docs/operations/database.md lists."
        return [fail("privileges", fact, advice)]
    more = "" if server.owner else "; beat and migrate need the owner of the tables"
    return [ok("privileges", f"{server.role} may do all that a worker does{more}")]


def durability(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does a commit outlive a crash of the server?"""
    off = diagnostics.server(connection).forgetful
    if off:
        advice = "Set it on: after a crash of the server committed tasks are lost, or run twice."
        return [warn("durability", f"{', '.join(off)} = off", advice)]
    return [ok("durability", "what is committed outlives a crash of the server")]


def sequences(connection: Connection, _settings: Settings) -> list[Finding]:
    """Will an id be given twice?"""
    return [
        fail(
            "sequences",
            f"{each.name} gives {each.next} next, and {each.highest} is taken: two get one id",
            "Run: tasks-app migrate",
        )
        for each in behind(connection)
    ]


def partitions(connection: Connection, settings: Settings) -> list[Finding]:
    """Are there enough ahead, and is the default one empty?"""
    findings = []
    ahead = days.DAYS_AHEAD + 1 - len(days.missing_partitions(connection))
    fact = f"task_completed has {count(ahead, 'day')} ahead"
    by = heartbeats.run_by(connection, settings.lease)
    advice = f"Start {by.scanner} as the owner of the tables, or run: tasks-app migrate"
    if ahead == 0:
        findings.append(fail("partitions", fact, advice))
    elif ahead <= FEW_DAYS_AHEAD:
        findings.append(warn("partitions", fact, advice))
    else:
        findings.append(ok("partitions", fact))
    if days.has_strays(connection):
        advice = "Move them as docs/operations/maintenance.md says."
        findings.append(warn("partitions", "task_completed_default holds rows", advice))
    return findings


def retention(connection: Connection, settings: Settings) -> list[Finding]:
    """Are old days of the completed pool deleted?"""
    longest = settings.completed.longest
    found, now = days.partitions(connection)
    if longest is None:
        size = sum(day.bytes for day in found) // 2**20
        return [ok("retention", f"completed tasks are kept for ever: {size} MB by now")]
    kept = f"completed tasks are kept {format_age(longest)}"
    late = [day.name for day in found if day.until <= now - longest - LATE_DAYS]
    if not late:
        return [ok("retention", f"{kept}, and nothing older lies there")]
    advice = "Run tasks-app prune: it names what is in the way."
    if not days.owns(connection):
        advice = "Run tasks-app prune as the owner of the tables: this role may not."
    return [warn("retention", f"{kept}, and older ones lie there: {_some(late)}", advice)]


def vacuum(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does autovacuum run on our tables?"""
    if not diagnostics.server(connection).autovacuum:
        advice = "Set autovacuum and track_counts on: the pending pool grows without end."
        return [fail("autovacuum", "is off", advice)]
    off = diagnostics.never_vacuumed(connection)
    if off:
        advice = f"ALTER TABLE {off[0]} RESET (autovacuum_enabled);"
        return [fail("autovacuum", f"is off for {_some(off)}", advice)]
    return [ok("autovacuum", "is on")]


def transactions(
    connection: Connection, _settings: Settings, *, long_idle: timedelta = LONG_IDLE
) -> list[Finding]:
    """Does an open transaction hold up vacuum, or keep locks?"""
    found = diagnostics.open_transactions(connection)
    idle = [each for each in found if each.idle and each.open_for > long_idle]
    old = [each for each in found if not each.idle and each.open_for > LONG_OPEN]
    findings = []
    if idle:
        advice = "End it, and set idle_in_transaction_session_timeout for that role."
        findings.append(warn("transactions", f"idle and open: {_named(idle)}", advice))
    if old:
        advice = "Vacuum waits for it: commit more often, or read from a replica."
        findings.append(warn("transactions", f"long open: {_named(old)}", advice))
    if findings:
        return findings
    blind = (
        "" if diagnostics.server(connection).sees_all else " (others' are hidden from this role)"
    )
    return [ok("transactions", f"none is open for long{blind}")]


def bloat(connection: Connection, _settings: Settings) -> list[Finding]:
    """Do indexes waste more than half of themselves?"""
    found = [size for size in sizes(connection) if size.kind == "index" and size.is_bloated]
    if not found:
        return [ok("bloat", "no index wastes half of its size and 10 MB")]
    wasted = sum(size.wasted for size in found) // 2**20
    names = _some([size.name for size in found])
    advice = "Run: tasks-app maintain --reindex"
    return [warn("bloat", f"{wasted} MB are wasted by {names}", advice)]


FIRST: tuple[Check, ...] = (version, schema)
"""All others need these."""
CHECKS: tuple[Check, ...] = (
    privileges,
    durability,
    sequences,
    partitions,
    retention,
    vacuum,
    bloat,
    transactions,
)


def _named(found: list[diagnostics.OpenTransaction]) -> str:
    return _some([f"{t.who} of {t.role} for {rough(t.open_for)}" for t in found])


def _some(words: list[str]) -> str:
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return ", ".join(words[:SHOWN]) + more
