"""Due rows that must not run here: skipped, expired, parked, or for other workers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.limits import WaitingReason
from tasks_app.domain.flows import NOT_NEEDED
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.row_by_row import found_task_by_task, row_by_row, task_by_task
from tasks_app.pool.fragments.conditions import is_free, queue_runs
from tasks_app.pool.fragments.move_rows import SKIP_LOCKED, WITH_ITS_DATE, array, move_out
from tasks_app.pool.statistics.parts import add_moved
from tasks_app.pool.tables import NOW, PENDING, WORKER, Clock, admits, admits_by_id

SWEEP_TASKS = move_out(
    f"""
    SELECT {WITH_ITS_DATE},
        CASE WHEN NOT p.enabled THEN '{State.SKIPPED}' ELSE '{State.EXPIRED}' END AS goes_to,
        p.due_at AS back_at, p.failures, p.crashes, p.retry_level, NULL::jsonb AS result,
        CASE WHEN p.enabled THEN 'expired'
             WHEN p.sub_status IS DISTINCT FROM '{NOT_NEEDED}' THEN 'disabled' END AS kind,
        CASE WHEN NOT p.enabled THEN 'The task was disabled when it became due.'
             ELSE 'The task became due, or was to be tried again, after its expires_at.' END
            AS message,
        NULL AS traceback, NULL AS encrypted_message, NULL::bytea AS fingerprint,
        NULL::integer AS run_ms,
        CASE WHEN NOT p.enabled THEN '{Event.SKIP}' ELSE '{Event.EXPIRE}' END AS event
    FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND p.due_at <= {NOW}
      AND (NOT p.enabled AND {admits(Event.SKIP)}
           OR p.expires_at <= {NOW} AND {admits(Event.EXPIRE)})
      AND {admits_by_id(Event.EXPIRE)}
    ORDER BY p.id {SKIP_LOCKED}""",
    origin=State.PENDING,
)
# as in the index, which holds these rows only
_LEAVES_AT = "CASE WHEN p.enabled THEN greatest(p.due_at, p.expires_at) ELSE p.due_at END"
# the condition that a row is to be swept
BARRED = f"""p.state = '{State.PENDING}' AND (NOT p.enabled OR p.expires_at IS NOT NULL)
    AND {_LEAVES_AT} <= {NOW}"""
FIND_TASKS_TO_SWEEP = f"""
    SELECT p.id FROM {PENDING} p WHERE {BARRED} ORDER BY {_LEAVES_AT} LIMIT :most OFFSET :skipped
"""
_FIND_BARRED = text(FIND_TASKS_TO_SWEEP)
SWEEPS = "sweep of tasks"


def sweep(connection: Connection, ids: Sequence[int], *, now: Clock = None) -> dict[int, State]:
    """Move those of ``ids`` that must not run; return where each went."""
    return task_by_task(connection, ids, partial(_sweep, connection, now), SWEEPS, now=now)


def sweep_all(connection: Connection, most: int, *, now: Clock = None) -> dict[int, State]:
    move = partial(_sweep, connection, now)
    return found_task_by_task(connection, _FIND_BARRED, {"now": now}, most, move, SWEEPS)


def _sweep(connection: Connection, now: Clock, ids: Sequence[int]) -> dict[int, State]:
    rows = connection.execute(SWEEP_TASKS(), {"ids": sorted(map(int, ids)), "now": now})
    return add_moved(connection, rows, now=now)


_PARK = text(f"""
    WITH parked AS MATERIALIZED (
        SELECT p.id FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.EXPIRE)}
          AND p.scan_at <= {NOW}
        ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE {PENDING} p
    SET scan_at = greatest({NOW}, p.due_at) + CAST(:wait AS interval),
        parked = :reason, parked_kind = :kind, parked_for = :subject
    WHERE p.id = ANY(ARRAY(SELECT id FROM parked))""")


def park_tasks(
    connection: Connection,
    ids: Sequence[int],
    reason: WaitingReason,
    wait: timedelta,
    *,
    now: Clock = None,
) -> None:
    """Hide due rows from the scan for ``wait``. ``due_at`` stays: a worker may still claim them."""
    values = {"reason": str(reason), "kind": reason.kind.value, "subject": reason.subject}

    def park_some(some: Sequence[int]) -> None:
        ids = sorted(map(int, some))
        connection.execute(_PARK, {**values, "ids": ids, "wait": wait, "now": now})

    row_by_row(connection, ids, park_some, "parking of tasks", now=now)


_KNOWN = text(f"""
    SELECT DISTINCT h.name FROM {WORKER} w CROSS JOIN LATERAL unnest(w.handlers) AS h(name)
    WHERE w.seen_at > {NOW} - CAST(:within AS interval)
      AND w.queues && CAST(:queues AS text[]) AND h.name <> ALL (CAST(:own AS text[]))""")
_OF_OTHERS = text(f"""
    SELECT p.queue, p.id FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)}
      AND p.due_at <= {NOW} AND p.parked IS NULL AND p.name = ANY(CAST(:names AS text[]))
      AND {is_free()} AND {queue_runs("p.queue")}
    ORDER BY p.queue, p.id""")


def handlers_of_other_workers(
    connection: Connection, queues: Collection[str], own: Collection[str], within: timedelta
) -> set[str]:
    """Return the names, without our ``own``, that live workers of these queues know."""
    values = {"queues": list(queues), "own": list(own), "within": within, "now": None}
    return set(connection.execute(_KNOWN, values).scalars())


def tasks_of_other_workers(
    connection: Connection, ids: Sequence[int], names: Collection[str]
) -> list[tuple[str, int]]:
    """Return queue and id of those that may run now and have one of these names."""
    values = {"ids": array(map(int, ids)), "names": list(names), "now": None}
    return [(queue, task_id) for queue, task_id in connection.execute(_OF_OTHERS, values)]
