"""What of a fair queue is read: a little of each line, however much stands behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.admission import FairQueueKey
from tasks_app.pool.flow_control import fair_queues
from tests.factory import pending_task
from tests.pool.plans import prepared

MANY = 20_000
BACKLOG = text("""
    INSERT INTO task_pending (name, fair_key, priority)
    SELECT 't', 'big', 5 FROM generate_series(1, :many)
""")
WANTED: Mapping[FairQueueKey, int] = dict.fromkeys(
    [FairQueueKey("big", 5), FairQueueKey("small", 5), FairQueueKey("", 5)], 10
)


@pytest.fixture
def backlog(connection: Connection) -> Connection:
    connection.execute(BACKLOG, {"many": MANY})
    pending_task(connection, fair_key="small", priority=0)
    pending_task(connection, fair_key="small", queue="default2")
    pending_task(connection, fair_key="small", priority=9, delay="1h")
    connection.execute(text("SET LOCAL plan_cache_mode = force_generic_plan"))
    connection.execute(text("SET LOCAL enable_seqscan = off"))
    connection.execute(text("SET LOCAL enable_bitmapscan = off"))
    return connection


READ: dict[str, Callable[[Connection], Any]] = {
    "lines": lambda c: fair_queues.fair_lines(c, "default"),
    "heads": lambda c: fair_queues.first_of_lines(c, "default", WANTED, {1: 0.0}),
    "heads_locked": lambda c: fair_queues.first_of_lines(c, "default", WANTED, {}, lock=True),
}


@pytest.mark.parametrize("name", READ)
def test_a_backlog_is_not_read(backlog: Connection, name: str) -> None:
    plan = prepared(backlog, f"fair_{name}", READ[name]).run(backlog)

    assert not plan.whole
    assert plan.rows < 300
    assert plan.buffers < 1_000
    assert "task_pending_fair" in plan.indexes


def test_lines_are_those_with_something_that_waits(backlog: Connection) -> None:
    found, on = fair_queues.fair_lines(backlog, "default")

    assert [line for line in found if line.key] == [
        FairQueueKey("big", 5),
        FairQueueKey("small", 0),
        FairQueueKey("small", 9),
    ]
    assert on == ""


def test_heads_are_due_and_in_their_order(backlog: Connection) -> None:
    found, _ = fair_queues.fair_lines(backlog, "default")
    heads = fair_queues.first_of_lines(backlog, "default", dict.fromkeys(found, 3), {})

    ids = {line: [head.id for head in some] for line, some in heads.items()}
    assert {line: len(some) for line, some in ids.items()} == {
        FairQueueKey("big", 5): 3,
        FairQueueKey("small", 0): 1,
    }
    assert ids[FairQueueKey("big", 5)] == sorted(ids[FairQueueKey("big", 5)])


def test_what_is_disabled_or_expired_is_told(connection: Connection) -> None:
    disabled = pending_task(connection, fair_key="a", enabled=False)

    heads = fair_queues.first_of_lines(connection, "default", {FairQueueKey("a", 5): 3}, {})

    assert [(head.id, head.barred) for head in heads[FairQueueKey("a", 5)]] == [(disabled, True)]


def test_a_key_is_kept_through_a_life(connection: Connection) -> None:
    """Moves between pools carry it, and so does a requeue."""
    from tasks_app.pool.tasks.cancel import cancel
    from tasks_app.pool.tasks.requeue import requeue

    task_id = pending_task(connection, fair_key="tenant:7")
    cancel(connection, task_id)
    requeue(connection, task_id)

    query = text("SELECT fair_key FROM task_pending WHERE id = :id")
    assert connection.execute(query, {"id": task_id}).scalar() == "tenant:7"
