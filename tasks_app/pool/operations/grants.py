"""Grants: what each kind of role may do, as SQL for the owner; and who may run tasks."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import Connection, text

from tasks_app.domain.errors import SchemaError
from tasks_app.pool.operations.audit import TOLD
from tasks_app.pool.tables import (
    ALERT,
    ALERT_LOOK,
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
    COUNT,
    COUNT_PART,
    ERROR,
    EXTEND,
    FAIR,
    FENCE_LOST,
    FINGERPRINT,
    FIRE,
    GATE,
    GROUP,
    GROUP_IDS,
    HELD,
    IMPORT,
    KEY,
    LARGE_VALUE,
    LEASE,
    LIMIT,
    LOCK,
    LOCK_FENCE,
    LOCK_HOLDER,
    LOCK_PART,
    LOCK_REPORT,
    LOCK_WAIT,
    LOCKS,
    LOG_LINES,
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
    TOTAL,
    TRANSITION,
    VERSION,
    WINDOW,
    WORKER,
    table,
)

_RUNS = (
    *((PENDING, privilege) for privilege in ("SELECT", "UPDATE", "DELETE")),
    *((pool, "INSERT") for pool in (COMPLETED, ERROR, ATTEMPT, WORKER)),
    (WORKER, "UPDATE"),
)
"""Without any of these no task can be claimed and brought to its end."""
_LOGS = ((TRANSITION, "INSERT"),)  # the same where moves are logged
_LACKS = text("""
    SELECT n.privilege || ' on ' || n.name AS lacks, current_user AS role
    FROM unnest(CAST(:tables AS text[]), CAST(:privileges AS text[])) AS n(name, privilege)
    WHERE NOT CASE n.privilege WHEN 'DELETE' THEN has_table_privilege(n.name, n.privilege)
        ELSE has_any_column_privilege(n.name, n.privilege) END
