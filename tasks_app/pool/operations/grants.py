"""Grants: what each kind of role may do, as SQL for the owner of the tables. Executes nothing."""

from __future__ import annotations

from enum import StrEnum

from tasks_app.pool.operations.audit import TOLD
from tasks_app.pool.tables import (
    ALL,
    ATTEMPT,
    AUDIT,
    BATCH,
    BATCH_SKIP,
    BATCH_STEP,
    BREAKER,
    CALENDAR,
    CALLS,
    COMPLETED,
    DISPATCH,
    ERROR,
    FAIR,
    FIRE,
    GATE,
    GROUP,
    GROUP_IDS,
    HELD,
    KEY,
    LEASE,
    LIMIT,
    LOCK,
    LOCK_FENCE,
    LOCK_HOLDER,
    LOCK_PART,
    LOCK_REPORT,
    LOCK_WAIT,
    LOCKS,
    MARKER,
    PACE,
    PARTITION,
    PARTITION_VALUE,
    PARTITIONS,
    PAUSE,
    PENDING,
    PROGRESS,
    QUEUE,
    SCHEDULE,
    SCHEDULES,
    SCHEMA,
    VERSION,
    WINDOW,
    WORKER,
    table,
)

NOT_GRANTED = "42501"
"""SQLSTATE: insufficient privilege."""
MAY_NOT = (
    "This database role may not do that. The owner of the tables gives it what it needs: "
    "tasks-app grants KIND --role ROLE --apply"
)


class Kind(StrEnum):
    """Who a role is for."""

    PRODUCER = "producer"
    """Creates tasks."""
    AMENDER = "amender"
    """Creates tasks and, by their unique keys, changes or holds back others that wait."""
    LOCKER = "locker"
    """Takes locks in code that is no task."""
    WORKER = "worker"
    """Runs them, and scans; makes no partitions, which are the owner's."""
    READER = "reader"
    """Looks."""
    ADMIN = "admin"
    """Looks, creates, cancels, requeues, edits, pauses, limits, schedules, frees locks, restarts
    batches, clears history."""


_DEFAULT = table("task_completed_default")
_IDS = f"USAGE ON SEQUENCE {table('task_pending_id_seq')}, {table('task_group_id_seq')}"
_SEE = f"SELECT ON {VERSION}"
_FENCES = f"USAGE ON SEQUENCE {LOCK_FENCE}"
_KEYS = f"SELECT, INSERT, UPDATE (task_id, scope, until) ON {KEY}"
_GROUP = f"SELECT, INSERT, UPDATE (total) ON {GROUP}"
_MEMBERS = f"SELECT, INSERT ON {GROUP_IDS}"
_JOBS = f"SELECT, INSERT, UPDATE ON {BATCH}, {BATCH_STEP}"
_POOLS = (PENDING, COMPLETED, ERROR, ATTEMPT)
_GATES = (LIMIT, GATE)
_LOCKS = (LOCK, LOCK_HOLDER, LOCK_PART, LOCK_WAIT)
_RULES = (QUEUE, WINDOW, CALENDAR, BREAKER, CALLS, HELD, FAIR)
_BATCH = (PARTITION, PARTITION_VALUE, MARKER, BATCH, BATCH_STEP, BATCH_SKIP)
_EVERYTHING = (
    *(*_POOLS, DISPATCH, WORKER, LEASE, PAUSE, PACE, SCHEDULE, FIRE, KEY, *_GATES, *_LOCKS),
    *(*_RULES, *_BATCH, GROUP, GROUP_IDS, PROGRESS),
)
_VIEWS = (ALL, SCHEDULES, LOCKS, LOCK_REPORT, PARTITIONS)
_LOOK = f"SELECT ON {', '.join((*_VIEWS, *_EVERYTHING, AUDIT, _DEFAULT, VERSION))}"
_TELL = f"INSERT ({', '.join(TOLD)}) ON {AUDIT}"
"""Lines of the audit stay as they are, and the database says who wrote them, and when."""
_ADMIN = (*_POOLS, PAUSE, SCHEDULE, FIRE, KEY, *_GATES, *_LOCKS, *_RULES, *_BATCH, GROUP, PROGRESS)
_CHANGE = "SELECT, INSERT, UPDATE, DELETE ON"
_STANDING = (
    *("id", "name", "queue", "priority", "biz_key", "unique_key", "order_key", "limit_key"),
    *("fair_key", "state", "enabled", "attempt", "failures", "crashes", "parked", "due_at"),
    *("scan_at", "started_at", "expires_at", "cancel_requested_at", "batch_id", "created_at"),
)
"""How a task stands. What it carries is not for those who made others, and with its lease token one
could settle it."""
_CREATE = f"SELECT ({', '.join(_STANDING)}), INSERT ON {PENDING}"
_GRANTS = {
    Kind.PRODUCER: (_CREATE, _KEYS, _GROUP, _MEMBERS, _JOBS, _IDS, _SEE),
    Kind.AMENDER: (
        _CREATE,
        f"UPDATE (payload, due_at, scan_at, parked) ON {PENDING}",
        *(_KEYS, _GROUP, _MEMBERS, _JOBS, _IDS, _SEE),
    ),
    Kind.LOCKER: (
        f"SELECT (id, state, attempt, lease_token) ON {PENDING}",
        f"{_CHANGE} {', '.join(_LOCKS)}",
        _FENCES,
        _SEE,
    ),
    Kind.WORKER: (
        f"{_CHANGE} {', '.join(_EVERYTHING)}",
        f"SELECT ON {', '.join(_VIEWS)}, {AUDIT}, {_DEFAULT}, {VERSION}",
        _TELL,
        _IDS,
        _FENCES,
    ),
    Kind.READER: (_LOOK,),
    Kind.ADMIN: (_LOOK, f"{_CHANGE} {', '.join(_ADMIN)}", _MEMBERS, _IDS, _TELL),
}


def grants_sql(kind: Kind, role: str) -> str:
    """Return the statements that let ``role`` do what ``kind`` does."""
    whom = '"' + role.replace('"', '""') + '"'
    schema = (f'USAGE ON SCHEMA "{SCHEMA}"',) if SCHEMA else ()
    return "".join(f"GRANT {what} TO {whom};\n" for what in (*schema, *_GRANTS[kind]))
