"""Names of the tables, phrases that all statements share, the database's clock and pool name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeAlias

from sqlalchemy import Connection, text

from tasks_app.domain.config.urls import schema_name
from tasks_app.domain.tasks.states import Event, Pool, State, sources, states_in

Clock: TypeAlias = datetime | None
"""``now`` of a statement, for tests; None: the database's clock, the only one that decides."""
SCHEMA = schema_name()  # fixed while the process lives, so that statements stay prepared
TABLES: set[str] = set()  # bare names, without the partitions of the completed pool


def table(name: str) -> str:
    """Return the qualified name; the schema is a checked identifier."""
    return f'"{SCHEMA}".{name}' if SCHEMA else name


def _stored(name: str) -> str:
    TABLES.add(name)
    return table(name)


PENDING = _stored("task_pending")
COMPLETED = _stored("task_completed")
ERROR = _stored("task_error")
ATTEMPT = _stored("task_attempt")
TRANSITION = _stored("task_transition")
LOG_LINES = _stored("task_log")
FINGERPRINT = _stored("task_fingerprint")
ALERT = _stored("task_alert")
ALERT_LOOK = _stored("task_alert_look")
WORKER = _stored("task_worker")
LEASE = _stored("task_lease")
PAUSE = _stored("task_queue_pause")
QUEUE = _stored("task_queue")
WINDOW = _stored("task_queue_window")
CALENDAR = _stored("task_calendar")
BREAKER = _stored("task_breaker")
CALLS = _stored("task_breaker_count")
HELD = _stored("task_breaker_held")
PACE = _stored("task_pace")
SCHEDULE = _stored("task_schedule")
FIRE = _stored("task_schedule_fire")
SCHEDULES = table("task_schedules")
KEY = _stored("task_key")
LOCK = _stored("task_lock")
LOCK_HOLDER = _stored("task_lock_holder")
LOCK_PART = _stored("task_lock_part")
LOCK_WAIT = _stored("task_lock_wait")
LOCK_FENCE = table("task_lock_fence")
LOCKS = table("task_locks")
LOCK_REPORT = table("task_lock_report")
AUDIT = _stored("task_audit")
LIMIT = _stored("task_limit")
GATE = _stored("task_gate")
FAIR = _stored("task_queue_fair")
PARTITION = _stored("task_partition")
PARTITION_VALUE = _stored("task_partition_value")
PARTITIONS = table("task_partitions")
MARKER = _stored("task_marker")
TEXT_RANGE = table("task_text_range")
GROUP = _stored("task_group")
GROUP_IDS = _stored("task_group_ids")
EXTEND = table("task_group_extend")
FLOW_STEP = _stored("task_flow_step")
FLOW_NEED = _stored("task_flow_need")
ENTER_STEPS = table("task_flow_enter")
PUT_OFF = table("task_flow_put_off")
UNDO = table("task_flow_undo")
STEP_ENDED = table("task_flow_step_ended")
STEP_REOPENED = table("task_flow_step_reopened")
EVENT = _stored("task_event")
EVENT_WAIT = _stored("task_event_wait")
LOCK_EVENTS = table("task_event_lock")
ENTER_EVENT_WAITS = table("task_event_enter")
SEND_EVENT = table("task_send_event")
PUT_BACK = table("task_put_back")
FENCE_LOST = table("task_fence_lost")
PROGRESS = _stored("task_progress")
STEP = _stored("task_step")
BATCH = _stored("task_batch")
BATCH_STEP = _stored("task_batch_step")
BATCH_SKIP = _stored("task_batch_skip")
COUNT = _stored("task_count")
COUNT_PART = _stored("task_count_part")
TOTAL = _stored("task_total")
IMPORT = _stored("task_import")
LARGE_VALUE = _stored("task_large_value")
ALL = table("task_all")
VERSION = _stored("tasks_app_version")
NOW = "coalesce(CAST(:now AS timestamptz), statement_timestamp())"
"""Stable, so an index can use it; ``clock_timestamp()`` could not (PostgreSQL 18 docs, 36.7)."""
CARRIED = (
    *("id", "name", "queue", "priority", "biz_key", "unique_key", "order_key"),
    *("payload", "headers", "enabled", "attempt", "failures", "crashes", "retry_level"),
    *("max_attempts", "at_most_once", "retry", "due_at", "owner", "started_at", "expires_at"),
    *("timeout_ms", "hard_timeout_ms", "cancel_requested_at", "idempotency_key"),
    *("schedule_id", "batch_id", "created_at", "order_skips", "limit_key", "fair_key"),
    *("sub_status", "more_limit_keys", "locks", "weight"),
)
"""Columns that a row keeps when it moves to another pool; state and outcome are new."""
TABLE_OF = {Pool.PENDING: PENDING, Pool.COMPLETED: COMPLETED, Pool.ERROR: ERROR}
EVERY_QUEUE = "*"  # no queue has this name; as a pause it means all of them
REFUSED, BECAUSE = "tasks_app: refused since", "tasks_app: refused because"
"""Notes in the lease of the scan: since when the broker refuses messages, and why."""
DEPTHS = "tasks_app: messages"  # another note: messages that the leader saw in the broker, by queue
READY = f"""p.enabled AND p.due_at <= {NOW}
    AND (p.expires_at IS NULL OR p.expires_at > {NOW})"""
