"""Claim: compare-and-set from PENDING to RUNNING. COMMIT before any handler starts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.run import ClaimedTask, Fence
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.execute import ask, in_psycopgs_words
from tasks_app.pool.connection.steps import Statement
from tasks_app.pool.fragments.conditions import ALL_RUN
from tasks_app.pool.fragments.conditions import is_free
from tasks_app.pool.fragments.conditions import runs
from tasks_app.pool.fragments.clear_gates import CLEAR
from tasks_app.pool.fragments.fences import array
from tasks_app.pool.fragments.transition_log import LOG
from tasks_app.pool.runs.claim_sql import (
    ALONE,
    CANDIDATE,
    KNOWN,
    NO_QUEUE_SAYS,
    QUEUE_SAYS,
    Claimer,
    plain,
    returned,
    statement,
    task_of,
    update,
    values_of,
)
from tasks_app.pool.tables import PENDING, READY, UNGATED, UNLIMITED, admits_by_id


def _of_message(columns: str, passes: str) -> str:
    return f"""
        SELECT {columns} FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {KNOWN} AND {READY}
          AND {admits_by_id(Event.CLAIM)} AND {passes}
        ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED"""


def _by_id(passes: str, *, logs: bool) -> str:
    """Return it for psycopg: SQLAlchemy's own work on it takes as long as the server's."""
    rows = _of_message(CANDIDATE, f"{is_free()} AND {runs('p.queue')} AND {passes}")
    claims = statement(
        f"candidate AS MATERIALIZED ({rows})",
        order="id",
        lonely_goes_first="false",  # a message ends, so its lonely ones get their turn
        logs=logs,
    )
    return in_psycopgs_words(claims)


def _unhindered(*, logs: bool) -> str:
    rows = _of_message("p.id", f"NOT {ALONE} AND {UNLIMITED} AND {ALL_RUN} AND {NO_QUEUE_SAYS}")
    taken = f"taken AS MATERIALIZED ({rows})"
    return in_psycopgs_words(update(taken, of="p.{}".format, logs=logs))


_UNGATED = _by_id(UNGATED, logs=False), _by_id(UNGATED, logs=True)
_ADMITTED = _by_id("true", logs=False), _by_id("true", logs=True)
_CLEAR = _by_id(CLEAR, logs=False), _by_id(CLEAR, logs=True)
_UNHINDERED = _unhindered(logs=False), _unhindered(logs=True)
"""Each without and with lines in the log of transitions."""

_WAITING = text(f"""
    SELECT p.id FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)}
""")

_PAYLOAD = text(f"""
    SELECT p.payload::text FROM {PENDING} p
    WHERE p.id = :id AND p.attempt = :attempt AND p.lease_token = :token
      AND p.state = '{State.RUNNING}'
""")

_CLAIMS = text(f"""
    WITH {QUEUE_SAYS} SELECT {returned()}, p.lease_token FROM {PENDING} p
    WHERE p.state = '{State.RUNNING}' AND p.owner = :owner ORDER BY p.id
""")


def claim(
    connection: Connection,
    ids: Sequence[int],
    claimer: Claimer,
    token: UUID,
    *,
    admitted: bool = False,
    now: datetime | None = None,
) -> list[ClaimedTask]:
    """Take those of ``ids`` that are there to take; order as in ``ids``. An empty list is normal.

    Gated tasks are not taken unless they are ``admitted``. A task that is ``at_most_once``, or was
    claimed by a child that crashed, is only ever taken alone: then the list has one entry, and a
    second call may find more.
    """
    statement = (_ADMITTED if admitted else _UNGATED)[LOG.has_successes]
    return _claimed(connection, statement, ids, claimer, token, now)


def claim_clear(
    connection: Connection,
    ids: Sequence[int],
    claimer: Claimer,
    token: UUID,
    *,
    now: datetime | None = None,
) -> list[ClaimedTask]:
    """Take what :func:`claim` would, of those that surely pass their gates.

    The caller has locked the gates of all of them.
    """
    return _claimed(connection, _CLEAR[LOG.has_successes], ids, claimer, token, now)


def claim_unhindered(
    connection: Connection,
    ids: Sequence[int],
    claimer: Claimer,
    token: UUID,
    *,
    now: datetime | None = None,
) -> list[ClaimedTask]:
    """Take what :func:`claim` would, or a part of it, or nothing, at two thirds of its cost.

    It knows no exceptions: it takes nothing while any queue or name stands still or is limited, or
    any queue has defaults of its own; and it never takes a task that has to run alone.
    """
    statement = _UNHINDERED[LOG.has_successes]
    return _claimed(connection, statement, ids, claimer, token, now)


def _claimed(
    connection: Connection,
    statement: str,
    ids: Sequence[int],
    claimer: Claimer,
    token: UUID,
    now: datetime | None,
) -> list[ClaimedTask]:
    values = {**values_of(claimer, token), "ids": array(sorted(map(int, ids))), "now": now}
    taken = {row[0]: task_of(row, token) for row in ask(connection, Statement(statement, values))}
    return [taken.pop(task_id) for task_id in ids if task_id in taken]


def waiting(connection: Connection, ids: Sequence[int]) -> list[int]:
    """Return those of ``ids`` that nobody has taken yet, in their order. Only a read."""
    there = set(connection.execute(_WAITING, {"ids": array(map(int, ids))}).scalars())
    return [task_id for task_id in ids if task_id in there]


def fetch_payload(connection: Connection, fence: Fence) -> str | None:
    """Return a large payload as JSON text, or None: the fence is lost."""
    values = {"id": fence.task_id, "attempt": fence.attempt, "token": fence.token}
    payload: str | None = connection.execute(_PAYLOAD, values).scalar()
    return payload


def claims_of(connection: Connection, owner: str) -> list[ClaimedTask]:
    """Return what a child still holds, lowest id first. Only a read: act on it by the fence."""
    rows = plain(connection.execute(_CLAIMS, {"owner": owner}))
    return [task_of(row, row[-1]) for row in rows]
