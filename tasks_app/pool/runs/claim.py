"""Claim: compare-and-set from PENDING to RUNNING. COMMIT before any handler starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
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
    admits,
    admits_by_id,
)


def _of_message(columns: str, passes: str) -> str:
    return f"""
        SELECT {columns} FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {KNOWN} AND {READY}
          AND {admits_by_id(Event.CLAIM)} AND {passes}
        ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED"""


def _by_id(passes: str, *, logs: bool) -> str:
    """Return it for psycopg: SQLAlchemy's own work on it takes as long as the server's."""
    rows = _of_message(CANDIDATE, f"{is_free()} AND {queue_runs('p.queue')} AND {passes}")
    claims = claim_statement(
        f"candidate AS MATERIALIZED ({rows})",
        order="id",
        lonely_goes_first="false",  # a message ends, so its lonely ones get their turn
        logs=logs,
    )
    return to_psycopg_sql(claims)


def _unhindered(*, logs: bool) -> str:
    rows = _of_message("p.id", f"NOT {ALONE} AND {UNLIMITED} AND {ALL_RUN} AND {NO_QUEUE_SAYS}")
    taken = f"taken AS MATERIALIZED ({rows})"
    return to_psycopg_sql(claim_update(taken, of="p.{}".format, logs=logs))


PAYLOADS_UP_TO = 16 * 1024
"""Bytes as stored, so compressed. Larger payloads are fetched one by one: groups stay bounded."""
_DEFAULTS = {
    "retry": "text",
    "max_attempts": "smallint",
    "timeout_ms": "integer",
    "hard_timeout_ms": "integer",
}
_SAID = ", ".join(f"g.{column}" for column in _DEFAULTS)
_SAYS_ANYTHING = f"num_nonnulls({_SAID}) > 0"
QUEUE_SAYS = f"""says AS MATERIALIZED (
    SELECT jsonb_object_agg(g.queue, jsonb_build_array({_SAID})) AS defaults
    FROM {QUEUE} g WHERE {_SAYS_ANYTHING})"""
"""A CTE, read once a statement: what tasks that say nothing have of their queue."""


def of_queue(column: str) -> str:
    """Return the value that the row ``p`` has, or else its queue."""
    place = list(_DEFAULTS).index(column)
    said = f"(SELECT defaults FROM says) -> p.queue ->> {place}"
    return f"coalesce(p.{column}, CAST({said} AS {_DEFAULTS[column]}))"


def returned_columns(of: Callable[[str], str] = of_queue) -> str:
    """Return a fence without its token, then the other fields of a :class:`ClaimedTask` in order.

    ``of`` returns the value that the row or its queue has in a column.
    """
    return f"""
    p.id, p.attempt, p.name, p.queue, p.biz_key,
    CASE WHEN pg_column_size(p.payload) <= {PAYLOADS_UP_TO} THEN p.payload::text END AS payload,
    p.headers::text AS headers, p.failures, p.crashes, p.retry_level, p.max_attempts,
    p.at_most_once, {of("retry")}, {of("timeout_ms")}, {of("hard_timeout_ms")},
    p.idempotency_key::text AS key_text,
    date_part('epoch', p.created_at) AS created_s, date_part('epoch', p.due_at) AS due_s,
    p.cancel_requested_at IS NOT NULL AS cancel_requested, p.batch_id IS NOT NULL AS in_group
"""


_POLICY = "(SELECT policies FROM handler) -> p.name"
_AT_MOST_ONCE = f"coalesce(p.at_most_once, ({_POLICY} ->> 1)::boolean)"
_WITH = "\n    WITH handler AS MATERIALIZED (SELECT CAST(:handlers AS jsonb) AS policies), "
_CLAIM = """
    UPDATE {pending} p
    SET state = '{running}', attempt = p.attempt + 1, lease_token = :token, owner = :owner,
        lease_until = {now} + CAST(:lease AS interval), started_at = {now}, {unparked},
        max_attempts = {max_attempts}, at_most_once = {at_most_once}
    WHERE p.id = ANY(ARRAY(SELECT id FROM taken))
    RETURNING {returned}{more}