_WITHOUT_KEYS = "p.order_key IS NULL AND p.limit_key IS NULL AND p.locks IS NULL"
PLACE_UNLIMITED = f"""(NOT EXISTS (SELECT FROM {LIMIT})
        OR p.queue <> ALL (ARRAY(SELECT l.target FROM {LIMIT} l WHERE l.kind = 'queue'))
        AND p.name <> ALL (ARRAY(SELECT l.target FROM {LIMIT} l WHERE l.kind = 'name')))"""
"""The condition that neither the row's queue nor its name has a limit."""
UNGATED = f"{_WITHOUT_KEYS} AND {PLACE_UNLIMITED}"
"""The condition that the task's own row alone decides when it runs."""
UNLIMITED = f"""{_WITHOUT_KEYS}
    AND NOT EXISTS (SELECT FROM {LIMIT} l WHERE l.kind IN ('queue', 'name'))"""
"""The same condition, true only if no queue and no name has a limit."""


def admits(event: Event, alias: str = "p") -> str:
    """Return the guard of a statement that carries out ``event``, from TRANSITIONS."""
    states = ", ".join(f"'{state}'" for state in sources(event))
    return f"{alias}.state IN ({states})"


def admits_by_id(event: Event) -> str:
    """Return the same guard for rows of the pending pool that are found by id."""
    # It names the excluded states. Otherwise the planner might read the scan's index, which holds
    # PENDING rows with the id as its last column, from end to end.
    others = (state for state in states_in(Pool.PENDING) if state not in sources(event))
    return f"p.state NOT IN ({quoted(*others)})"


def has_pending(after: str) -> str:
    """Return the condition that ``q.queue`` has a PENDING row: one probe if it is idle, not ten."""
    # Index entries up to ``after``, which may all be dead, are skipped. The planner might turn an
    # EXISTS into a join, based on two guessed sizes.
    return f"""(
        SELECT true FROM {PENDING} e WHERE e.queue = q.queue AND e.state = '{State.PENDING}'
          AND e.scan_at > {after}
        ORDER BY e.priority LIMIT 1)"""


def quoted(*states: State) -> str:
    return ", ".join(f"'{state}'" for state in states)


GROUP_OF_ROW = f"""CASE t.pool
        WHEN 'pending' THEN (SELECT g.batch_id FROM {PENDING} g WHERE g.id = t.id)
        WHEN 'error' THEN (SELECT g.batch_id FROM {ERROR} g WHERE g.id = t.id)
        ELSE (SELECT g.batch_id FROM {COMPLETED} g
              WHERE g.id = t.id AND g.finished_at = t.finished_at) END"""
"""The group of the row ``t`` of the view ALL, which lacks this column."""


_DATABASE_TIME = text(f"SELECT CAST(EXTRACT(EPOCH FROM {NOW}) AS float)")


def database_time(connection: Connection, *, now: Clock = None) -> float:
    """Return the seconds since 1970."""
    return float(connection.execute(_DATABASE_TIME, {"now": now}).scalar_one())


def database_now(connection: Connection) -> datetime:
    return datetime.fromtimestamp(database_time(connection), UTC)


# Read from the catalogue, as this also runs in a producer's transaction: it must not fail, even if
# the schema is older. A copy of the database has another name.
_NAME = text("""
    SELECT left(md5(p.prosrc || current_database()), 12) FROM pg_catalog.pg_proc p
    WHERE p.oid = to_regproc(:function)""")


def pool_name(connection: Connection) -> str | None:
    """Return the pool's permanent name of 12 characters; None: the schema is older than names."""
    return connection.execute(_NAME, {"function": table("task_pool")}).scalar()
