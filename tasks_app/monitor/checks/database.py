"""Is the database fit for us: its schema and tables, connections, sessions and encryption keys?"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Connection

from tasks_app.domain.config.retention import format_age
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import count, format_duration, rough_span
from tasks_app.domain.encryption import NO_KEY, check_package
from tasks_app.domain.errors import ConfigurationError, SchemaError
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.pool import retention as days
from tasks_app.pool.connection.sessions import PLANNER_SETTINGS, is_pooled
from tasks_app.pool.dispatch import notifications
from tasks_app.pool.operations import diagnostics
from tasks_app.pool.operations.encrypted_values import keys_in_use, waiting_for_keys
from tasks_app.pool.operations.explain import connection_limits
from tasks_app.pool.operations.maintenance import sequences_behind, sizes
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.heartbeats import Worker
from tasks_app.pool.schema import check_schema, newest
from tasks_app.runtime.encryption.encryption import keys_of
from tasks_app.runtime.handlers.registry import HANDLERS

OLDEST_MAJOR, NEWEST_MAJOR = 14, 18  # all tested; 14 has client_connection_check_interval
FEW_DAYS_AHEAD = 3
LATE_DAYS = timedelta(days=1)  # maintenance runs once an hour
LONG_OPEN, LONG_IDLE = timedelta(minutes=5), timedelta(minutes=1)
SHOWN = 3
MANY_ROWS = 10_000  # of a table that is better not read by each DELETE
Check = Callable[[Connection, Settings], list[Finding]]


def version(connection: Connection, _settings: Settings) -> list[Finding]:
    server = diagnostics.server(connection)
    name = f"PostgreSQL {server.version}"
    if server.major < OLDEST_MAJOR:
        return [fail("database", f"{name} is too old", f"Upgrade it to {NEWEST_MAJOR}.")]
    if server.encoding != "UTF8":
        advice = "Move to a database made with ENCODING 'UTF8'."
        return [fail("database", f"{name}, encoding {server.encoding}", advice)]
    if server.major > NEWEST_MAJOR:
        tested = f"This tasks_app is tested on {OLDEST_MAJOR} to {NEWEST_MAJOR}"
        return [warn("database", f"{name} answers", f"{tested}; check for a newer one.")]
    return [ok("database", f"{name} answers")]


def schema(connection: Connection, _settings: Settings) -> list[Finding]:
    try:
        notice = check_schema(connection)
    except SchemaError as error:
        fact, _, advice = str(error).rpartition(". ")
        return [fail("schema", fact, advice)]
    if notice:
        fact, _, advice = notice.rpartition(". ")
        return [warn("schema", fact, advice)]
    return [ok("schema", f"up to date ({newest()})")]


FIRST: tuple[Check, ...] = (version, schema)  # all others need these


def privileges(connection: Connection, _settings: Settings) -> list[Finding]:
    server = diagnostics.server(connection)
    missing = [f"{what} on {table}" for table, what in diagnostics.missing_privileges(connection)]
    if missing:
        fact = f"{server.role} lacks {_some(missing)}"
        advice = "Check as the role of the workers, or GRANT what docs/operations/database.md lists"
        return [fail("privileges", fact, f"{advice}.")]
    more = "" if server.owner else "; beat and migrate need the owner of the tables"
    return [ok("privileges", f"{server.role} has all privileges that a worker needs{more}")]


def durability(connection: Connection, _settings: Settings) -> list[Finding]:
    off = diagnostics.server(connection).forgetful
    if off:
        advice = "Set it on: after a crash of the server committed tasks are lost, or run twice."
        return [warn("durability", f"{', '.join(off)} = off", advice)]
    return [ok("durability", "commits survive a crash of the server")]


def sequences(connection: Connection, _settings: Settings) -> list[Finding]:
    return [
        fail(
            "sequences",
            f"{each.name} gives {each.next} next, but {each.highest} is taken: ids would repeat",
            "Run: tasks-app migrate",
        )
        for each in sequences_behind(connection)
    ]


def partitions(connection: Connection, settings: Settings) -> list[Finding]:
    ahead = days.DAYS_AHEAD + 1 - len(days.missing_partitions(connection))
    fact = f"task_completed has {count(ahead, 'day')} ahead"
    by = heartbeats.started_by(connection, settings.lease)
    advice = f"Start {by.scanner} as the owner of the tables, or run: tasks-app migrate"
    findings = [ok("partitions", fact)]
    if ahead <= FEW_DAYS_AHEAD:
        findings = [(warn if ahead else fail)("partitions", fact, advice)]
    if days.has_strays(connection):
        advice = "Move them as docs/operations/maintenance.md says."
        findings.append(warn("partitions", "task_completed_default holds rows", advice))
    return findings


def retention(connection: Connection, settings: Settings) -> list[Finding]:
    longest = settings.completed.longest
    found, now = days.partitions(connection)
    if longest is None:
        size = sum(day.bytes for day in found) // 2**20
        return [ok("retention", f"completed tasks are kept for ever: {size} MB by now")]
    kept = f"completed tasks are kept {format_age(longest)}"
    late = [day.name for day in found if day.until <= now - longest - LATE_DAYS]
    if not late:
        return [ok("retention", f"{kept}, and none is older")]
    advice = "Run tasks-app prune: it shows what prevents it."
    if not days.owns_partitions(connection):
        advice = "Run tasks-app prune as the owner of the tables: this role may not."
    return [warn("retention", f"{kept}, but older days are left: {_some(late)}", advice)]


def vacuum(connection: Connection, _settings: Settings) -> list[Finding]:
    if not diagnostics.server(connection).autovacuum:
        advice = "Set autovacuum and track_counts on: the pending pool grows without end."
        return [fail("autovacuum", "is off", advice)]
    off = diagnostics.never_vacuumed(connection)
    if off:
        advice = f"ALTER TABLE {off[0]} RESET (autovacuum_enabled);"
        return [fail("autovacuum", f"is off for {_some(off)}", advice)]
    return [ok("autovacuum", "is on")]


def bloat(connection: Connection, _settings: Settings) -> list[Finding]:
    found = [size for size in sizes(connection) if size.kind == "index" and size.is_bloated]
    if not found:
        return [ok("bloat", "no index wastes half of its size and 10 MB")]
    wasted = sum(size.wasted for size in found) // 2**20
    names = _some([size.name for size in found])
    return [
        warn("bloat", f"{wasted} MB are wasted by {names}", "Run: tasks-app maintain --reindex")
    ]


def transactions(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does an open transaction hold up vacuum, or keep locks?"""
    found = diagnostics.open_transactions(connection)
    idle = [each for each in found if each.idle and each.open_for > LONG_IDLE]
    old = [each for each in found if not each.idle and each.open_for > LONG_OPEN]
    findings = []
    for kind, those, advice in (
        ("idle and", idle, "End it, and set idle_in_transaction_session_timeout for that role."),
        ("long", old, "Vacuum waits for it: commit more often, or read from a replica."),
    ):
        named = [f"{each.who} of {each.role} for {rough_span(each.open_for)}" for each in those]
        if named:
            findings.append(warn("transactions", f"{kind} open: {_some(named)}", advice))
    hidden = "" if diagnostics.server(connection).sees_all else " (this role cannot see others')"
    return findings or [ok("transactions", f"none is open for long{hidden}")]


