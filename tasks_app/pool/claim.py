"""Claim: compare-and-set from PENDING to RUNNING. COMMIT before any handler starts.

The CTE is MATERIALIZED because ``IN (SELECT … LIMIT n FOR UPDATE SKIP LOCKED)`` may be run again
and again by a nested loop and then takes more than n rows.
"""

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

from tasks_app.domain.states import Event, State
from tasks_app.domain.task import HINT_WAIT, ClaimedTask, Fence
from tasks_app.pool.drivers import ask, in_psycopgs_words
from tasks_app.pool.fences import array
from tasks_app.pool.places import BEHIND, NUMBERED, Place, place_values
from tasks_app.pool.plan import Ask
from tasks_app.pool.queue_defaults import NO_QUEUE_SAYS, QUEUE_SAYS, of_queue
from tasks_app.pool.standstill import ALL_RUN, is_free, runs
from tasks_app.pool.tables import NOW, PENDING, READY, UNGATED, UNLIMITED, admits, admits_by_id

PAYLOADS_UP_TO = 16 * 1024
"""Bytes as stored, so compressed. Larger payloads are fetched one by one: groups stay bounded."""


@dataclass(frozen=True, slots=True)
class Claimer:
    """Who claims, and what of. The handlers' policies are written into the rows."""

    owner: str
    lease: timedelta
    names: tuple[str, ...]
    max_attempts: tuple[int, ...]
    at_most_once: tuple[bool, ...]
    """Like ``max_attempts``: one entry for each of ``names``."""


def _returned(of: Callable[[str], str] = of_queue) -> str:
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
    p.cancel_requested_at IS NOT NULL AS cancel_requested
"""


_POLICY = "(SELECT policies FROM handler) -> p.name"
_AT_MOST_ONCE = f"coalesce(p.at_most_once, ({_POLICY} ->> 1)::boolean)"

_END = 1 + len(ClaimedTask._fields)
"""What a statement returns beyond is not the task's."""
_QUEUE = 1 + ClaimedTask._fields.index("queue")
_IN_TURN = itemgetter(_END, 1 + ClaimedTask._fields.index("due_s"), 0)
"""By priority, then as they became due."""

_CLAIM = """
    WITH handler AS MATERIALIZED (SELECT CAST(:handlers AS jsonb) AS policies), {taken}
    UPDATE {pending} p
    SET state = '{running}', attempt = p.attempt + 1, lease_token = :token, owner = :owner,
        lease_until = {now} + CAST(:lease AS interval), started_at = {now}, parked = NULL,
        max_attempts = {max_attempts}, at_most_once = {at_most_once}
    WHERE p.id = ANY(ARRAY(SELECT id FROM taken))
    RETURNING {returned}{more}
"""


def _update(taken: str, of: Callable[[str], str] = of_queue, more: str = "") -> str:
    return _CLAIM.format(
        taken=taken,
        pending=PENDING,
        running=State.RUNNING,
        now=NOW,
        max_attempts=f"coalesce({of('max_attempts')}, ({_POLICY} ->> 0)::smallint)",
        at_most_once=_AT_MOST_ONCE,
        returned=_returned(of),
        more=more,
    )


def _statement(candidates: str, *, order: str, lonely_goes_first: str, more: str = "") -> str:
    taken = f"""{QUEUE_SAYS},
    {candidates},
    taken AS MATERIALIZED (
        SELECT * FROM candidate WHERE NOT alone AND NOT {lonely_goes_first}
        UNION ALL
        (SELECT * FROM candidate
         WHERE alone
           AND ({lonely_goes_first} OR NOT EXISTS (SELECT FROM candidate WHERE NOT alone))
         ORDER BY {order} LIMIT 1))"""
    return _update(taken, more=more)


_ALONE = f"(p.crashes >= 1 OR {_AT_MOST_ONCE})"
_CANDIDATE = f"p.id, p.priority, p.scan_at, {_ALONE} AS alone"
_KNOWN = "(SELECT policies FROM handler) ? p.name"


def _of_message(columns: str, passes: str) -> str:
    return f"""
        SELECT {columns} FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {_KNOWN} AND {READY}
          AND {admits_by_id(Event.CLAIM)} AND {passes}
        ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED"""


def _by_id(passes: str) -> str:
    """Return it in psycopg's words: what SQLAlchemy does with it takes as long as the server."""
    rows = _of_message(_CANDIDATE, f"{is_free()} AND {runs('p.queue')} AND {passes}")
    statement = _statement(
        f"candidate AS MATERIALIZED ({rows})",
        order="id",
        lonely_goes_first="false",  # a message ends, so its lonely ones get their turn
    )
    return in_psycopgs_words(statement)


_UNGATED, _ADMITTED = _by_id(UNGATED), _by_id("true")

_UNHINDERED = in_psycopgs_words(
    _update(
        "taken AS MATERIALIZED ("
        + _of_message("p.id", f"NOT {_ALONE} AND {UNLIMITED} AND {ALL_RUN} AND {NO_QUEUE_SAYS}")
        + ")",
        of="p.{}".format,
    )
)

