"""Grants: what each kind of role may do, as SQL for the owner; and who may run tasks."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import Connection, text

from tasks_app.domain.errors import SchemaError
from tasks_app.pool import tables as t
from tasks_app.pool.operations.audit import TOLD


class RoleKind(StrEnum):
    PRODUCER = "producer"  # creates tasks
    AMENDER = "amender"  # and, by their unique keys, changes or holds back others that wait
    LOCKER = "locker"  # takes locks in code outside tasks
    WORKER = "worker"  # runs tasks, and scans; makes no partitions, which are the owner's
    READER = "reader"  # reads
    # Reads, creates, cancels, requeues, edits, pauses, limits, schedules, frees locks, restarts
    # batches, clears history.
    ADMIN = "admin"


def grants_sql(kind: RoleKind, role: str) -> str:
    whom = '"' + role.replace('"', '""') + '"'
    schema = (f'USAGE ON SCHEMA "{t.SCHEMA}"',) if t.SCHEMA else ()
    return "".join(f"GRANT {what} TO {whom};\n" for what in (*schema, *_GRANTS[kind]))


# A role without any of these can claim no task, or cannot bring it to its end.
_RUNS = (
    *((t.PENDING, privilege) for privilege in ("SELECT", "UPDATE", "DELETE")),
    *((pool, "INSERT") for pool in (t.COMPLETED, t.ERROR, t.ATTEMPT, t.WORKER)),
    (t.WORKER, "UPDATE"),
)


def check_may_run(connection: Connection, *, logs: bool = False) -> None:
    """Raise SchemaError unless this role may run tasks: one that only reads would scan for ever.

    ``logs``: it must be able to write the log of transitions, too.
    """
    query = text("""
        SELECT n.privilege || ' on ' || n.name AS lacks, current_user AS role
        FROM unnest(CAST(:tables AS text[]), CAST(:privileges AS text[])) AS n(name, privilege)
        WHERE NOT CASE n.privilege WHEN 'DELETE' THEN has_table_privilege(n.name, n.privilege)
            ELSE has_any_column_privilege(n.name, n.privilege) END
    """)
    needed = (*_RUNS, (t.TRANSITION, "INSERT")) if logs else _RUNS
    tables, privileges = zip(*needed, strict=True)
    lacks = connection.execute(query, {"tables": [*tables], "privileges": [*privileges]}).all()
    if lacks:
        more = f" and {len(lacks) - 1} more" if len(lacks) > 1 else ""
        role = lacks[0].role
        raise SchemaError(
            f"The database role {role} may not run tasks: it lacks {lacks[0].lacks}{more}. As the "
            f"owner of the tables, run: tasks-app grants worker --role {role} --apply"
        )


_DEFAULT = t.table("task_completed_default")
_IDS = f"USAGE ON SEQUENCE {t.table('task_pending_id_seq')}, {t.table('task_group_id_seq')}"
_SEE = f"SELECT ON {t.VERSION}"
_FENCES = f"USAGE ON SEQUENCE {t.LOCK_FENCE}"
# The state of a group. What it calls is only for those who run it.
_COUNTED = (
    "id, total, succeeded, failed, enough, fail_fast, outcome, callback_id, part_of, created_at, "
    "counted_at, flow, flow_key, when_failed"
)
_ENTER_STEPS = (
    f"EXECUTE ON FUNCTION {t.ENTER_STEPS}"
    "(bigint, text[], bigint[], text[], interval[], text[], text[], text[], text[])"
)
_EVENTS = (
    f"EXECUTE ON FUNCTION {t.LOCK_EVENTS}(text[])",
    f"EXECUTE ON FUNCTION {t.ENTER_EVENT_WAITS}(bigint[], text[], interval[])",
    f"EXECUTE ON FUNCTION {t.SEND_EVENT}(text, jsonb, text, text)",
)
_NEEDED_TO_CREATE = (
    f"INSERT ON {t.LARGE_VALUE}",
    f"SELECT, INSERT, UPDATE (task_id, scope, until) ON {t.KEY}",
    f"SELECT ({_COUNTED}), INSERT ON {t.GROUP}",
    *(f"INSERT ON {t.GROUP_IDS}", f"EXECUTE ON FUNCTION {t.EXTEND}(bigint, bigint[])"),
    f"SELECT (flow_id, step, task_id, ended) ON {t.FLOW_STEP}",
    *(_ENTER_STEPS, *_EVENTS, _IDS, _SEE),
)
_LOCKS = (t.LOCK, t.LOCK_HOLDER, t.LOCK_PART, t.LOCK_WAIT)
_EVERYTHING = (
    *(t.PENDING, t.COMPLETED, t.ERROR, t.ATTEMPT, t.FINGERPRINT, t.TRANSITION, t.LOG_LINES),
    *(t.ALERT, t.ALERT_LOOK, t.WORKER, t.LEASE, t.PAUSE, t.PACE, t.SCHEDULE, t.FIRE, t.KEY),
    *(t.LIMIT, t.GATE, *_LOCKS, t.QUEUE, t.WINDOW, t.CALENDAR, t.BREAKER, t.CALLS, t.HELD),
    *(t.FAIR, t.PARTITION, t.PARTITION_VALUE, t.MARKER, t.BATCH, t.BATCH_STEP, t.BATCH_SKIP),
    *(
        t.GROUP,
        t.GROUP_IDS,
        t.FLOW_STEP,
        t.FLOW_NEED,
        t.EVENT,
        t.EVENT_WAIT,
        t.PROGRESS,
        t.STEP,
        t.COUNT_PART,
        t.COUNT,
        t.TOTAL,
        t.IMPORT,
        t.LARGE_VALUE,
    ),
)
_ONLY_WORKERS = {t.WORKER, t.LEASE, t.PACE, t.GROUP_IDS}
_ADMIN = tuple(each for each in _EVERYTHING if each not in _ONLY_WORKERS)
_VIEWS = (t.ALL, t.SCHEDULES, t.LOCKS, t.LOCK_REPORT, t.PARTITIONS)
_READ = f"SELECT ON {', '.join((*_VIEWS, *_EVERYTHING, t.AUDIT, _DEFAULT, t.VERSION))}"
# Lines of the audit stay as they are, and the database says who wrote them, and when.
_AUDIT = f"INSERT ({', '.join(TOLD)}) ON {t.AUDIT}"
_CHANGE = "SELECT, INSERT, UPDATE, DELETE ON"
# The state of a task. Its payload is not for producers of other tasks, and its lease token would
# let them settle it.
_STANDING = (
    "id, name, queue, priority, biz_key, unique_key, order_key, limit_key, more_limit_keys, "
    "weight, locks, fair_key, state, enabled, attempt, failures, crashes, parked, parked_kind, "
    "parked_for, due_at, scan_at, started_at, expires_at, cancel_requested_at, batch_id, "
    "created_at, held_due_at"
)
_AMENDED = (
    "payload, locks, due_at, scan_at, held_due_at, parked, parked_kind, parked_for, changed_at"
)
_CREATE = f"SELECT ({_STANDING}), INSERT ON {t.PENDING}"
_GRANTS = {
    RoleKind.PRODUCER: (_CREATE, *_NEEDED_TO_CREATE),
    RoleKind.AMENDER: (_CREATE, f"UPDATE ({_AMENDED}) ON {t.PENDING}", *_NEEDED_TO_CREATE),
    RoleKind.LOCKER: (
        f"SELECT (id, state, attempt, lease_token, parked_kind) ON {t.PENDING}",
        f"SELECT (gate, look_at), UPDATE (look_at) ON {t.GATE}",
        *(f"{_CHANGE} {', '.join(_LOCKS)}", _FENCES, _SEE),
    ),
    RoleKind.WORKER: (
        f"{_CHANGE} {', '.join(_EVERYTHING)}",
        f"SELECT ON {', '.join(_VIEWS)}, {t.AUDIT}, {_DEFAULT}, {t.VERSION}",
        *(_AUDIT, f"EXECUTE ON FUNCTION {t.EXTEND}(bigint, bigint[])", _ENTER_STEPS, *_EVENTS),
        *(f"EXECUTE ON FUNCTION {t.FENCE_LOST}(bigint)", _IDS, _FENCES),
    ),
    # How many ids were given is for metrics.
    RoleKind.READER: (_READ, f"SELECT ON SEQUENCE {t.table('task_pending_id_seq')}"),
    RoleKind.ADMIN: (
        *(_READ, f"{_CHANGE} {', '.join(_ADMIN)}", f"INSERT ON {t.GROUP_IDS}"),
        f"UPDATE (asks, stacks, stacks_at) ON {t.WORKER}",
        *(f"EXECUTE ON FUNCTION {t.EXTEND}(bigint, bigint[])", _ENTER_STEPS, *_EVENTS),
        *(_IDS, _AUDIT),
    ),
}
