"""Who changes how a task waits meets claims, cancels and the scan, on two connections.

Of each pair one goes first and leaves its transaction open.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine

from tasks_app.domain.operations import WAITING, Amendment, BulkAction
from tasks_app.domain.tasks.states import State
from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.dispatch.set_aside import sweep
from tasks_app.pool.tasks.amend import amend
from tasks_app.pool.tasks.cancel import Cancelled, cancel
from tests.factory import pending_task, pool_of_task, row_of
from tests.pool.interleave import blocked, two
from tests.pool.runs.racing import Pair, committed, take

ACTIONS = sorted(WAITING - {BulkAction.ENABLE, BulkAction.RELEASE, BulkAction.RUN_NOW})
"""Those that change a task which is due, enabled and not held."""
CHANGES = {
    BulkAction.RESCHEDULE: Amendment(delay=timedelta(hours=1)),
    BulkAction.REPRIORITISE: Amendment(to_priority=0),
    BulkAction.MOVE: Amendment(to_queue="slow"),
}


@pytest.fixture
def pair(engine: Engine) -> Iterator[Pair]:
    with two(engine) as connections:
        yield connections


def do(connection: Connection, action: BulkAction, task_id: int) -> list[int]:
    return amend(connection, action, [task_id], CHANGES.get(action, Amendment()))


def found(connection: Connection) -> list[int]:
    return [i for rows in find_due(connection, {"default": 10}) for i in rows.ids]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_claim_is_open_then_the_verb_waits_and_leaves_what_runs_as_it_is(
    engine: Engine, pair: Pair, action: BulkAction
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    assert take(a, [task_id]) == [task_id]
    waiting = blocked(engine, b, a, lambda c: do(c, action, task_id))

    a.commit()

    assert waiting.result() == []
    row = row_of(b, task_id)
    assert (row.state, row.queue, row.priority, row.held_due_at) == ("RUNNING", "default", 5, None)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_verb_is_open_then_a_claim_passes_by(pair: Pair, action: BulkAction) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    assert do(a, action, task_id) == [task_id]

    assert take(b, [task_id]) == []
    b.rollback()
    a.rollback()

    assert take(b, [task_id]) == [task_id]


def test_a_hold_has_committed_then_nobody_claims_it(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    committed(a, do, BulkAction.HOLD, task_id)

    assert take(b, [task_id]) == []


def test_a_release_is_open_then_a_claim_takes_it_only_after_its_commit(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    committed(a, do, BulkAction.HOLD, task_id)
    do(a, BulkAction.RELEASE, task_id)

    assert take(b, [task_id]) == []
    b.rollback()
    a.commit()

    assert take(b, [task_id]) == [task_id]


def test_two_release_it_then_the_second_waits_and_changes_nothing(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    committed(a, do, BulkAction.HOLD, task_id)
    do(a, BulkAction.RELEASE, task_id)
    waiting = blocked(engine, b, a, lambda c: do(c, BulkAction.RELEASE, task_id))

    a.commit()

    assert waiting.result() == []


@pytest.mark.parametrize("action", ACTIONS)
def test_a_cancel_is_open_then_the_verb_waits_and_does_nothing(
    engine: Engine, pair: Pair, action: BulkAction
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    assert cancel(a, task_id) is Cancelled.CANCELLED
    waiting = blocked(engine, b, a, lambda c: do(c, action, task_id))

    a.commit()

    assert waiting.result() == []
    assert pool_of_task(b, task_id) == "completed CANCELLED"


@pytest.mark.parametrize("action", ACTIONS)
def test_a_verb_is_open_then_a_cancel_waits_and_cancels(
    engine: Engine, pair: Pair, action: BulkAction
) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    before = row_of(a, task_id).due_at
    do(a, action, task_id)
    waiting = blocked(engine, b, a, lambda c: cancel(c, task_id))

    a.commit()

    assert waiting.result() is Cancelled.CANCELLED
    row = row_of(b, task_id, "task_completed")
    assert (row.due_at == before) == (action is not BulkAction.RESCHEDULE)


def test_a_cancel_is_open_then_run_now_waits_and_does_nothing(engine: Engine, pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task, delay="1h")
    cancel(a, task_id)
    waiting = blocked(engine, b, a, lambda c: do(c, BulkAction.RUN_NOW, task_id))

    a.commit()

    assert waiting.result() == []


def test_run_now_is_open_then_a_hold_waits_and_holds_what_is_due_by_then(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    task_id = committed(a, pending_task, delay="1h")
    do(a, BulkAction.RUN_NOW, task_id)
    became = row_of(a, task_id).due_at
    waiting = blocked(engine, b, a, lambda c: do(c, BulkAction.HOLD, task_id))

    a.commit()

    assert waiting.result() == [task_id]
    assert row_of(b, task_id).held_due_at == became


def test_a_scan_has_found_it_before_the_hold_then_its_message_claims_nothing(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task)
    assert found(b) == [task_id]
    b.rollback()
    committed(a, do, BulkAction.HOLD, task_id)

    assert found(b) == []
    assert take(b, [task_id]) == []


def test_a_hold_is_open_then_a_sweep_passes_by_and_the_disabled_task_stays(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task, enabled=False)
    do(a, BulkAction.HOLD, task_id)

    assert sweep(b, [task_id]) == {}
    b.rollback()
    a.commit()

    assert sweep(b, [task_id]) == {}
    assert pool_of_task(b, task_id) == "pending PENDING"


def test_a_sweep_is_open_then_the_hold_waits_and_it_is_over(engine: Engine, pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task, enabled=False)
    assert sweep(a, [task_id]) == {task_id: State.SKIPPED}
    waiting = blocked(engine, b, a, lambda c: do(c, BulkAction.HOLD, task_id))

    a.commit()

    assert waiting.result() == []