""")


class RoleKind(StrEnum):
    """Who a role is for."""

    PRODUCER = "producer"  # creates tasks
    AMENDER = "amender"
    """Creates tasks and, by their unique keys, changes or holds back others that wait."""
    LOCKER = "locker"  # takes locks in code that is no task
    WORKER = "worker"  # runs them, and scans; makes no partitions, which are the owner's
    READER = "reader"  # looks
    ADMIN = "admin"
    """Looks, creates, cancels, requeues, edits, pauses, limits, schedules, frees locks, restarts
    batches, clears history."""


_DEFAULT = table("task_completed_default")
_IDS = f"USAGE ON SEQUENCE {table('task_pending_id_seq')}, {table('task_group_id_seq')}"
_GIVEN = f"SELECT ON SEQUENCE {table('task_pending_id_seq')}"
"""How many ids were given, for metrics."""
_SEE = f"SELECT ON {VERSION}"
_FENCES = f"USAGE ON SEQUENCE {LOCK_FENCE}"
_KEYS = f"SELECT, INSERT, UPDATE (task_id, scope, until) ON {KEY}"
_COUNTED = (
    *("id", "total", "succeeded", "failed", "enough", "fail_fast", "outcome", "callback_id"),
    *("part_of", "created_at", "counted_at"),
)
"""How a group stands. What it calls is for whoever runs it."""
_GROUP = f"SELECT ({', '.join(_COUNTED)}), INSERT ON {GROUP}"
_MEMBERS = f"INSERT ON {GROUP_IDS}"
_EXTEND = f"EXECUTE ON FUNCTION {EXTEND}(bigint, bigint[])"
_POOLS = (PENDING, COMPLETED, ERROR, ATTEMPT)
_GATES = (LIMIT, GATE)
_LOCKS = (LOCK, LOCK_HOLDER, LOCK_PART, LOCK_WAIT)
_RULES = (QUEUE, WINDOW, CALENDAR, BREAKER, CALLS, HELD, FAIR)
_COUNTS = (COUNT_PART, COUNT, TOTAL)
_BATCH = (PARTITION, PARTITION_VALUE, MARKER, BATCH, BATCH_STEP, BATCH_SKIP)
_EVERYTHING = (
    *(
        *_POOLS,
        FINGERPRINT,
        TRANSITION,
        LOG_LINES,
        ALERT,
        ALERT_LOOK,
        WORKER,
        LEASE,
        PAUSE,
        PACE,
        SCHEDULE,
        FIRE,
        KEY,
        *_GATES,
        *_LOCKS,
    ),
    *(*_RULES, *_BATCH, GROUP, GROUP_IDS, PROGRESS, *_COUNTS, IMPORT, LARGE_VALUE),
)
_VIEWS = (ALL, SCHEDULES, LOCKS, LOCK_REPORT, PARTITIONS)
_LOOK = f"SELECT ON {', '.join((*_VIEWS, *_EVERYTHING, AUDIT, _DEFAULT, VERSION))}"
_TELL = f"INSERT ({', '.join(TOLD)}) ON {AUDIT}"
"""Lines of the audit stay as they are, and the database says who wrote them, and when."""
_ADMIN = (
    *_POOLS,
    FINGERPRINT,
    TRANSITION,
    LOG_LINES,
    ALERT,
    ALERT_LOOK,
    PAUSE,
    SCHEDULE,
    FIRE,
    KEY,
    *_GATES,
    *_LOCKS,
    *_RULES,
    *_BATCH,
    GROUP,
    PROGRESS,
    *_COUNTS,
    IMPORT,
    LARGE_VALUE,
)
_CHANGE = "SELECT, INSERT, UPDATE, DELETE ON"
_STANDING = (
    *("id", "name", "queue", "priority", "biz_key", "unique_key", "order_key", "limit_key"),
    *("more_limit_keys", "fair_key", "state", "enabled", "attempt", "failures", "crashes"),
    *("parked", "parked_kind", "parked_for", "due_at", "scan_at", "started_at", "expires_at"),
    *("cancel_requested_at", "batch_id", "created_at", "held_due_at"),
)
"""How a task stands. Its payload is not for producers of other tasks, and its lease token would
let them settle it."""
_AMENDED = (
    *("payload", "due_at", "scan_at", "held_due_at", "parked", "parked_kind", "parked_for"),
    "changed_at",
)
_LARGE = f"INSERT ON {LARGE_VALUE}"
_CREATE = f"SELECT ({', '.join(_STANDING)}), INSERT ON {PENDING}"
_GRANTS = {
    RoleKind.PRODUCER: (_CREATE, _LARGE, _KEYS, _GROUP, _MEMBERS, _EXTEND, _IDS, _SEE),
    RoleKind.AMENDER: (
        _CREATE,
        f"UPDATE ({', '.join(_AMENDED)}) ON {PENDING}",
        *(_LARGE, _KEYS, _GROUP, _MEMBERS, _EXTEND, _IDS, _SEE),
    ),
    RoleKind.LOCKER: (
        f"SELECT (id, state, attempt, lease_token) ON {PENDING}",
        f"{_CHANGE} {', '.join(_LOCKS)}",
        _FENCES,
        _SEE,
    ),
    RoleKind.WORKER: (
        f"{_CHANGE} {', '.join(_EVERYTHING)}",
        f"SELECT ON {', '.join(_VIEWS)}, {AUDIT}, {_DEFAULT}, {VERSION}",
        _TELL,
        _EXTEND,
        f"EXECUTE ON FUNCTION {FENCE_LOST}(bigint)",
        _IDS,
        _FENCES,
    ),
    RoleKind.READER: (_LOOK, _GIVEN),
    RoleKind.ADMIN: (_LOOK, f"{_CHANGE} {', '.join(_ADMIN)}", _MEMBERS, _EXTEND, _IDS, _TELL),
}


def check_may_run(connection: Connection, *, logs: bool = False) -> None:
    """Pass if this role may run tasks: one that may only read would look at them for ever.

    With ``logs`` it is to write the log of transitions, too. Raises SchemaError if it may not.
    """
    tables, privileges = zip(*_RUNS, *(_LOGS if logs else ()), strict=True)
    values = {"tables": list(tables), "privileges": list(privileges)}
    lacks = connection.execute(_LACKS, values).all()
    if lacks:
        more = f" and {len(lacks) - 1} more" if len(lacks) > 1 else ""
        role = lacks[0].role
        raise SchemaError(
            f"The database role {role} may not run tasks: it lacks {lacks[0].lacks}{more}. The "
            f"owner of the tables gives it what it needs: "
            f"tasks-app grants worker --role {role} --apply"
        )


def grants_sql(kind: RoleKind, role: str) -> str:
    whom = '"' + role.replace('"', '""') + '"'
    schema = (f'USAGE ON SCHEMA "{SCHEMA}"',) if SCHEMA else ()
    return "".join(f"GRANT {what} TO {whom};\n" for what in (*schema, *_GRANTS[kind]))