def _some(words: list[str]) -> str:
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return ", ".join(words[:SHOWN]) + more


OF_CELERY = 2
"""Ours in a child of Celery, besides one for each thread: its housekeeper's, and one for standing
by for beat or a large value."""
OF_WORK = 3  # in a child of tasks-app work, which claims and leads itself; one more listens
FOR_LATE_WRITES = 1  # of all threads of a child: ctx.write alone is committed there
MOST_AT_ONCE = 8  # threads of Celery's pool that find a connection of ours: the others wait


def connections(connection: Connection, settings: Settings) -> list[Finding]:
    """May all children have as many as they need if each thread runs a handler that writes?"""

    def needs(child: Worker) -> int:
        ours = OF_WORK + settings.hints
        if child.of_celery:
            ours = OF_CELERY + min(child.threads, MOST_AT_ONCE)
        return ours + max(child.threads, settings.threads) + FOR_LATE_WRITES

    found = heartbeats.live_workers(connection, settings.lease)
    needed = sum(map(needs, found))
    most = diagnostics.server(connection).connections
    whose = _whose(found)
    fact = f"{whose} {'takes' if len(found) == 1 else 'take'} up to {needed} of {most}"
    less = "start fewer children, or put a pooler between."
    findings = []
    if needed > most:
        findings.append(warn("connections", fact, f"Raise max_connections, {less}"))
    for limit in connection_limits(connection):
        if limit.is_tight(needed):
            what, _, name = limit.of.partition(" ")
            short = (
                f"{whose} {'takes' if len(found) == 1 else 'take'} up to {needed}, the connection "
                f"limit of {limit.of} is {limit.most}, and {limit.used} are in use"
            )
            advice = f"ALTER {what.upper()} {name} CONNECTION LIMIT …, {less}"
            findings.append(warn("connections", short, advice))
    return findings or [ok("connections", fact)]


def _whose(found: list[Worker]) -> str:
    celerys = sum(child.of_celery for child in found)
    others = len(found) - celerys
    if not others:
        return count(celerys, "child")
    if not celerys:
        return f"{count(others, 'child')} of tasks-app work"
    return f"{count(celerys, 'child')} of Celery and {others} of tasks-app work"


CUTTING = ("idle_in_transaction_session_timeout", "transaction_timeout")
SHORT_S = 60  # a handler may call a slow service between two statements


