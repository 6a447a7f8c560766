"""Claim: compare-and-set from PENDING to RUNNING. COMMIT before any handler starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import lru_cache
from operator import itemgetter
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, CursorResult, text

from tasks_app.domain.large_values.store import REFERENCE_MARK
from tasks_app.domain.tasks.run import ClaimedTask, Fence
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.execute import Statement, fetch, to_psycopg_sql
from tasks_app.pool.fragments.conditions import (
    ALL_RUN,
    BEHIND,
    CLEAR,
    NUMBERED,
    UNPARKED,
    Place,
    is_free,
    queue_runs,
    scan_position_values,
)
from tasks_app.pool.fragments.move_rows import array
from tasks_app.pool.fragments.transition_log import LOG, lines_of_claims
from tasks_app.pool.tables import (
    NOW,
    PENDING,
    QUEUE,
    READY,
    UNGATED,
    UNLIMITED,
    Clock,
    admits,
    admits_by_id,
)


@dataclass(frozen=True, slots=True)
class Claimer:
    """A child process and its handlers. Their policies are written into the rows."""

    owner: str
    lease: timedelta
    names: tuple[str, ...]
    max_attempts: tuple[int, ...]  # of each of ``names``
    at_most_once: tuple[bool, ...]  # of each of ``names``
    locking: frozenset[str] = frozenset()  # those of ``names`` that declare locks


PAYLOADS_UP_TO = 16 * 1024
"""Bytes as stored, so compressed. Larger payloads are fetched one by one, to bound memory."""
_DEFAULTS = {
    "retry": "text",
    "max_attempts": "smallint",
    "timeout_ms": "integer",
    "hard_timeout_ms": "integer",
}
_OF_QUEUE = ", ".join(f"g.{column}" for column in _DEFAULTS)
_HAS_DEFAULTS = f"num_nonnulls({_OF_QUEUE}) > 0"
QUEUE_DEFAULTS = f"""says AS MATERIALIZED (
    SELECT jsonb_object_agg(g.queue, jsonb_build_array({_OF_QUEUE})) AS defaults
    FROM {QUEUE} g WHERE {_HAS_DEFAULTS})"""
NO_QUEUE_DEFAULTS = f"NOT EXISTS (SELECT FROM {QUEUE} g WHERE {_HAS_DEFAULTS})"


def of_queue(column: str) -> str:
    """Return the value of the row ``p``, or else of its queue."""
    default = f"(SELECT defaults FROM says) -> p.queue ->> {list(_DEFAULTS).index(column)}"
    return f"coalesce(p.{column}, CAST({default} AS {_DEFAULTS[column]}))"


def returned_columns(of: Callable[[str], str] = of_queue) -> str:
    """Return a fence without its token, then the other fields of :class:`ClaimedTask` in order."""
    # ``of`` returns the value of a column, of the row or its queue.
    return f"""
    p.id, p.attempt, p.name, p.queue, p.biz_key,
    CASE WHEN pg_column_size(p.payload) <= {PAYLOADS_UP_TO} THEN p.payload::text END AS payload,
    p.headers::text AS headers, p.failures, p.crashes, p.retry_level, p.max_attempts,
    p.at_most_once, {of("retry")}, {of("timeout_ms")}, {of("hard_timeout_ms")},
    p.idempotency_key::text AS key_text,
    date_part('epoch', p.created_at) AS created_s, date_part('epoch', p.due_at) AS due_s,
    p.cancel_requested_at IS NOT NULL AS cancel_requested, p.batch_id AS group_id
"""


_POLICY = "(SELECT policies FROM handler) -> p.name"
_AT_MOST_ONCE = f"coalesce(p.at_most_once, ({_POLICY} ->> 1)::boolean)"
KNOWN = "(SELECT policies FROM handler) ? p.name"
ALONE = f"(p.crashes >= 1 OR {_AT_MOST_ONCE})"
CANDIDATE = f"p.id, p.priority, p.scan_at, {ALONE} AS alone"


def claim_update(
    taken: str, of: Callable[[str], str] = of_queue, more: str = "", *, logs: bool = False
) -> str:
    """Return the UPDATE of the ids that the CTE ``taken`` yields; ``more``: columns to add."""
    # ``of`` returns the value of a column, of the row or its queue. ``logs``: with a line for
    # each claim in the log of transitions.
    handler = "handler AS MATERIALIZED (SELECT CAST(:handlers AS jsonb) AS policies)"
    claims = f"""
    UPDATE {PENDING} p
    SET state = '{State.RUNNING}', attempt = p.attempt + 1, lease_token = :token, owner = :owner,
        lease_until = {NOW} + CAST(:lease AS interval), started_at = {NOW}, {UNPARKED},
        max_attempts = coalesce({of("max_attempts")}, ({_POLICY} ->> 0)::smallint),
        at_most_once = {_AT_MOST_ONCE}
    WHERE p.id = ANY(ARRAY(SELECT id FROM taken))
    RETURNING {returned_columns(of)}{more}
