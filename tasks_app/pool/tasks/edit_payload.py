"""Edit payload: a task gets another payload, from its own run or from an operator."""

from __future__ import annotations

from sqlalchemy import Connection, text

from tasks_app.domain.operations.author import NOBODY, Author
from tasks_app.domain.operations import BulkAction
from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.pool.fragments.operator_lines import tell
from tasks_app.pool.tables import ERROR, PENDING

_AMEND = text(f"""
    UPDATE {PENDING} SET payload = CAST(:payload AS jsonb)
    WHERE id = :task_id AND attempt = :attempt AND lease_token = :token
      AND state = '{State.RUNNING}'
    RETURNING id
""")

_EDIT = {
    pool: text(f"""
        UPDATE {table} t SET payload = CAST(:payload AS jsonb), changed_at = statement_timestamp()
        WHERE t.id = :id AND t.state = '{state}' RETURNING t.id
    """)
    for pool, table, state in (
        (Pool.PENDING, PENDING, State.PENDING),
        (Pool.ERROR, ERROR, State.FAILED),
    )
}


def amend(connection: Connection, fence: Fence, payload: str) -> bool:
    """Replace the payload, JSON text; False: the fence is lost, and nothing was written."""
    values = {**fence._asdict(), "payload": payload}
    return connection.execute(_AMEND, values).first() is not None


def edit(
    connection: Connection, pool: Pool, task_id: int, payload: str, *, by: Author = NOBODY
) -> bool:
    """Give a task that waits, or has failed, another payload, JSON text; False: there is none."""
    values = {"id": task_id, "payload": payload}
    done = connection.execute(_EDIT[pool], values).first() is not None
    tell(connection, BulkAction.EDIT, [task_id] if done else [], by, pool=pool)
    return done