"""


def claim_update(
    taken: str, of: Callable[[str], str] = of_queue, more: str = "", *, logs: bool = False
) -> str:
    """Return the UPDATE of the ids that the CTE ``taken`` yields; ``more`` to return behind all.

    ``of`` returns the value that a row or its queue has in a column. ``logs``: with a line for each
    claim in the log of transitions.
    """
    claims = _CLAIM.format(
        pending=PENDING,
        running=State.RUNNING,
        now=NOW,
        unparked=UNPARKED,
        max_attempts=f"coalesce({of('max_attempts')}, ({_POLICY} ->> 0)::smallint)",
        at_most_once=_AT_MOST_ONCE,
        returned=returned_columns(of),
        more=more,
    )
    if not logs:
        return f"{_WITH}{taken}{claims}"
    claimed = f"claimed AS ({claims}){lines_of_claims('claimed')}"
    return f"{_WITH}{taken},\n    {claimed} SELECT * FROM claimed"


def claim_statement(
    candidates: str, *, order: str, lonely_goes_first: str, more: str = "", logs: bool = False
) -> str:
    """Return the claim of what the CTE ``candidate`` yields: what runs alone is taken alone."""
    taken = f"""{QUEUE_SAYS},
    {candidates},
    taken AS MATERIALIZED (
        SELECT * FROM candidate WHERE NOT alone AND NOT {lonely_goes_first}
        UNION ALL
        (SELECT * FROM candidate
         WHERE alone
           AND ({lonely_goes_first} OR NOT EXISTS (SELECT FROM candidate WHERE NOT alone))
         ORDER BY {order} LIMIT 1))"""
    return claim_update(taken, more=more, logs=logs)


ALONE = f"(p.crashes >= 1 OR {_AT_MOST_ONCE})"
CANDIDATE = f"p.id, p.priority, p.scan_at, {ALONE} AS alone"
KNOWN = "(SELECT policies FROM handler) ? p.name"
_UNGATED = _by_id(UNGATED, logs=False), _by_id(UNGATED, logs=True)
_ADMITTED = _by_id("true", logs=False), _by_id("true", logs=True)
_CLEAR = _by_id(CLEAR, logs=False), _by_id(CLEAR, logs=True)
NO_QUEUE_SAYS = f"NOT EXISTS (SELECT FROM {QUEUE} g WHERE {_SAYS_ANYTHING})"
"""The condition that every row has what it says itself."""
_UNHINDERED = _unhindered(logs=False), _unhindered(logs=True)
"""Each without and with lines in the log of transitions."""
_WAITING = text(f"""
    SELECT p.id FROM {PENDING} p
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)}""")
_PAYLOAD = text(f"""
    SELECT p.payload::text FROM {PENDING} p
    WHERE p.id = :id AND p.attempt = :attempt AND p.lease_token = :token
      AND p.state = '{State.RUNNING}'""")
_CLAIMS = text(f"""
    WITH {QUEUE_SAYS} SELECT {returned_columns()}, p.lease_token FROM {PENDING} p
    WHERE p.state = '{State.RUNNING}' AND p.owner = :owner ORDER BY p.id""")


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
    taken = {row[0]: task_of(row, token) for row in fetch(connection, Statement(statement, values))}
    return [taken.pop(task_id) for task_id in ids if task_id in taken]


def still_pending(connection: Connection, ids: Sequence[int]) -> list[int]:
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
    rows = plain_rows(connection.execute(_CLAIMS, {"owner": owner}))
    return [task_of(row, row[-1]) for row in rows]


_QUEUE = 1 + ClaimedTask._fields.index("queue")
END = 1 + len(ClaimedTask._fields)  # columns from here on are not the task's
_IN_TURN = itemgetter(END, 1 + ClaimedTask._fields.index("due_s"), 0)
"""By priority, then as they became due."""


def claim_next_statement(*, logs: bool, more: str = "true") -> str:
    """Return the statement; ``more``: a condition on the row ``p`` besides."""
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


LEFT_ALONE = f"""num_nonnulls(p.retry, p.timeout_ms, p.hard_timeout_ms) = 0
              AND NOT jsonb_exists(p.payload, '{REFERENCE_MARK}') AND NOT EXISTS (
                SELECT FROM {QUEUE} g WHERE g.queue = p.queue
                  AND num_nonnulls(g.retry, g.timeout_ms, g.hard_timeout_ms) > 0)"""
"""The condition that neither the row nor its queue has a time limit or a policy of its own, and
that the payload is in the row."""
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
    now: datetime | None = None,
) -> list[ClaimedTask]:
    """Take up to ``most`` due tasks straight from the pool, in order of priority.

    Without ``lonely`` none that has to run alone. What is due for longer than ``within`` is not
    read. It begins behind ``places``, and moves them behind what it took.
    """
    found = connection.execute(
        _NEXT_LOGGED if LOG.has_successes else _NEXT,
        {
            **values_of(claimer, token),
            "queues": list(queues),
            "most": most,
            "lonely": lonely,
            "within": within,
            "now": now,
            **scan_position_values(queues, places),
        },
    )
    rows = sorted(plain_rows(found), key=_IN_TURN)
    if places is not None:
        for row in rows:
            line, place = (row[_QUEUE], row[END]), (row[END + 1], row[0])
            places[line] = max(place, places.get(line, place))
    return [task_of(row, token) for row in rows]


@dataclass(frozen=True, slots=True)
class Claimer:
    """A child and the names that it knows. The handlers' policies are written into the rows."""

    owner: str
    lease: timedelta
    names: tuple[str, ...]
    max_attempts: tuple[int, ...]
    at_most_once: tuple[bool, ...]  # like ``max_attempts``: one entry for each of ``names``


def values_of(claimer: Claimer, token: UUID) -> dict[str, Any]:
    """Return what every claim is told."""
    return {
        "handlers": _handlers(claimer),
        "token": token,
        "owner": claimer.owner,
        "lease": claimer.lease,
    }


@lru_cache(maxsize=4)
def _handlers(claimer: Claimer) -> str:
    policies = zip(claimer.max_attempts, claimer.at_most_once, strict=True)
    return json.dumps(dict(zip(claimer.names, policies, strict=True)))


def task_of(row: Sequence[Any], token: UUID) -> ClaimedTask:
    """By ``tuple`` itself: with its nineteen arguments the class takes three times as long."""
    fence = tuple.__new__(Fence, (row[0], row[1], token))
    return tuple.__new__(ClaimedTask, (fence, *row[2:END]))


def plain_rows(result: CursorResult[Any]) -> Sequence[Any]:
    """Return the driver's own tuples: wrapping each in a row took as long as making its task."""
    rows = result.cursor.fetchall()
    result.close()
    return rows
