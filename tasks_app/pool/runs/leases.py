"""Leases of claimed tasks: renewed, released, and rescued from lost workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.limits import WaitingReason
from tasks_app.domain.handlers.settlement import (
    ABORTED,
    CONNECTION_LOST,
    INTERRUPTED,
    OUTCOME_UNKNOWN,
    PROCESS_KILLED,
    REFUSED,
    VANISHED,
)
from tasks_app.domain.tasks.error_text import fingerprint_of
from tasks_app.domain.tasks.run import Cause, ClaimedTask, Fence
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.row_by_row import found_task_by_task, task_by_task
from tasks_app.pool.fragments.move_rows import (
    AS_IT_WAS,
    SKIP_LOCKED,
    WAIT,
    fence_arrays,
    fenced,
    move_out,
    states_of_moved,
)
from tasks_app.pool.statistics.parts import add_moved
from tasks_app.pool.tables import NOW, PENDING, Clock, admits

_LOCK = "FOR NO KEY UPDATE OF p SKIP LOCKED"
_RENEW = text(f"""
    WITH held AS MATERIALIZED (
        SELECT p.id FROM {fenced(f"p.state = '{State.RUNNING}'", _LOCK)})
    UPDATE {PENDING} p SET lease_until = {NOW} + CAST(:lease AS interval)
    WHERE p.id = ANY(ARRAY(SELECT id FROM held))
    RETURNING p.id""")


def renew(
    connection: Connection, fences: Sequence[Fence], lease: timedelta, *, now: Clock = None
) -> frozenset[int]:
    """Return the ids that were renewed; the others' fence is lost, or their row is locked."""
    values = {**fence_arrays(fences), "lease": lease, "now": now}
    return frozenset(connection.execute(_RENEW, values).scalars())


_FIND_CANCELLED = text(f"""
    SELECT p.id, extract(epoch FROM p.kill_at - {NOW})::float8 AS kill_in_s
    FROM {fenced(f"p.state = '{State.RUNNING}' AND p.cancel_requested_at IS NOT NULL")}""")


def find_cancelled(
    connection: Connection, fences: Sequence[Fence], *, now: Clock = None
) -> dict[int, float | None]:
    """Return which of these runs are to be cancelled, and in how many seconds to be killed."""
    rows = connection.execute(_FIND_CANCELLED, {**fence_arrays(fences), "now": now})
    return {row.id: row.kill_in_s for row in rows}


def _released_rows(source: str) -> str:
    return f"""
    SELECT {AS_IT_WAS},
        CASE WHEN p.cancel_requested_at IS NULL THEN '{State.PENDING}' ELSE '{State.CANCELLED}' END
            AS goes_to,
        {NOW} + CAST(:wait AS interval) AS back_at, p.failures, p.crashes, p.retry_level,
        NULL::jsonb AS result, NULL AS kind, NULL AS message, NULL AS traceback,
        NULL AS encrypted_message, NULL::bytea AS fingerprint,
        NULL::integer AS run_ms, '{Event.RELEASE}' AS event
    FROM {source}
    """


_PARK = text(f"""
    UPDATE {PENDING} SET due_at = least(due_at, CAST(:due_at AS timestamptz)),
        parked = :reason, parked_kind = :kind, parked_for = :subject
    WHERE id = :id AND state = '{State.PENDING}'""")
_MAY_RELEASE = admits(Event.RELEASE)
_GROUP = move_out(_released_rows(fenced(_MAY_RELEASE, SKIP_LOCKED)))
_ONE = move_out(_released_rows(fenced(_MAY_RELEASE, WAIT)), waits=True)
_TOKEN = move_out(
    _released_rows(
        f"{PENDING} p WHERE p.lease_token = :token AND {_MAY_RELEASE} ORDER BY p.id {SKIP_LOCKED}"
    )
)


def release(
    connection: Connection,
    fences: Sequence[Fence],
    *,
    wait: timedelta = timedelta(0),
    block: bool = False,
    left: set[int] | None = None,
    now: Clock = None,
) -> dict[int, State]:
    """Release claims, due after ``wait``; return where each went."""
    # Rows whose fence is lost are left out; unless ``block``, also locked rows, and rows that the
    # database refuses, whose ids are added to ``left``.

    def give_back(some: Sequence[Fence]) -> dict[int, State]:
        statement = (_ONE if block else _GROUP)()
        rows = connection.execute(statement, {**fence_arrays(some), "wait": wait, "now": now})
        return states_of_moved(rows)

    if block:
        return give_back(fences)
    return task_by_task(connection, fences, give_back, "release of tasks", left=left, now=now)


def release_parked(
    connection: Connection, task: ClaimedTask, reason: WaitingReason, wait: timedelta
) -> State | None:
    """Release a claim, parked for ``wait``; its due date stays. Waits for the row."""
    # None: the fence is lost.
    state = release(connection, [task.fence], wait=wait, block=True).get(task.task_id)
    if state is State.PENDING:
        values = {"id": task.task_id, "due_at": task.due_at, "reason": str(reason)}
        kind = {"kind": reason.kind.value, "subject": reason.subject}
        connection.execute(_PARK, {**values, **kind})
    return state


