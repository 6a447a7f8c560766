"""Amend: another payload for the attempts to come, under the fence."""

from __future__ import annotations

from uuid import uuid4

from sqlalchemy import Connection

from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.amend import replace_payload
from tests.factory import claimed_task, ending, row_of


def test_the_run_that_holds_the_task_changes_its_payload(connection: Connection) -> None:
    task = claimed_task(connection, payload={"n": 1})

    assert replace_payload(connection, task.fence, '{"n": 2}')
    settle_one(connection, ending(task, Event.RETRY))

    assert row_of(connection, task.task_id).payload == {"n": 2}


def test_a_lost_fence_changes_nothing(connection: Connection) -> None:
    task = claimed_task(connection, payload={"n": 1})

    other = replace_payload(connection, task.fence._replace(token=uuid4()), '{"n": 2}')
    older = replace_payload(connection, task.fence._replace(attempt=0), '{"n": 2}')
    settle_one(connection, ending(task, Event.RETRY))
    settled = replace_payload(connection, task.fence, '{"n": 2}')

    assert (other, older, settled) == (False, False, False)
    assert row_of(connection, task.task_id).payload == {"n": 1}
