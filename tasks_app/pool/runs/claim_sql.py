"""What all claims share: the claimer, the UPDATE, and tasks made of what it returns.

The CTE is MATERIALIZED because ``IN (SELECT … LIMIT n FOR UPDATE SKIP LOCKED)`` may be run again
and again by a nested loop and then takes more than n rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import CursorResult

from tasks_app.domain.tasks.run import ClaimedTask, Fence
from tasks_app.domain.tasks.states import State
from tasks_app.pool.fragments.parked import UNPARKED
from tasks_app.pool.fragments.transition_log import lines_of_claims
from tasks_app.pool.tables import NOW, PENDING, QUEUE

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
NO_QUEUE_SAYS = f"NOT EXISTS (SELECT FROM {QUEUE} g WHERE {_SAYS_ANYTHING})"
"""The condition that every row has what it says itself."""


@dataclass(frozen=True, slots=True)
class Claimer:
    """A child and the names that it knows. The handlers' policies are written into the rows."""

    owner: str
    lease: timedelta
    names: tuple[str, ...]
    max_attempts: tuple[int, ...]
    at_most_once: tuple[bool, ...]
    """Like ``max_attempts``: one entry for each of ``names``."""


def of_queue(column: str) -> str:
    """Return the value that the row ``p`` has, or else its queue."""
    place = list(_DEFAULTS).index(column)
    said = f"(SELECT defaults FROM says) -> p.queue ->> {place}"
    return f"coalesce(p.{column}, CAST({said} AS {_DEFAULTS[column]}))"


def returned(of: Callable[[str], str] = of_queue) -> str:
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

END = 1 + len(ClaimedTask._fields)
"""Columns from here on are not the task's."""

_WITH = "\n    WITH handler AS MATERIALIZED (SELECT CAST(:handlers AS jsonb) AS policies), "
_CLAIM = """
    UPDATE {pending} p
    SET state = '{running}', attempt = p.attempt + 1, lease_token = :token, owner = :owner,
        lease_until = {now} + CAST(:lease AS interval), started_at = {now}, {unparked},
        max_attempts = {max_attempts}, at_most_once = {at_most_once}
    WHERE p.id = ANY(ARRAY(SELECT id FROM taken))
    RETURNING {returned}{more}
"""


def update(
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
        returned=returned(of),
        more=more,
    )
    if not logs:
        return f"{_WITH}{taken}{claims}"
    claimed = f"claimed AS ({claims}){lines_of_claims('claimed')}"
    return f"{_WITH}{taken},\n    {claimed} SELECT * FROM claimed"


def statement(
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
    return update(taken, more=more, logs=logs)


ALONE = f"(p.crashes >= 1 OR {_AT_MOST_ONCE})"
CANDIDATE = f"p.id, p.priority, p.scan_at, {ALONE} AS alone"
KNOWN = "(SELECT policies FROM handler) ? p.name"


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


def plain(result: CursorResult[Any]) -> Sequence[Any]:
    """Return the driver's own tuples: wrapping each in a row took as long as making its task."""
    rows = result.cursor.fetchall()
    result.close()
    return rows
