"""Succeed: the settle of one success in the transaction of its effects, in as little as it takes.

On psycopg's own connection. Its pipeline, in which the COMMIT would travel along, saves a round
trip and costs more time than that.
"""

from __future__ import annotations

from typing import Any

import psycopg

from tasks_app.domain.states import Event, State
from tasks_app.domain.task import Settlement
from tasks_app.pool.tables import CARRIED, COMPLETED, PENDING, admits

_KEPT = ", ".join(CARRIED)
_SUCCEED = f"""
    WITH gone AS (
        DELETE FROM {PENDING} p
        WHERE p.id = %s AND {admits(Event.SUCCEED)} AND p.attempt = %s AND p.lease_token = %s
        RETURNING p.*)
    INSERT INTO {COMPLETED} ({_KEPT}, state, result, run_ms, finished_at)
    SELECT {_KEPT}, '{State.SUCCEEDED}', %s::jsonb, %s::integer, statement_timestamp()
    FROM gone
"""


def succeed(connection: psycopg.Connection[Any], settlement: Settlement) -> bool:
    """Write one success, waiting for its row; False: the fence is lost, so do not commit."""
    return connection.execute(_SUCCEED, _values(settlement), prepare=True).rowcount == 1


async def asucceed(connection: psycopg.AsyncConnection[Any], settlement: Settlement) -> bool:
    """Do the same on an async connection."""
    cursor = await connection.execute(_SUCCEED, _values(settlement), prepare=True)
    return cursor.rowcount == 1


def _values(settlement: Settlement) -> tuple[Any, ...]:
    fence = settlement.fence
    return (
        fence.task_id,
        fence.attempt,
        fence.token,
        settlement.result,
        settlement.run_ms,
    )
