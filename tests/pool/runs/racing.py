"""Two transactions that meet at one task."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection

from tasks_app.domain.tasks.run import Cause, ClaimedTask
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import rescue_expired
from tests.factory import (
    LEASE,
    claimer,
    ending,
)

OVER = timedelta(0)
"""A lease that is over as soon as it is given, so that no test waits for one."""


Pair = tuple[Connection, Connection]


def committed(connection: Connection, make: Callable[..., Any], *args, **options) -> Any:
    made = make(connection, *args, **options)
    connection.commit()
    return made


def take(connection: Connection, ids) -> list[int]:
    return [task.task_id for task in claim(connection, ids, claimer(), uuid4())]


def rescue(connection: Connection) -> dict[int, State]:
    return rescue_expired(connection, lease=LEASE, max_crashes=5)


def failing(task: ClaimedTask):
    return ending(task, Event.FAIL, failures=1, cause=Cause("E", "no"))