"""
    if not logs:
        return f"\n    WITH {handler}, {taken}{claims}"
    return f"""\n    WITH {handler}, {taken},
    claimed AS ({claims}){lines_of_claims()} SELECT * FROM claimed"""


def claim_statement(
    candidates: str, *, order: str, lonely_goes_first: str, more: str = "", logs: bool = False
) -> str:
    """Return the claim of the rows of the CTE ``candidate``; it claims lone tasks one by one."""
    taken = f"""{QUEUE_DEFAULTS},
    {candidates},
    taken AS MATERIALIZED (
        SELECT * FROM candidate WHERE NOT alone AND NOT {lonely_goes_first}
        UNION ALL
        (SELECT * FROM candidate
         WHERE alone
           AND ({lonely_goes_first} OR NOT EXISTS (SELECT FROM candidate WHERE NOT alone))
         ORDER BY {order} LIMIT 1))"""
    return claim_update(taken, more=more, logs=logs)


def _of_message(columns: str, passes: str) -> str:
    return f"""
        SELECT {columns} FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {KNOWN} AND {READY}
          AND {admits_by_id(Event.CLAIM)} AND {passes}
        ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED"""


def _by_id(passes: str) -> tuple[str, str]:
    """Return the statement without and with the log of transitions."""
    rows = _of_message(CANDIDATE, f"{is_free()} AND {queue_runs('p.queue')} AND {passes}")
    candidate = f"candidate AS MATERIALIZED ({rows})"

    def sql(*, logs: bool) -> str:
        # a message ends, so its lone tasks get their turn
        claims = claim_statement(candidate, order="id", lonely_goes_first="false", logs=logs)
        return to_psycopg_sql(claims)  # SQLAlchemy would take as long as the server

    return sql(logs=False), sql(logs=True)


def _unhindered(*, logs: bool) -> str:
    rows = _of_message("p.id", f"NOT {ALONE} AND {UNLIMITED} AND {ALL_RUN} AND {NO_QUEUE_DEFAULTS}")
    taken = f"taken AS MATERIALIZED ({rows})"
    return to_psycopg_sql(claim_update(taken, of="p.{}".format, logs=logs))


class Claims(Enum):
    """Which of the tasks are claimed; the value: its statement, without and with the log."""

    UNGATED = _by_id(UNGATED)
    ADMITTED = _by_id("true")  # gated ones, too: the caller has locked and asked their gates
    CLEAR = _by_id(CLEAR)  # what surely passes its gates, all of which the caller has locked
    UNHINDERED = _unhindered(logs=False), _unhindered(logs=True)
    """Those of UNGATED, a part of them, or none, at two thirds of the cost: none while a queue or
    name is stopped or limited, or a queue has defaults; and no task that has to run alone."""


def claim(
    connection: Connection,
    ids: Sequence[int],
    claimer: Claimer,
    token: UUID,
    which: Claims = Claims.UNGATED,
    *,
    now: Clock = None,
) -> list[ClaimedTask]:
    """Claim those of ``ids`` that are available, in that order; often none."""
    # A task that is ``at_most_once``, or whose child crashed before, is claimed alone: then the
    # list has one entry, and a second call may find more.
    statement = which.value[LOG.has_successes]
    judged = which is Claims.ADMITTED  # others would take what its handler's locks hold back
    values = {
        **values_of(claimer, token, all_names=judged),
        "ids": array(sorted(map(int, ids))),
        "now": now,
    }
    taken = {row[0]: _task(row, token) for row in fetch(connection, Statement(statement, values))}
    return [taken.pop(task_id) for task_id in ids if task_id in taken]


_WAITING = text(f"""
    SELECT p.id FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)}""")
_PAYLOAD = text(f"""
    SELECT p.payload::text FROM {PENDING} p
    WHERE p.id = :id AND p.attempt = :attempt AND p.lease_token = :token
      AND p.state = '{State.RUNNING}'""")
_CLAIMS = text(f"""
    WITH {QUEUE_DEFAULTS} SELECT {returned_columns()}, p.lease_token FROM {PENDING} p
    WHERE p.state = '{State.RUNNING}' AND p.owner = :owner ORDER BY p.id""")


def still_pending(connection: Connection, ids: Sequence[int]) -> list[int]:
    """Return those of ``ids`` that are not claimed yet, in their order. Only a read."""
    there = set(connection.execute(_WAITING, {"ids": array(map(int, ids))}).scalars())
    return [task_id for task_id in ids if task_id in there]


def fetch_payload(connection: Connection, fence: Fence) -> str | None:
    """Return a large payload as JSON text; None: the fence is lost."""
    values = {"id": fence.task_id, "attempt": fence.attempt, "token": fence.token}
    return connection.execute(_PAYLOAD, values).scalar()


def claims_of(connection: Connection, owner: str) -> list[ClaimedTask]:
    """Return what a child still holds, lowest id first. Only a read: act on it by the fence."""
    rows = _plain_rows(connection.execute(_CLAIMS, {"owner": owner}))
    return [_task(row, row[-1]) for row in rows]


_QUEUE = 1 + ClaimedTask._fields.index("queue")
END = 1 + len(ClaimedTask._fields)  # columns from here on are not the task's
_IN_TURN = itemgetter(END, 1 + ClaimedTask._fields.index("due_s"), 0)  # priority, due date, id


def claim_next_statement(*, logs: bool, more: str = "true") -> str:
    """Return the statement; ``more``: a further condition on the row ``p``."""
    return claim_statement(
        f"""
    candidate AS MATERIALIZED (
        SELECT p.*
        FROM unnest(CAST(:queues AS text[])) WITH ORDINALITY AS q(queue, number)
        CROSS JOIN generate_series(0, 9) AS r(priority)
        {NUMBERED}
        CROSS JOIN LATERAL (
            SELECT {CANDIDATE} FROM {PENDING} p
            WHERE p.queue = q.queue AND p.priority = r.priority
              AND p.scan_at <= {NOW}
              AND {BEHIND}
              AND {admits(Event.CLAIM)} AND {KNOWN} AND {READY} AND {is_free()} AND {UNGATED}
              AND {more}
              AND (CAST(:lonely AS boolean) OR NOT {ALONE})
            ORDER BY p.scan_at, p.id LIMIT :most FOR NO KEY UPDATE SKIP LOCKED) AS p
        WHERE {queue_runs("q.queue")}
        ORDER BY p.priority, p.scan_at, p.id LIMIT :most)
    """,
        order="priority, scan_at, id",
        # The pool may never run out of others, so the first in line goes first.
        lonely_goes_first="(SELECT alone FROM candidate ORDER BY priority, scan_at, id LIMIT 1)",
        more=", p.priority, date_part('epoch', p.scan_at)",
        logs=logs,
    )


# the condition that neither the row nor its queue has a time limit or a retry policy, and that the
# payload is in the row
HAS_NO_LIMITS_OF_ITS_OWN = f"""num_nonnulls(p.retry, p.timeout_ms, p.hard_timeout_ms) = 0
              AND NOT jsonb_exists(p.payload, '{REFERENCE_MARK}') AND NOT EXISTS (
                SELECT FROM {QUEUE} g WHERE g.queue = p.queue
                  AND num_nonnulls(g.retry, g.timeout_ms, g.hard_timeout_ms) > 0)"""
_NEXT, _NEXT_LOGGED = text(claim_next_statement(logs=False)), text(claim_next_statement(logs=True))


def claim_next(
    connection: Connection,
    queues: Sequence[str],
    most: int,
    claimer: Claimer,
    token: UUID,
    *,
    lonely: bool = True,
    within: timedelta | None = None,
    places: dict[tuple[str, int], Place] | None = None,
    now: Clock = None,
) -> list[ClaimedTask]:
    """Claim up to ``most`` due tasks directly from the pool, in order of priority."""
    # Without ``lonely``, none that has to run alone. Rows due for longer than ``within`` are not
    # read. The search begins after ``places``, and moves them behind what it claimed.
    values = {**values_of(claimer, token), **scan_position_values(queues, places)}
    values |= {"queues": list(queues), "most": most, "lonely": lonely, "within": within, "now": now}
    found = connection.execute(_NEXT_LOGGED if LOG.has_successes else _NEXT, values)
    rows = sorted(_plain_rows(found), key=_IN_TURN)
    if places is not None:
        for row in rows:
            line, place = (row[_QUEUE], row[END]), (row[END + 1], row[0])
            places[line] = max(place, places.get(line, place))
    return [_task(row, token) for row in rows]


def values_of(claimer: Claimer, token: UUID, *, all_names: bool = False) -> dict[str, Any]:
    lease = {"lease": claimer.lease, "owner": claimer.owner, "token": token}
    return {"handlers": _handlers(claimer, all_names=all_names), **lease}


@lru_cache(maxsize=8)
def _handlers(claimer: Claimer, *, all_names: bool) -> str:
    policies = zip(claimer.max_attempts, claimer.at_most_once, strict=True)
    known = zip(claimer.names, policies, strict=True)
    return json.dumps({n: p for n, p in known if all_names or n not in claimer.locking})


def _task(row: Sequence[Any], token: UUID) -> ClaimedTask:
    # by tuple itself: with its nineteen arguments the class takes three times as long
    fence = tuple.__new__(Fence, (row[0], row[1], token))
    return tuple.__new__(ClaimedTask, (fence, *row[2:END]))


def _plain_rows(result: CursorResult[Any]) -> Sequence[Any]:
    """Return the driver's own tuples: wrapping each in a row takes as long as making its task."""
    rows = result.cursor.fetchall()
    result.close()
    return rows