_NEXT = text(
    _statement(
        f"""
    candidate AS MATERIALIZED (
        SELECT p.*
        FROM unnest(CAST(:queues AS text[])) WITH ORDINALITY AS q(queue, number)
        CROSS JOIN generate_series(0, 9) AS r(priority)
        {NUMBERED}
        CROSS JOIN LATERAL (
            SELECT {_CANDIDATE} FROM {PENDING} p
            WHERE p.queue = q.queue AND p.priority = r.priority
              AND p.scan_at <= {NOW} + CAST(:hint_wait AS interval)
              AND {BEHIND}
              AND (p.scan_at <= {NOW} OR p.parked IS NULL)
              AND {admits(Event.CLAIM)} AND {_KNOWN} AND {READY} AND {is_free()} AND {UNGATED}
              AND (CAST(:lonely AS boolean) OR NOT {_ALONE})
            ORDER BY p.scan_at, p.id LIMIT :most FOR NO KEY UPDATE SKIP LOCKED) AS p
        WHERE {runs("q.queue")}
        ORDER BY p.priority, p.scan_at, p.id LIMIT :most)
    """,
        order="priority, scan_at, id",
        # The pool need never run out of others: who is first in line goes first.
        lonely_goes_first="(SELECT alone FROM candidate ORDER BY priority, scan_at, id LIMIT 1)",
        more=", p.priority, date_part('epoch', p.scan_at)",
    )
)

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
    WITH {QUEUE_SAYS} SELECT {_returned()}, p.lease_token FROM {PENDING} p
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

    Not those that gates stand before, unless they are ``admitted``. A task that is
    ``at_most_once``, or was on board of a crash, is only ever taken alone: then the list has one
    entry and a second call may find more.
    """
    statement = _ADMITTED if admitted else _UNGATED
    return _claimed(connection, statement, ids, claimer, token, now)


def claim_unhindered(
    connection: Connection,
    ids: Sequence[int],
    claimer: Claimer,
    token: UUID,
    *,
    now: datetime | None = None,
) -> list[ClaimedTask]:
    """Take what :func:`claim` would, or a part of it, or nothing: at two thirds of its price.

    It knows no exceptions. Nothing is taken while any queue or name stands still or is limited, or
    any queue has defaults of its own; and nothing ever that would have to run alone.
    """
    return _claimed(connection, _UNHINDERED, ids, claimer, token, now)


def _claimed(
    connection: Connection,
    statement: str,
    ids: Sequence[int],
    claimer: Claimer,
    token: UUID,
    now: datetime | None,
) -> list[ClaimedTask]:
    values = {**_values(claimer, token), "ids": array(sorted(map(int, ids))), "now": now}
    taken = {row[0]: _task(row, token) for row in ask(connection, Ask(statement, values))}
    return [taken.pop(task_id) for task_id in ids if task_id in taken]


def waiting(connection: Connection, ids: Sequence[int]) -> list[int]:
    """Return those of ``ids`` that nobody has taken yet, in their order. Only a read."""
    there = set(connection.execute(_WAITING, {"ids": array(map(int, ids))}).scalars())
    return [task_id for task_id in ids if task_id in there]


def claim_next(  # noqa: PLR0913  who, what and how much of it, by keyword
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

    Also those that the scan leaves to their hint: who claims here hears no hints. Without
    ``lonely`` none that would have to run alone. ``within`` leaves out what is due for longer, and
    does not read it. It begins behind ``places``, which are moved on behind what was taken.
    """
    found = connection.execute(
        _NEXT,
        {
            **_values(claimer, token),
            "queues": list(queues),
            "most": most,
            "lonely": lonely,
            "within": within,
            "hint_wait": HINT_WAIT,
            "now": now,
            **place_values(queues, places),
        },
    )
    rows = sorted(plain(found), key=_IN_TURN)
    if places is not None:
        for row in rows:
            line, place = (row[_QUEUE], row[_END]), (row[_END + 1], row[0])
            places[line] = max(place, places.get(line, place))
    return [_task(row, token) for row in rows]


def fetch_payload(connection: Connection, fence: Fence) -> str | None:
    """Return a large payload as JSON text, or None: the fence is lost."""
    values = {"id": fence.task_id, "attempt": fence.attempt, "token": fence.token}
    payload: str | None = connection.execute(_PAYLOAD, values).scalar()
    return payload


def claims_of(connection: Connection, owner: str) -> list[ClaimedTask]:
    """Return what a child still holds, lowest id first. Only a read: act on it by the fence."""
    rows = plain(connection.execute(_CLAIMS, {"owner": owner}))
    return [_task(row, row[-1]) for row in rows]


def _values(claimer: Claimer, token: UUID) -> dict[str, Any]:
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


def _task(row: Sequence[Any], token: UUID) -> ClaimedTask:
    """By ``tuple`` itself: with its eighteen arguments the class takes three times as long."""
    fence = tuple.__new__(Fence, (row[0], row[1], token))
    return tuple.__new__(ClaimedTask, (fence, *row[2:_END]))


def plain(result: CursorResult[Any]) -> Sequence[Any]:
    """Return the driver's own tuples: wrapping each in a row took as long as making its task."""
    rows = result.cursor.fetchall()
    result.close()
    return rows
