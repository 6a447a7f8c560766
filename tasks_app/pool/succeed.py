"""Succeed: the settle of one success in the transaction of its effects, in as little as it takes.

On psycopg's own connection. Its pipeline, in which the COMMIT would travel along, saves a round
trip and costs more time than that.
"""

from __future__ import annotations

from typing import Any

import psycopg

from tasks_app.domain.group import Called
from tasks_app.domain.states import Event, State
from tasks_app.domain.task import Settlement
from tasks_app.pool.groups.count import LOCKED, counting, locking
from tasks_app.pool.plan import Ask
from tasks_app.pool.raw import ado, do
from tasks_app.pool.tables import CARRIED, COMPLETED, PENDING, admits

_KEPT = ", ".join(CARRIED)
_NOW = "statement_timestamp()"


def _statement(condition: str, first: str = "", also: str = "", told: str = "") -> str:
    return f"""
    WITH {first}gone AS (
        DELETE FROM {PENDING} p
        WHERE p.id = %(id)s AND {admits(Event.SUCCEED)} AND p.attempt = %(attempt)s
          AND p.lease_token = %(token)s AND {condition}
        RETURNING p.*) {also}
    INSERT INTO {COMPLETED} ({_KEPT}, state, result, run_ms, finished_at)
    SELECT {_KEPT}, '{State.SUCCEEDED}', %(result)s::jsonb, %(run_ms)s::integer, {_NOW}
    FROM gone {told}
"""


_GROUP = f"SELECT p.batch_id FROM {PENDING} p WHERE p.id = %(id)s"
_SUCCEED = _statement("p.batch_id IS NULL", told="RETURNING id")
_MEMBER = _statement(
    LOCKED,
    f"{locking(_GROUP)}, ",
    f", {counting('gone', succeeds='true', now=_NOW)}",
    "RETURNING (SELECT jsonb_build_array(c.id, c.queue, c.wait_s)"
    " FROM called c WHERE c.wait_s IS NOT NULL)",
)
"""Of a group, which is counted: for those whom the first statement did not find."""


def succeed(
    connection: psycopg.Connection[Any], settlement: Settlement, called: list[Called] | None = None
) -> bool:
    """Write one success, waiting for its row and group; False: the fence is lost: do not commit.

    A callback that was inserted is added to ``called``.
    """
    values = _values(settlement)
    if do(connection, Ask(_SUCCEED, values)):
        return True
    return _counted(connection.execute(_MEMBER, values, prepare=True).fetchone(), called)


async def asucceed(
    connection: psycopg.AsyncConnection[Any],
    settlement: Settlement,
    called: list[Called] | None = None,
) -> bool:
    """Do the same on an async connection."""
    values = _values(settlement)
    if await ado(connection, Ask(_SUCCEED, values)):
        return True
    cursor = await connection.execute(_MEMBER, values, prepare=True)
    return _counted(await cursor.fetchone(), called)


def _counted(row: Any, called: list[Called] | None) -> bool:
    if row is not None and row[0] is not None and called is not None:
        called.append(Called(*row[0]))
    return row is not None


def _values(settlement: Settlement) -> dict[str, Any]:
    fence = settlement.fence
    return {
        "id": fence.task_id,
        "attempt": fence.attempt,
        "token": fence.token,
        "result": settlement.result,
        "run_ms": settlement.run_ms,
    }
