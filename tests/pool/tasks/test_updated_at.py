"""updated_at: the instant of the last change of a task, whatever changed it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.operations import WAITING, BulkAction, parse_amendment
from tasks_app.domain.tasks.records import OnConflict
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event, Pool
from tasks_app.pool.dispatch.set_aside import sweep
from tasks_app.pool.runs.leases import release, renew, rescue_expired
from tasks_app.pool.runs.settle import settle_group, settle_one
from tasks_app.pool.tasks.amend import amend, change_payload, spread
from tasks_app.pool.tasks.browse import get
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.create import create_one
from tasks_app.pool.tasks.requeue import requeue
from tests.factory import LEASE, a_row, claimed_task, ending, pending_task

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CAUSE = Cause("E", "no")
HOUR = timedelta(hours=1)


def updated_at(connection: Connection, task_id: int) -> datetime | None:
    task = get(connection, task_id)
    assert task is not None
    shown = connection.execute(
        text("SELECT updated_at FROM task_all WHERE id = :id"), {"id": task_id}
    ).scalar_one()
    assert task.updated_at == shown
    return task.updated_at


@pytest.mark.parametrize("settle", [settle_one, lambda c, s, now: settle_group(c, [s], now=now)])
def test_it_is_the_instant_of_each_move(connection: Connection, settle: Any) -> None:
    task_id, now = pending_task(connection, now=NOON), NOON
    assert updated_at(connection, task_id) == NOON

    def ends(event: Event) -> None:
        nonlocal now
        now += HOUR
        task = claimed_task(connection, task_id, now=now)
        assert updated_at(connection, task_id) == now
        now += HOUR / 2
        renew(connection, [task.fence], LEASE, now=now - HOUR / 4)
        settle(connection, ending(task, event, wait=timedelta(0), cause=CAUSE), now=now)
        assert updated_at(connection, task_id) == now

    for back in (Event.RETRY, Event.SNOOZE):
        ends(back)
    for end in (Event.FAIL, Event.SKIP, Event.CANCEL, Event.SUCCEED):
        ends(end)
        now += HOUR
        requeue(connection, task_id, now=now)
        assert updated_at(connection, task_id) == now


def test_it_is_the_instant_at_which_a_claim_is_given_back(connection: Connection) -> None:
    given, lost = (claimed_task(connection, now=NOON) for _ in range(2))
    release(connection, [given.fence], now=NOON + HOUR)
    rescue_expired(connection, lease=LEASE, max_crashes=5, now=NOON + HOUR)

    assert updated_at(connection, given.task_id) == NOON + HOUR
    assert updated_at(connection, lost.task_id) == NOON + HOUR


def test_it_is_the_instant_of_a_cancel_or_a_sweep(connection: Connection) -> None:
    waiting, off = (pending_task(connection, now=NOON, enabled=e) for e in (True, False))
    running = claimed_task(connection, now=NOON).task_id
    for task_id in (waiting, running):
        cancel(connection, task_id, now=NOON + HOUR)
    sweep(connection, [off], now=NOON + HOUR)

    for task_id in (waiting, off, running):
        assert updated_at(connection, task_id) == NOON + HOUR


BEFORE = {BulkAction.RELEASE: BulkAction.HOLD, BulkAction.ENABLE: BulkAction.DISABLE}
WORDS: dict[BulkAction, dict[str, Any]] = {
    BulkAction.RESCHEDULE: {"at": NOON},
    BulkAction.REPRIORITISE: {"to_priority": 0},
    BulkAction.MOVE: {"to_queue": "slow"},
}


@pytest.mark.parametrize("action", sorted(WAITING))
def test_it_is_the_instant_at_which_an_operator_changed_it(
    connection: Connection, action: BulkAction
) -> None:
    task_id = pending_task(connection, now=NOON, delay="9h")
    if action in BEFORE:
        amend(connection, BEFORE[action], [task_id], now=NOON)
    change = parse_amendment(action, WORDS.get(action, {}))
    amend(connection, action, [task_id], change, now=NOON + HOUR)

    assert updated_at(connection, task_id) == NOON + HOUR


def test_a_rate_an_edit_and_a_unique_key_change_it_too(connection: Connection) -> None:
    spread_out = pending_task(connection, now=NOON, delay="9h")
    spread(
        connection, BulkAction.RUN_NOW, [spread_out], timedelta(seconds=1), None, now=NOON + HOUR
    )
    assert updated_at(connection, spread_out) == NOON + HOUR

    waiting = pending_task(connection, now=NOON)
    failed = claimed_task(connection, now=NOON)
    settle_one(connection, ending(failed, Event.FAIL, cause=CAUSE), now=NOON)
    assert change_payload(connection, Pool.PENDING, waiting, "{}")
    assert change_payload(connection, Pool.ERROR, failed.task_id, "{}")
    for task_id in (waiting, failed.task_id):
        assert updated_at(connection, task_id) != NOON

    row = a_row(unique_key="k", on_conflict=OnConflict.REPLACE_PAYLOAD)
    held = create_one(connection, row, now=NOON)
    assert create_one(connection, row, now=NOON + HOUR) == held
    assert updated_at(connection, held) == NOON + HOUR
