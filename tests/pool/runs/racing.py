"""Two transactions that meet at one task."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection

from tasks_app.domain.tasks.run import Cause, ClaimedTask, Fence, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.runs import settle_success
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import rescue_expired
from tests.factory import LEASE, claimer, ending

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


WAITING, RUNNING, OVER_OF_QUERY_PLANS = (
    range(1, 8_001),
    range(10_001, 10_501),
    range(20_001, 20_101),
)
TOKEN = UUID(int=7)
GROUP = 200
STEPS_A_ROW = 16
"""Twice what the longest of the statements needs; a plan that goes wrong needs hundreds."""
PAGES_A_ROW = 30
FILL = f"""
INSERT INTO task_pending (id, name, queue, priority, due_at, scan_at)
    SELECT n, 'n' || n % 50, 'q' || n % 4, n % 10, d, d
    FROM generate_series({WAITING.start}, {WAITING.stop - 1}) AS n
    CROSS JOIN LATERAL (SELECT now() + (n % 2 * 2 - 1) * interval '1h') AS x(d);
INSERT INTO task_pending (id, name, state, attempt, lease_token, lease_until, owner, started_at,
        max_attempts, at_most_once)
    SELECT n, 'n1', 'RUNNING', 1, '{TOKEN}'::uuid, now() + interval '1h', 'w1', now(), 3, false
    FROM generate_series({RUNNING.start}, {RUNNING.stop - 1}) AS n
    UNION ALL
    SELECT n, 'n1', 'RUNNING', 1, '{TOKEN}'::uuid, now() - interval '1h', 'w2', now(), 3, false
    FROM generate_series({OVER_OF_QUERY_PLANS.start}, {OVER_OF_QUERY_PLANS.stop - 1}) AS n;
INSERT INTO task_completed (id, name, state)
    SELECT n, 'n1', 'SUCCEEDED' FROM generate_series(100001, 108000) AS n;
INSERT INTO task_error (id, name, state)
    SELECT n, 'n1', 'FAILED' FROM generate_series(200001, 208000) AS n;
"""
NAMES = tuple(f"n{n}" for n in range(50))


def some_outcome(task_id: int) -> Settlement:
    """One in ten fails, one in ten is tried again."""
    cause = Cause("E", "m", "t")
    fence = Fence(task_id, 1, TOKEN)
    match task_id % 10:
        case 0:
            return Settlement(fence, Event.FAIL, 1, 0, cause=cause)
        case 1:
            return Settlement(fence, Event.RETRY, 1, 1, wait=timedelta(seconds=1), cause=cause)
        case _:
            return Settlement(fence, Event.SUCCEED, 0, 0, result='"r"', run_ms=1)


def last_word(way: str = "") -> tuple[str, dict[str, Any]]:
    """Return what ends a run in the words of psycopg, and its values for the first one."""
    fence = some_outcome(RUNNING[2]).fence
    values = {"id": fence.task_id, "attempt": fence.attempt, "token": fence.token}
    values |= {"result": None, "run_ms": None, "said": None}
    names, sql = [*values], settle_success._WORDS[way, False][1].decode()
    return re.sub(r"\$(\d)", lambda place: f"%({names[int(place[1]) - 1]})s", sql), values
