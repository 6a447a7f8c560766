"""Sub-status: what a run says of the state of its task while it goes on."""

from __future__ import annotations

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.run import Fence
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import PENDING

_SAY = text(f"""
    UPDATE {PENDING} SET sub_status = nullif(:said, '')
    WHERE id = :id AND attempt = :attempt AND lease_token = :token AND state = '{State.RUNNING}'
""")


def say(connection: Connection, fence: Fence, said: str) -> None:
    """Write it if the fence holds; an empty text takes it away."""
    of = {"id": fence.task_id, "attempt": fence.attempt, "token": fence.token}
    connection.execute(_SAY, {**of, "said": said})
