"""Names of the tables, phrases that all statements share, the database's clock and pool name."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, text

from tasks_app.domain.config.urls import schema_name
from tasks_app.domain.tasks.states import Event, Pool, State, sources, states_in

SCHEMA = schema_name()
"""Fixed for the life of the process, so that each statement is one text and stays prepared."""


def table(name: str) -> str:
    """Return the qualified name; the schema is a checked identifier."""
    return f'"{SCHEMA}".{name}' if SCHEMA else name


PENDING = table("task_pending")
COMPLETED = table("task_completed")
ERROR = table("task_error")
ATTEMPT = table("task_attempt")
TRANSITION = table("task_transition")
LOG_LINES = table("task_log")
FINGERPRINT = table("task_fingerprint")
ALERT = table("task_alert")
ALERT_LOOK = table("task_alert_look")
WORKER = table("task_worker")
LEASE = table("task_lease")
PAUSE = table("task_queue_pause")
QUEUE = table("task_queue")
WINDOW = table("task_queue_window")
CALENDAR = table("task_calendar")
BREAKER = table("task_breaker")
CALLS = table("task_breaker_count")
HELD = table("task_breaker_held")
PACE = table("task_pace")
SCHEDULE = table("task_schedule")
FIRE = table("task_schedule_fire")
SCHEDULES = table("task_schedules")
KEY = table("task_key")
LOCK = table("task_lock")
LOCK_HOLDER = table("task_lock_holder")
LOCK_PART = table("task_lock_part")
LOCK_WAIT = table("task_lock_wait")
LOCK_FENCE = table("task_lock_fence")
LOCKS = table("task_locks")
LOCK_REPORT = table("task_lock_report")
AUDIT = table("task_audit")
LIMIT = table("task_limit")
GATE = table("task_gate")
FAIR = table("task_queue_fair")
PARTITION = table("task_partition")
PARTITION_VALUE = table("task_partition_value")
PARTITIONS = table("task_partitions")
MARKER = table("task_marker")
TEXT_RANGE = table("task_text_range")
GROUP = table("task_group")
GROUP_IDS = table("task_group_ids")
EXTEND = table("task_group_extend")
FENCE_LOST = table("task_fence_lost")
PROGRESS = table("task_progress")
BATCH = table("task_batch")
BATCH_STEP = table("task_batch_step")
BATCH_SKIP = table("task_batch_skip")
COUNT = table("task_count")
COUNT_PART = table("task_count_part")
TOTAL = table("task_total")
IMPORT = table("task_import")
LARGE_VALUE = table("task_large_value")
ALL = table("task_all")
VERSION = table("tasks_app_version")
TABLES = frozenset(
    name.rpartition(".")[2]
    for name in (
        *(
            PENDING,
            COMPLETED,
            ERROR,
            ATTEMPT,
            TRANSITION,
            LOG_LINES,
            FINGERPRINT,
            WORKER,
            LEASE,
            PACE,
            KEY,
            AUDIT,
            VERSION,
        ),
        *(PAUSE, QUEUE, WINDOW, CALENDAR, LIMIT, GATE, FAIR, BREAKER, CALLS, HELD, SCHEDULE, FIRE),
        *(LOCK, LOCK_HOLDER, LOCK_PART, LOCK_WAIT, GROUP, GROUP_IDS, PROGRESS),
        *(PARTITION, PARTITION_VALUE, MARKER, BATCH, BATCH_STEP, BATCH_SKIP),
        *(COUNT, COUNT_PART, TOTAL, ALERT, ALERT_LOOK, IMPORT, LARGE_VALUE),
    )
)
"""The bare names of all tables; the partitions of the completed pool come and go."""
NOW = "coalesce(CAST(:now AS timestamptz), statement_timestamp())"
"""Stable, so an index can use it; ``clock_timestamp()`` could not (PostgreSQL 18 docs, 36.7)."""
CARRIED = (
    *("id", "name", "queue", "priority", "biz_key", "unique_key", "order_key"),
    *("payload", "headers", "enabled", "attempt", "failures", "crashes", "retry_level"),
    *("max_attempts", "at_most_once", "retry", "due_at", "owner", "started_at", "expires_at"),
    *("timeout_ms", "hard_timeout_ms", "cancel_requested_at", "idempotency_key"),
    *("schedule_id", "batch_id", "created_at", "order_skips", "limit_key", "fair_key"),
    *("sub_status", "more_limit_keys"),
)
"""What a row keeps when it moves to another pool; state and outcome are written anew."""
EVERY_QUEUE = "*"  # no queue has this name; as a pause it means all of them
REFUSED, BECAUSE = "tasks_app: refused since", "tasks_app: refused because"
"""Notes in the lease of the scan: since when the broker takes no messages, and why."""
DEPTHS = "tasks_app: messages"
"""Another: how many messages the leader last saw in the broker, by queue."""
READY = f"""p.enabled AND p.due_at <= {NOW}
    AND (p.expires_at IS NULL OR p.expires_at > {NOW})"""
"""The condition that the row's time has come."""
_WITHOUT_KEYS = "p.order_key IS NULL AND p.limit_key IS NULL"
PLACE_UNLIMITED = f"""(NOT EXISTS (SELECT FROM {LIMIT})
        OR p.queue <> ALL (ARRAY(SELECT l.target FROM {LIMIT} l WHERE l.kind = 'queue'))
        AND p.name <> ALL (ARRAY(SELECT l.target FROM {LIMIT} l WHERE l.kind = 'name')))"""