def planner(connection: Connection, _settings: Settings) -> list[Finding]:
    """Are our planner settings in force in our own sessions?"""
    found = diagnostics.current_settings(connection, PLANNER_SETTINGS)
    other = sorted(f"{n} = {value}" for n, value in found.items() if value != PLANNER_SETTINGS[n])
    if other:
        fact = f"the settings of our connections are not in force: {', '.join(other)}"
        advice = "A pooler drops them: set TASKS_APP_PREPARE=off, or connect past it."
        return [warn("planner", fact, advice)]
    return [ok("planner", "each of our statements has one plan, which is not compiled (jit = off)")]


def wake_ups(connection: Connection, settings: Settings) -> list[Finding]:
    """Is a worker without a broker notified of new tasks, or does it poll?"""
    polls = f"tasks-app work polls every {format_duration(settings.scan_interval)}"
    if not settings.hints:
        return [ok("wake-ups", f"TASKS_APP_HINTS is off: {polls}")]
    if is_pooled(connection):
        return [ok("wake-ups", f"LISTEN does not pass the pooler before the database: {polls}")]
    told = " of all tasks"
    if not notifications.is_trigger_installed(connection):
        told = (
            "; tasks created in SQL wait for the next scan (tasks-app notify install changes that)"
        )
    return [ok("wake-ups", f"the database notifies tasks-app work and beat{told}")]


def foreign_keys(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does a DELETE of a handler read a big table to find what refers to the row?"""
    return [
        warn(
            "foreign keys",
            f"each DELETE of a row of {row.target} reads all of {row.source}, which refers to it "
            f"by {row.columns} without an index",
            f"Create one: CREATE INDEX CONCURRENTLY ON {row.source} ({row.columns});",
        )
        for row in diagnostics.unindexed_references(connection, MANY_ROWS)
    ]


def handlers(connection: Connection, _settings: Settings) -> list[Finding]:
    """Does the server let handlers end their transactions?"""
    found = diagnostics.current_settings(connection, (*CUTTING, "jit"))
    short = [
        f"{name} = {int(found[name]) / 1000:g} s"
        for name in CUTTING
        if 0 < int(found.get(name, 0)) < SHORT_S * 1000
    ]
    if short:
        fact = f"their transactions are cut off by {' and '.join(short)}"
        advice = "ALTER ROLE ... SET it higher than any handler pauses between two statements."
        return [warn("handler SQL", fact, advice)]
    return [ok("handler SQL", f"has the planner settings of its role (jit = {found['jit']})")]


LOOKED_AT = 100  # rows of each end of a table: tasks-app encryption status reads all
KEYS_SUBJECT = "encryption"


def keys(connection: Connection, settings: Settings) -> list[Finding]:
    """Can the keys be read, does a task wait for one, and do stored values need a missing one?"""
    try:
        here = keys_of(settings)
        if here:
            check_package()
    except ConfigurationError as error:
        fact, _, advice = str(error).rstrip(".").partition(". ")
        advice = f"{advice or 'Fix it: encrypted tasks neither run nor are created here'}."
        return [fail(KEYS_SUBJECT, fact, advice)]
    findings = []
    for key, number in waiting_for_keys(connection).items():
        fact, give = f"the key {key}, which a worker lacks", "the key, behind the first"
        if key == NO_KEY:
            fact, give = "a key, and a worker has none", "a key"
        elif key in here:
            give = "the key that is here, behind the first"
        fact = f"{count(number, 'task')} waiting for {fact}"
        findings.append(fail(KEYS_SUBJECT, fact, f"Give all workers {give}."))
    found = keys_in_use(connection, LOOKED_AT)
    lacking = sorted(found.keys() - here.keys())
    named = ", ".join(f"{key} ({found[key]})" for key in lacking)
    if lacking and here:
        fact = f"values are encrypted by keys that are missing here: {named}"
        advice = "Add it behind the first. How many values: tasks-app encryption status"
        findings.append(warn(KEYS_SUBJECT, fact, advice))
    elif lacking:  # a process without any key is not meant to read values
        fact = f"no key is configured here, and values are encrypted by {named}"
        findings.append(ok(KEYS_SUBJECT, fact))
    if not here and (settings.encrypted or any(spec.encrypted for spec in HANDLERS)):
        fact = "tasks are to be encrypted, but no key is configured"
        advice = "Set TASKS_APP_ENCRYPTION_KEYS: tasks-app encryption new-key makes one."
        findings.append(fail(KEYS_SUBJECT, fact, advice))
    if here and not findings:
        fact = f"{count(len(here), 'key')} here, and {next(iter(here))} encrypts"
        findings.append(ok(KEYS_SUBJECT, fact))
    return findings


CHECKS: tuple[Check, ...] = (
    *(privileges, durability, sequences, partitions, retention, vacuum, bloat, transactions),
    *(connections, planner, wake_ups, foreign_keys),
)
HANDLER_SESSION_CHECKS: tuple[Check, ...] = (handlers,)  # in the sessions of handlers
