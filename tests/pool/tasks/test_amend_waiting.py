"""Each verb for a task that waits: what it writes, and whom it leaves as he is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.limits import WaitingKind, WaitingReason
from tasks_app.domain.operations import WAITING, Amendment, BulkAction
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.dispatch.set_aside import park_tasks, sweep_all
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.amend import amend, replace_payload, spread
from tasks_app.pool.tasks.browse import get
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.requeue import requeue
from tasks_app.pool.testing import shift_instants
from tests.factory import claimed_task, claimer, count, ending, pending_task, pool_of_task, row_of

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
LATER, MUCH_LATER = NOW + HOUR, NOW + 100 * HOUR
CHANGES = {
    BulkAction.RESCHEDULE: Amendment(at=LATER),
    BulkAction.REPRIORITISE: Amendment(to_priority=0),
    BulkAction.MOVE: Amendment(to_queue="slow"),
}


def do(connection: Connection, action: BulkAction, *ids: int, now: datetime = NOW) -> list[int]:
    return amend(connection, action, ids, CHANGES.get(action, Amendment()), now=now)


def found(connection: Connection, now: datetime, queue: str = "default") -> list[int]:
    return [i for rows in find_due(connection, {queue: 10}, now=now) for i in rows.ids]


def taken(connection: Connection, *ids: int, now: datetime = NOW) -> list[int]:
    got = claim(connection, list(ids), claimer(), uuid4(), now=now)
    return [task.task_id for task in got]


@pytest.mark.parametrize("action", sorted(WAITING))
def test_only_what_waits_is_changed(connection: Connection, action: BulkAction) -> None:
    running = claimed_task(connection, now=NOW).task_id
    over = pending_task(connection, now=NOW)
    cancel(connection, over)
    before = [row_of(connection, running), get(connection, over)]
    assert do(connection, action, running, over, 10**9) == []
    assert [row_of(connection, running), get(connection, over)] == before


def test_run_now_ends_the_wait_for_a_date_and_not_twice(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=MUCH_LATER, now=NOW)
    assert do(connection, BulkAction.RUN_NOW, task_id) == [task_id]
    assert do(connection, BulkAction.RUN_NOW, task_id) == []
    assert found(connection, NOW) == [task_id]
    assert taken(connection, task_id) == [task_id]


def test_run_now_releases_what_is_held(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=MUCH_LATER, now=NOW)
    do(connection, BulkAction.HOLD, task_id)
    assert do(connection, BulkAction.RUN_NOW, task_id) == [task_id]
    row = row_of(connection, task_id)
    assert (row.due_at, row.scan_at, row.held_due_at) == (NOW, NOW, None)


def test_reschedule_gives_another_date_and_the_past_means_now(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOW)
    assert do(connection, BulkAction.RESCHEDULE, task_id) == [task_id]
    row = row_of(connection, task_id)
    assert (row.due_at, row.scan_at) == (LATER, LATER)
    assert taken(connection, task_id) == []
    amend(connection, BulkAction.RESCHEDULE, [task_id], Amendment(at=NOW - HOUR), now=NOW)
    row = row_of(connection, task_id)
    assert (row.due_at, row.scan_at) == (NOW, NOW)


def test_reschedule_counts_a_delay_from_now(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOW)
    amend(connection, BulkAction.RESCHEDULE, [task_id], Amendment(delay=HOUR), now=NOW)
    assert row_of(connection, task_id).due_at == LATER


def test_a_rescheduled_task_stays_held_and_gets_the_date_later(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOW)
    do(connection, BulkAction.HOLD, task_id)
    assert do(connection, BulkAction.RESCHEDULE, task_id) == [task_id]
    assert found(connection, LATER) == []
    do(connection, BulkAction.RELEASE, task_id)
    row = row_of(connection, task_id)
    assert (row.due_at, row.scan_at, row.held_due_at) == (LATER, LATER, None)


def test_reprioritise_lets_a_scan_that_has_passed_find_it_again(connection: Connection) -> None:
    first, second = (pending_task(connection, now=NOW) for _ in range(2))
    assert do(connection, BulkAction.REPRIORITISE, second, now=LATER) == [second]
    assert do(connection, BulkAction.REPRIORITISE, second, now=LATER) == []
    row = row_of(connection, second)
    assert (row.priority, row.due_at, row.scan_at) == (0, NOW, LATER)
    assert found(connection, LATER) == [second, first]


def test_move_gives_it_another_queue_and_ends_its_wait_for_a_limit(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOW)
    full = WaitingReason(WaitingKind.QUEUE, "default")
    park_tasks(connection, [task_id], full, timedelta(days=1), now=NOW)
    assert found(connection, LATER) == []
    assert do(connection, BulkAction.MOVE, task_id, now=LATER) == [task_id]
    assert do(connection, BulkAction.MOVE, task_id, now=LATER) == []
    row = row_of(connection, task_id)
    assert (row.queue, row.parked, row.parked_kind, row.parked_for) == ("slow", None, None, None)
    assert found(connection, LATER, "slow") == [task_id]


def test_what_waits_for_its_date_still_does_in_its_new_queue(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=LATER, now=NOW)
    do(connection, BulkAction.MOVE, task_id)
    assert found(connection, NOW, "slow") == []
    assert found(connection, LATER, "slow") == [task_id]


@pytest.mark.parametrize("run_at", [NOW, LATER])
def test_no_scan_and_no_claim_takes_what_is_held(connection: Connection, run_at: datetime) -> None:
    task_id = pending_task(connection, run_at=run_at, now=NOW)
    assert do(connection, BulkAction.HOLD, task_id) == [task_id]
    assert do(connection, BulkAction.HOLD, task_id) == []
    in_ten_years = NOW + timedelta(days=3650)
    assert found(connection, in_ten_years) == []
    assert taken(connection, task_id, now=in_ten_years) == []
    assert sweep_all(connection, 10, now=in_ten_years) == {}


def test_a_disabled_task_that_is_held_is_not_skipped(connection: Connection) -> None:
    task_id = pending_task(connection, enabled=False, now=NOW)
    do(connection, BulkAction.HOLD, task_id)
    assert sweep_all(connection, 10, now=MUCH_LATER) == {}


@pytest.mark.parametrize(
    ("run_at", "released_at", "due_at"), [(LATER, NOW, LATER), (NOW, LATER, LATER)]
)
def test_release_gives_the_date_back_and_one_that_has_passed_means_now(
    connection: Connection, run_at: datetime, released_at: datetime, due_at: datetime
) -> None:
    task_id = pending_task(connection, run_at=run_at, now=NOW)
    do(connection, BulkAction.HOLD, task_id)
    assert do(connection, BulkAction.RELEASE, task_id, now=released_at) == [task_id]
    assert do(connection, BulkAction.RELEASE, task_id, now=released_at) == []
    row = row_of(connection, task_id)
    assert (row.due_at, row.scan_at, row.held_due_at) == (due_at, due_at, None)
    assert taken(connection, task_id, now=due_at) == [task_id]


def test_what_is_held_expires_at_its_time_and_is_never_claimed_then(connection: Connection) -> None:
    task_id = pending_task(connection, expires_at=LATER, now=NOW)
    do(connection, BulkAction.HOLD, task_id)
    assert sweep_all(connection, 10, now=LATER - timedelta(seconds=1)) == {}
    assert taken(connection, task_id, now=LATER) == []
    assert found(connection, LATER) == [task_id]
    assert sweep_all(connection, 10, now=LATER) == {task_id: State.EXPIRED}
    task = get(connection, task_id)
    assert task is not None
    assert (task.due_at, task.held) == (NOW, False)


def test_a_task_that_expires_can_be_released(connection: Connection) -> None:
    task_id = pending_task(connection, expires_at=MUCH_LATER, now=NOW)
    do(connection, BulkAction.HOLD, task_id)
    assert do(connection, BulkAction.RELEASE, task_id, now=LATER) == [task_id]
    assert taken(connection, task_id, now=LATER) == [task_id]


def test_a_cancelled_one_shows_the_date_it_had_and_comes_back_free(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=LATER, now=NOW)
    do(connection, BulkAction.HOLD, task_id)
    cancel(connection, task_id, now=NOW)
    assert row_of(connection, task_id, "task_completed").due_at == LATER
    requeue(connection, task_id, now=NOW)
    row = row_of(connection, task_id)
    assert (row.due_at, row.held_due_at) == (NOW, None)


def test_people_read_held_and_the_date_that_it_gets_back(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=LATER, now=NOW)
    do(connection, BulkAction.HOLD, task_id)
    task = get(connection, task_id)
    assert task is not None
    assert (task.held, task.due_at) == (True, LATER)


def test_a_producer_that_reschedules_by_unique_key_leaves_it_held(connection: Connection) -> None:
    options: dict[str, Any] = {"unique_key": "k", "on_conflict": "reschedule", "now": NOW}
    task_id = pending_task(connection, **options)
    do(connection, BulkAction.HOLD, task_id)
    assert pending_task(connection, run_at=LATER, **options) == task_id
    assert found(connection, MUCH_LATER) == []
    assert row_of(connection, task_id).held_due_at == LATER


def test_what_somebodys_sql_makes_due_again_is_not_held(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOW)
    do(connection, BulkAction.HOLD, task_id)
    connection.execute(
        text("UPDATE task_pending SET due_at = :now, scan_at = :now"), {"now": LATER}
    )
    task = get(connection, task_id)
    assert task is not None
    assert (task.held, task.due_at) == (False, LATER)
    assert do(connection, BulkAction.HOLD, task_id, now=LATER) == [task_id]
    assert row_of(connection, task_id).held_due_at == LATER


def test_a_test_that_lets_time_pass_leaves_it_held(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=LATER, now=NOW)
    do(connection, BulkAction.HOLD, task_id)
    shift_instants(connection, HOUR)
    task = get(connection, task_id)
    assert task is not None
    assert (task.held, task.due_at) == (True, NOW)


@pytest.mark.parametrize("leave", [BulkAction.HOLD, BulkAction.RESCHEDULE, BulkAction.DISABLE])
def test_who_leaves_his_place_in_the_line_of_an_order_key_lets_the_next_one_try(
    connection: Connection, leave: BulkAction
) -> None:
    first, second = (pending_task(connection, order_key="k", now=NOW) for _ in range(2))
    park_tasks(
        connection, [second], WaitingReason(WaitingKind.ORDER, "k"), timedelta(days=1), now=NOW
    )
    do(connection, leave, first)
    row = row_of(connection, second)
    assert (row.scan_at, row.parked) == (NOW, None)


def test_a_disabled_task_is_enabled_again_and_found(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOW)
    assert do(connection, BulkAction.DISABLE, task_id) == [task_id]
    assert do(connection, BulkAction.DISABLE, task_id) == []
    assert taken(connection, task_id) == []
    assert do(connection, BulkAction.ENABLE, task_id, now=LATER) == [task_id]
    assert do(connection, BulkAction.ENABLE, task_id, now=LATER) == []
    assert row_of(connection, task_id).scan_at == LATER
    assert taken(connection, task_id, now=LATER) == [task_id]


def test_a_disabled_task_waits_for_no_limit_and_leaves_when_due(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOW)
    park_tasks(connection, [task_id], WaitingReason(WaitingKind.QUEUE, "default"), HOUR, now=NOW)
    do(connection, BulkAction.DISABLE, task_id)
    row = row_of(connection, task_id)
    assert (row.scan_at, row.parked, row.parked_kind, row.parked_for) == (NOW, None, None, None)
    assert sweep_all(connection, 10, now=NOW) == {task_id: State.SKIPPED}


def test_a_rate_spreads_them_and_goes_on_where_it_was(connection: Connection) -> None:
    gap = timedelta(seconds=2)
    ids = [pending_task(connection, run_at=MUCH_LATER, now=NOW) for _ in range(5)]
    is_due = pending_task(connection, now=NOW)

    changed, next_at = spread(
        connection, BulkAction.RUN_NOW, [*ids[:3], is_due], gap, None, now=NOW
    )
    more, end = spread(connection, BulkAction.RUN_NOW, ids[3:], gap, next_at, now=NOW)

    assert (changed, more) == (ids[:3], ids[3:])
    rows = [row_of(connection, task_id) for task_id in ids]
    assert [row.due_at for row in rows] == [NOW + n * gap for n in range(5)]
    assert [row.scan_at for row in rows] == [NOW + n * gap for n in range(5)]
    assert end == NOW + 5 * gap


def test_a_rate_that_goes_on_an_hour_later_begins_then(connection: Connection) -> None:
    """Else all that is left would be due at once."""
    ids = [pending_task(connection, run_at=MUCH_LATER, now=NOW) for _ in range(2)]
    spread(connection, BulkAction.RUN_NOW, ids, timedelta(seconds=1), NOW, now=LATER)
    due_at = [row_of(connection, task_id).due_at for task_id in ids]
    assert due_at == [LATER, LATER + timedelta(seconds=1)]


def test_a_rate_puts_nobody_off_and_releases_what_is_held(connection: Connection) -> None:
    soon, held = (pending_task(connection, run_at=NOW + HOUR, now=NOW) for _ in range(2))
    do(connection, BulkAction.HOLD, held)
    changed, _ = spread(
        connection, BulkAction.RUN_NOW, [soon, held], 10 * HOUR, NOW + 2 * HOUR, now=NOW
    )
    assert changed == [soon, held]
    assert row_of(connection, soon).due_at == LATER
    row = row_of(connection, held)
    assert (row.due_at, row.held_due_at) == (NOW + 12 * HOUR, None)


def test_a_release_at_a_rate_spreads_what_is_late_and_nothing_else(connection: Connection) -> None:
    gap = timedelta(seconds=2)
    late = [pending_task(connection, now=NOW) for _ in range(4)]
    dated = pending_task(connection, run_at=MUCH_LATER, now=NOW)
    free = pending_task(connection, run_at=MUCH_LATER, now=NOW)
    for task_id in (*late, dated):
        do(connection, BulkAction.HOLD, task_id)

    ids = [late[0], late[1], dated, free]
    changed, next_at = spread(connection, BulkAction.RELEASE, ids, gap, None, now=NOW)
    more, end = spread(connection, BulkAction.RELEASE, late[2:], gap, next_at, now=NOW)

    assert (changed, more) == ([*late[:2], dated], late[2:])
    rows = [row_of(connection, task_id) for task_id in late]
    assert [(row.due_at, row.scan_at) for row in rows] == [(NOW + n * gap,) * 2 for n in range(4)]
    assert (next_at, end) == (NOW + 2 * gap, NOW + 4 * gap)
    for task_id in (dated, free):
        assert row_of(connection, task_id).due_at == MUCH_LATER
    assert {row_of(connection, task_id).held_due_at for task_id in (*late, dated)} == {None}


def test_a_release_at_a_rate_of_dated_tasks_alone_takes_no_place(connection: Connection) -> None:
    dated = pending_task(connection, run_at=MUCH_LATER, now=NOW)
    do(connection, BulkAction.HOLD, dated)
    assert spread(connection, BulkAction.RELEASE, [dated], HOUR, None, now=NOW) == ([dated], None)


def test_nothing_is_lost_or_doubled(connection: Connection) -> None:
    ids = [pending_task(connection, now=NOW) for _ in range(3)]
    for action in sorted(WAITING):
        do(connection, action, *ids)
    assert count(connection) == 3
    assert {pool_of_task(connection, task_id) for task_id in ids} == {"pending PENDING"}


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