"""The condition that neither the queue of the row nor its name has a limit."""
UNGATED = f"{_WITHOUT_KEYS} AND {PLACE_UNLIMITED}"
"""The condition that nothing but its own row decides when a task runs."""
UNLIMITED = f"""{_WITHOUT_KEYS}
    AND NOT EXISTS (SELECT FROM {LIMIT} l WHERE l.kind IN ('queue', 'name'))"""
"""The same where this is so of all tasks without keys."""


def admits(event: Event, alias: str = "p") -> str:
    """Return the guard of a statement that carries out ``event``, out of TRANSITIONS."""
    states = ", ".join(f"'{state}'" for state in sources(event))
    return f"{alias}.state IN ({states})"


def admits_by_id(event: Event) -> str:
    """Return the same guard for rows of the pending pool that are looked up by their ids.

    It says what they are not: the scan's index, which holds what is PENDING and ids last of all,
    is then none that the planner could read from end to end to find them.
    """
    others = (state for state in states_in(Pool.PENDING) if state not in sources(event))
    return f"p.state NOT IN ({quoted(*others)})"


def has_pending(queue: str, after: str = "'-infinity'") -> str:
    """Return the condition that the queue has a PENDING row: of an idle one, one probe, not ten.

    Entries up to ``after`` are passed over within the index: they may all be dead. No EXISTS: that
    may become a join, by a guess at two sizes.
    """
    return f"""(
        SELECT true FROM {PENDING} e WHERE e.queue = {queue} AND e.state = '{State.PENDING}'
          AND e.scan_at > {after}
        ORDER BY e.priority LIMIT 1)"""


def quoted(*states: State) -> str:
    return ", ".join(f"'{state}'" for state in states)


def group_of(alias: str) -> str:
    """Return the group of a row of ALL, which does not show it; of a completed one by its day."""
    return f"""CASE {alias}.pool
        WHEN 'pending' THEN (SELECT g.batch_id FROM {PENDING} g WHERE g.id = {alias}.id)
        WHEN 'error' THEN (SELECT g.batch_id FROM {ERROR} g WHERE g.id = {alias}.id)
        ELSE (SELECT g.batch_id FROM {COMPLETED} g
              WHERE g.id = {alias}.id AND g.finished_at = {alias}.finished_at) END"""


_DATABASE_TIME = text(f"SELECT CAST(EXTRACT(EPOCH FROM {NOW}) AS float)")


def database_time(connection: Connection, *, now: datetime | None = None) -> float:
    """Return the seconds since 1970."""
    return float(connection.execute(_DATABASE_TIME, {"now": now}).scalar_one())


def database_now(connection: Connection) -> datetime:
    return datetime.fromtimestamp(database_time(connection), UTC)


_NAME = text("""
    SELECT left(md5(p.prosrc || current_database()), 12) FROM pg_catalog.pg_proc p
    WHERE p.oid = to_regproc(:function)""")
"""Out of the catalogue, for it is also asked within transactions of producers: there nothing may
fail, not where the schema is a version behind either. A copy of the database has another name."""


def pool_name(connection: Connection) -> str | None:
    """Return it: 12 characters that stay as they are; None: the schema knows none yet."""
    return connection.execute(_NAME, {"function": table("task_pool")}).scalar()