def release_token(connection: Connection, token: UUID, *, now: Clock = None) -> set[int]:
    """Release the tasks of a claim whose reply was lost; return the ids."""
    values = {"token": token, "wait": timedelta(0), "now": now}
    return set(states_of_moved(connection.execute(_TOKEN(), values)))


RESCUES = "rescue of tasks"
FIRST_S = 5  # the longest wait after a first crash: most machines vanish without a task's fault
_UNKNOWN = "The worker vanished while an at_most_once task ran."
_SENTENCES = {
    VANISHED: "The task was on board when its worker vanished",
    PROCESS_KILLED: "Its process was killed at the hard limit of another task in it",
    INTERRUPTED: "A signal ended its process, and no other of the worker",
    CONNECTION_LOST: "The database, which is up, ended the connection on which the task ran",
    REFUSED: "The database had no room for what it wrote, or no connection",
    ABORTED: "No limit, stop or operator broke off its run",
}


def _rescued_rows(source: str) -> str:
    return f"""
    SELECT {AS_IT_WAS},
        CASE WHEN p.cancel_requested_at IS NOT NULL THEN '{State.CANCELLED}'
             WHEN p.at_most_once OR p.crashes + 1 >= :max_crashes THEN '{State.FAILED}'
             ELSE '{State.PENDING}' END AS goes_to,
        {NOW} + random() * least(CAST(:lease AS interval) * (2 ^ least(p.crashes + 1, 10)),
            CASE WHEN p.crashes = 0 THEN interval '{FIRST_S} s' END) AS back_at,
        p.failures, least(p.crashes + 1, 32767)::smallint AS crashes, p.retry_level,
        NULL::jsonb AS result,
        CASE WHEN p.at_most_once THEN '{OUTCOME_UNKNOWN}' ELSE CAST(:kind AS text) END AS kind,
        CASE WHEN p.at_most_once THEN '{_UNKNOWN}'
             ELSE CAST(:sentence AS text) || ' (' || (p.crashes + 1) || ' of at most '
                || CAST(:max_crashes AS integer) || ' times).'
             END AS message,
        NULL AS traceback, NULL AS encrypted_message,
        CASE WHEN p.at_most_once THEN CAST(:unknown AS bytea) ELSE CAST(:fingerprint AS bytea)
            END AS fingerprint,
        NULL::integer AS run_ms, '{Event.RESCUE}' AS event
    FROM {source}
    """


_MAY_RESCUE = admits(Event.RESCUE)
_OVER = f"p.lease_until < {NOW} - CAST(:grace AS interval) AND {_MAY_RESCUE}"
FIND_EXPIRED = f"""
    SELECT p.id FROM {PENDING} p WHERE {_OVER} ORDER BY p.id LIMIT :most OFFSET :skipped
"""
EXPIRED = move_out(
    _rescued_rows(f"""{PENDING} p WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {_OVER}
        ORDER BY p.id {SKIP_LOCKED}"""),
)
"""``grace`` is for a rescuer that cannot know whether workers could renew just now."""
_FIND_EXPIRED = text(FIND_EXPIRED)
_CLAIMS = move_out(_rescued_rows(fenced(_MAY_RESCUE, SKIP_LOCKED)))


def rescue_expired(
    connection: Connection,
    *,
    lease: timedelta,
    max_crashes: int,
    most: int = 500,
    now: Clock = None,
) -> dict[int, State]:
    over = {"grace": timedelta(0), "now": now}
    values = {**VANISHED_VALUES, **over, "lease": lease, "max_crashes": max_crashes}

    def move(ids: Sequence[int]) -> dict[int, State]:
        rows = connection.execute(EXPIRED(), {**values, "ids": list(ids)})
        return add_moved(connection, rows, Event.RESCUE, now=now)

    return found_task_by_task(connection, _FIND_EXPIRED, over, most, move, RESCUES)


def rescue_claims(
    connection: Connection,
    fences: Sequence[Fence],
    *,
    lease: timedelta,
    max_crashes: int,
    kind: str = VANISHED,
    left: set[int] | None = None,
    now: Clock = None,
) -> dict[int, State]:
    """Rescue claims whose child process, connection or run is gone; return where each went."""
    # The ids of those that the database refuses are added to ``left``.
    values = {**_values(kind), "lease": lease, "max_crashes": max_crashes, "now": now}

    def move(some: Sequence[Fence]) -> dict[int, State]:
        rows = connection.execute(_CLAIMS(), {**fence_arrays(some), **values})
        return states_of_moved(rows)

    return task_by_task(connection, fences, move, RESCUES, left=left, now=now)


def _values(kind: str) -> dict[str, str | bytes]:
    sentence = _SENTENCES[kind]
    return {
        "kind": kind,
        "sentence": sentence,
        "fingerprint": fingerprint_of(Cause(kind, f"{sentence} (1 of at most 1 times).")),
        "unknown": fingerprint_of(Cause(OUTCOME_UNKNOWN, _UNKNOWN)),
    }


VANISHED_VALUES = _values(VANISHED)
