"""Rescue: claims whose worker is gone come back. Nobody is charged, but ``crashes`` rises.

One statement that re-checks the lease at write time: reading first and writing by id later would
take rows from workers that are alive. Rescued tasks come back at a random distance from each other
and are claimed alone from then on, so that a machine-killer cannot take the same neighbours twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.handlers.settlement import (
    BROKEN_OFF,
    CONNECTION_LOST,
    INTERRUPTED,
    OUTCOME_UNKNOWN,
    PROCESS_KILLED,
    REFUSED,
    VANISHED,
)
from tasks_app.domain.tasks.fingerprint import fingerprint_of
from tasks_app.domain.tasks.run import Cause, Fence
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.row_by_row import found_task_by_task, task_by_task
from tasks_app.pool.fragments.fences import fence_arrays, fenced
from tasks_app.pool.fragments.move_rows import AS_IT_WAS, NAMED, SKIP_LOCKED, leave
from tasks_app.pool.statistics.parts import note_moved
from tasks_app.pool.tables import NOW, PENDING, admits

RESCUES = "rescue of tasks"
FIRST_S = 5
"""The longest distance after a first crash: most machines vanish for no task's sake."""
_UNKNOWN = "The worker vanished while an at_most_once task ran."
_SENTENCES = {
    VANISHED: "The task was on board when its worker vanished",
    PROCESS_KILLED: "Its process was killed at the hard limit of another task in it",
    INTERRUPTED: "A signal ended its process, and no other of the worker",
    CONNECTION_LOST: "The database, which is up, ended the connection on which the task ran",
    REFUSED: "The database had no room for what it wrote, or no connection",
    BROKEN_OFF: "No limit, stop or operator broke off its run",
}


def _held(source: str) -> str:
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


_MAY = admits(Event.RESCUE)
_OVER = f"p.lease_until < {NOW} - CAST(:grace AS interval) AND {_MAY}"
FIND_EXPIRED = f"""
    SELECT p.id FROM {PENDING} p WHERE {_OVER} ORDER BY p.id LIMIT :most OFFSET :skipped
"""
EXPIRED = leave(
    _held(f"""{PENDING} p WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {_OVER}
        ORDER BY p.id {SKIP_LOCKED}"""),
    told=NAMED,
)
"""``grace`` is for a rescuer that cannot know whether workers could renew just now."""
_FIND_EXPIRED = text(FIND_EXPIRED)
_CLAIMS = leave(_held(fenced(_MAY, SKIP_LOCKED)))


def rescue_expired(
    connection: Connection,
    *,
    lease: timedelta,
    max_crashes: int,
    most: int = 500,
    now: datetime | None = None,
) -> dict[int, State]:
    """Take back tasks whose lease is over; return where each went."""
    over = {"grace": timedelta(0), "now": now}
    values = {**VANISHED_VALUES, **over, "lease": lease, "max_crashes": max_crashes}

    def move(ids: Sequence[int]) -> dict[int, State]:
        rows = connection.execute(EXPIRED(), {**values, "ids": list(ids)})
        return note_moved(connection, rows, Event.RESCUE, now=now)

    return found_task_by_task(connection, _FIND_EXPIRED, over, most, move, RESCUES)


def rescue_claims(
    connection: Connection,
    fences: Sequence[Fence],
    *,
    lease: timedelta,
    max_crashes: int,
    kind: str = VANISHED,
    left: set[int] | None = None,
    now: datetime | None = None,
) -> dict[int, State]:
    """Take back claims whose child, connection or run is gone, whosever fault that was.

    The ids of those that the database refuses are added to ``left``.
    """
    values = {**_values(kind), "lease": lease, "max_crashes": max_crashes, "now": now}

    def move(some: Sequence[Fence]) -> dict[int, State]:
        rows = connection.execute(_CLAIMS(), {**fence_arrays(some), **values})
        return {row.id: State(row.goes_to) for row in rows}

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
"""What EXPIRED is told of the cause."""
