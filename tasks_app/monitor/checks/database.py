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
from tasks_app.pool.operations.encrypted_values import keys_at_the_ends, waiting_for_keys
from tasks_app.pool.operations.explain import connection_limits
from tasks_app.pool.operations.maintenance import sequences_behind, sizes
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.heartbeats import Worker
from tasks_app.pool.schema import check_schema, newest
from tasks_app.runtime.encryption.encryption import keys_of
from tasks_app.runtime.handlers.registry import HANDLERS

OLDEST_MAJOR, NEWEST_MAJOR = 14, 18
"""Each of them is tested. client_connection_check_interval came with 14."""
FEW_DAYS_AHEAD = 3
LATE_DAYS = timedelta(days=1)  # maintenance runs once an hour
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
        for each in sequences_behind(connection)
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
    if not days.owns_partitions(connection):
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


FIRST: tuple[Check, ...] = (version, schema)  # all others need these


def _named(found: list[diagnostics.OpenTransaction]) -> str:
    return _some([f"{t.who} of {t.role} for {rough_span(t.open_for)}" for t in found])


def _some(words: list[str]) -> str:
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return ", ".join(words[:SHOWN]) + more


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


CONNECTION_CHECKS: tuple[Check, ...] = (connections,)
CUTTING = ("idle_in_transaction_session_timeout", "transaction_timeout")
SHORT_S = 60
"""A handler may call a slow service between two statements; it limits a longer call itself."""


def planner(connection: Connection, _settings: Settings) -> list[Finding]:
    """Are our statements planned as we ask for when we connect?"""
    found = diagnostics.in_force(connection, PLANNER_SETTINGS)
    other = [
        f"{name} = {value}" for name, value in found.items() if value != PLANNER_SETTINGS[name]
    ]
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
    if not notifications.is_trigger_installed(connection):
        of_sql = "not of those that SQL creates (tasks-app notify install)"
    return [ok("wake-ups", f"the database tells tasks-app work and beat by NOTIFY, {of_sql}")]


SESSION_CHECKS: tuple[Check, ...] = (planner, wake_ups)  # in our own sessions
HANDLER_SESSION_CHECKS: tuple[Check, ...] = (handlers,)  # in the sessions of handlers
LOOKED_AT = 100  # rows of each end of a table: ``tasks-app encryption status`` reads all
KEYS_SUBJECT = "encryption"


def keys(connection: Connection, settings: Settings) -> list[Finding]:
    """Can they be read, does a task wait for one, and do stored values need one that lacks?"""
    try:
        here = keys_of(settings)
        if here:
            check_package()
    except ConfigurationError as error:
        fact, _, advice = str(error).rstrip(".").partition(". ")
        advice = f"{advice or 'Correct it: what is encrypted neither runs nor is created here'}."
        return [fail(KEYS_SUBJECT, fact, advice)]
    findings = [*_waiting(connection, here), *_lacking(connection, here)]
    if not here and (settings.encrypted or any(spec.encrypted for spec in HANDLERS)):
        advice = "Set TASKS_APP_ENCRYPTION_KEYS: tasks-app encryption new-key makes one."
        findings.append(
            fail(KEYS_SUBJECT, "tasks are to be encrypted, and no key is configured", advice)
        )
    if here and not findings:
        first = next(iter(here))
        return [ok(KEYS_SUBJECT, f"{count(len(here), 'key')} here, and {first} encrypts")]
    return findings


def _waiting(connection: Connection, here: dict[str, bytes]) -> list[Finding]:
    findings = []
    for key, number in waiting_for_keys(connection).items():
        fact, advice = f"the key {key}, which a worker lacks", "the key, behind the first"
        if key == NO_KEY:
            fact, advice = "a key, and a worker has none", "a key"
        elif key in here:
            advice = "the key that is here, behind the first"
        fact = f"{count(number, 'task')} waiting for {fact}"
        findings.append(fail(KEYS_SUBJECT, fact, f"Give all workers {advice}."))
    return findings


def _lacking(connection: Connection, here: dict[str, bytes]) -> list[Finding]:
    """Without any key, this is a process that is not meant to read values."""
    found = keys_at_the_ends(connection, LOOKED_AT)
    lacking = sorted(found.keys() - here.keys())
    if not lacking:
        return []
    named = ", ".join(f"{key} ({found[key]})" for key in lacking)
    if not here:
        return [ok(KEYS_SUBJECT, f"no key is configured here, and values are encrypted by {named}")]
    advice = "Add it behind the first. How many values: tasks-app encryption status"
    return [
        warn(KEYS_SUBJECT, f"values are encrypted by keys that are missing here: {named}", advice)
    ]


KEY_CHECKS: tuple[Check, ...] = (keys,)
