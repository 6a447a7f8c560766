"""Succeed: the settle of one success in the transaction of its effects, in as little as it takes.

On psycopg's own connection, so that its COMMIT may travel in the same round trip. For that the
statement has to fail where others return no row: an effect without its outcome must never commit.
"""

from __future__ import annotations

from typing import Any

import psycopg

from tasks_app.domain.states import Event, State
from tasks_app.domain.task import Settlement
from tasks_app.pool.tables import CARRIED, COMPLETED, PENDING, admits

FENCE_LOST = "22012"
"""SQLSTATE of the division by the number of rows that moved, when that is none."""

_WRITTEN = ("failures", "retry_level")
_KEPT = ", ".join(c for c in CARRIED if c not in _WRITTEN)
_SUCCEED = f"""
    WITH gone AS (
        DELETE FROM {PENDING} p
        WHERE p.id = %s AND {admits(Event.SUCCEED)} AND p.attempt = %s AND p.lease_token = %s
        RETURNING p.*),
    moved AS (
        INSERT INTO {COMPLETED}
            ({_KEPT}, failures, retry_level, state, result, run_ms, finished_at)
        SELECT {_KEPT}, %s::smallint, %s::smallint, '{State.SUCCEEDED}', %s::jsonb, %s::integer,
            statement_timestamp()
        FROM gone RETURNING id)
    SELECT 1 / count(*) FROM moved
"""


def succeed(connection: psycopg.Connection[Any], settlement: Settlement) -> None:
    """Write one success, waiting for its row.

    Raises:
        psycopg.Error: with ``FENCE_LOST``, it is not ours any more; the transaction is of no use.
    """
    connection.execute(_SUCCEED, _values(settlement), prepare=True)


async def asucceed(connection: psycopg.AsyncConnection[Any], settlement: Settlement) -> None:
    """Do the same on an async connection.

    Raises:
        psycopg.Error: as above.
    """
    await connection.execute(_SUCCEED, _values(settlement), prepare=True)


def _values(settlement: Settlement) -> tuple[Any, ...]:
    fence = settlement.fence
    return (
        fence.task_id,
        fence.attempt,
        fence.token,
        settlement.failures,
        settlement.retry_level,
        settlement.result,
        settlement.run_ms,
    )
