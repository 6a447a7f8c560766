"""What a scan finds, and what it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.dispatch.scan import IdleCheck, check_idle, find_due, find_upcoming
from tasks_app.pool.dispatch.set_aside import park_tasks, sweep
from tasks_app.pool.runs.claim import claim_next
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.browse import get
from tasks_app.pool.tasks.create import create_many
from tests.factory import (
    LEASE,
    a_row,
    claimed_task,
    claimer,
    count,
    ending,
    pending_task,
    pool_of_task,
    row_of,
    unknown,
)
from tests.pool.database import Plan, prepared
from tests.pool.interleave import two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)


def ids(connection: Connection, queue: str = "default", most: int = 100, now=LATER) -> list[int]:
    return [i for found in find_due(connection, {queue: most}, now=now) for i in found.ids]


def test_due_rows_come_by_priority_then_scan_at_then_id(connection: Connection) -> None:
    def made(priority: int, minutes: int) -> int:
        return pending_task(connection, priority=priority, run_at=NOON + timedelta(minutes=minutes))

    late_low, late_high = made(9, 5), made(0, 5)
    early_low, early_high = made(9, 1), made(0, 1)
    same_as_early_high = made(0, 1)
    middle = made(5, 0)

    assert ids(connection) == [
        early_high,
        same_as_early_high,
        late_high,
        middle,
        early_low,
        late_low,
    ]


def test_at_most_so_many_rows_come_and_they_are_the_first(connection: Connection) -> None:
    low = pending_task(connection, priority=9, now=NOON)
    high = [pending_task(connection, priority=0, now=NOON) for _ in range(3)]
    assert ids(connection, most=2) == high[:2]
    assert ids(connection, most=4) == [*high, low]


def test_a_row_is_due_from_its_very_instant_on(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON)
    assert ids(connection, now=NOON - timedelta(microseconds=1)) == []
    assert ids(connection, now=NOON) == [task_id]


def test_only_rows_of_the_queue_come(connection: Connection) -> None:
    mine = pending_task(connection, queue="mine", now=NOON)
    pending_task(connection, queue="theirs", now=NOON)
    assert ids(connection, "mine") == [mine]


def test_each_queue_gives_as_many_as_asked_and_empty_ones_none(connection: Connection) -> None:
    many = [pending_task(connection, queue="many", now=NOON) for _ in range(3)]
    one = pending_task(connection, queue="one", now=NOON)
    found = find_due(connection, {"one": 2, "none": 5, "many": 2}, now=LATER)
    assert {each.queue: each.ids for each in found} == {"one": [one], "many": many[:2]}
    assert [each.scan_at for each in found if each.queue == "one"] == [[NOON.timestamp()]]


def test_running_rows_do_not_come(connection: Connection) -> None:
    claimed_task(connection, now=NOON)
    assert ids(connection) == []


def test_what_must_not_run_comes_marked(connection: Connection) -> None:
    pending_task(connection, "runs", now=NOON, expires_at=LATER + timedelta(microseconds=1))
    pending_task(connection, "expired", now=NOON, expires_at=LATER)
    pending_task(connection, "disabled", now=NOON, enabled=False)
    (found,) = find_due(connection, {"default": 9}, now=LATER)
    barred = {name for task_id, name, _ in found.rows() if task_id in found.barred}
    assert (set(found.names), barred) == ({"runs", "expired", "disabled"}, {"expired", "disabled"})


def test_a_row_that_commits_late_is_found_though_later_ids_were_seen(engine: Engine) -> None:
    with two(engine) as (slow, fast):
        early = pending_task(slow, now=NOON)
        late = pending_task(fast, now=NOON)
        fast.commit()
        with engine.connect() as scanner:
            assert ids(scanner) == [late]
            scanner.rollback()
            slow.commit()
            assert ids(scanner) == [early, late]


def test_the_scan_writes_nothing(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOON)
    before = row_of(connection, task_id)
    find_due(connection, {"default": 10}, now=LATER)
    assert row_of(connection, task_id) == before


def test_the_scan_waits_for_nobody_and_sees_rows_that_are_locked(engine: Engine) -> None:
    with two(engine) as (holder, scanner):
        task_id = pending_task(holder, now=NOON)
        holder.commit()
        claimed_task(holder, task_id)
        assert ids(scanner) == [task_id]


def test_a_queue_of_thousands_gives_exactly_what_was_asked_for(connection: Connection) -> None:
    created = create_many(connection, [a_row()] * 3000, now=NOON)
    assert ids(connection, most=700) == created[:700]


def test_a_scan_can_go_on_behind_a_row_of_each_priority(connection: Connection) -> None:
    def made(priority: int, minutes: int) -> int:
        return pending_task(connection, priority=priority, run_at=NOON + timedelta(minutes=minutes))

    high = [made(0, 1), made(0, 2)]
    low = [made(9, 0), made(9, 1), made(9, 1), made(9, 2)]
    urgent = made(3, 0)
    (all_,) = find_due(connection, {"default": 9}, now=LATER)
    at = dict(zip(all_.ids, all_.scan_at, strict=True))
    after = {("default", 0): (at[high[0]], high[0]), ("default", 9): (at[low[1]], low[1])}

    (rest,) = find_due(connection, {"none": 9, "default": 9}, after=after, now=LATER)

    assert rest.ids == [high[1], urgent, *low[2:]]
    assert rest.priorities == [0, 3, 9, 9]


SOON = timedelta(seconds=10)


def test_an_empty_pool_is_quiet(connection: Connection) -> None:
    seen = check_idle(connection, now=NOON)
    assert seen == IdleCheck(expired=False, next_due=None)
    assert seen.is_quiet(SOON)


@pytest.mark.parametrize("queue", ["a", "m", "z"])
@pytest.mark.parametrize("priority", [0, 5, 9])
def test_the_first_row_of_a_queue_counts(connection: Connection, queue: str, priority: int) -> None:
    for other in ("a", "m", "z"):
        for rank in (0, 5, 9):
            late = NOON + timedelta(hours=1)
            pending_task(connection, queue=other, priority=rank, run_at=late, now=NOON)
    assert check_idle(connection, now=NOON).is_quiet(SOON)
    due_at = NOON + timedelta(seconds=9)

    pending_task(connection, queue=queue, priority=priority, run_at=due_at, now=NOON)

    seen = check_idle(connection, now=NOON)
    assert (seen.next_due, seen.is_quiet(SOON)) == (timedelta(seconds=9), False)
    assert seen.is_quiet(timedelta(seconds=8))
    assert check_idle(connection, now=NOON + SOON).next_due == timedelta(seconds=-1)


def test_a_running_task_is_quiet_until_its_lease_is_over(connection: Connection) -> None:
    claimed_task(connection, now=NOON)
    assert check_idle(connection, now=NOON + LEASE).is_quiet(SOON)
    assert check_idle(connection, now=NOON + LEASE + timedelta(microseconds=1)).expired


PARKED_AT = NOON + timedelta(minutes=1)
WAIT = timedelta(seconds=15)


def test_a_parked_row_is_hidden_from_the_scan_for_its_time(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON)
    park_tasks(connection, [task_id], unknown("new.name"), WAIT, now=PARKED_AT)
    assert (
        find_due(connection, {"default": 9}, now=PARKED_AT + WAIT - timedelta(microseconds=1)) == []
    )
    assert find_due(connection, {"default": 9}, now=PARKED_AT + WAIT)[0].ids == [task_id]


def test_a_parked_row_says_why(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON)
    park_tasks(connection, [task_id], unknown("new.name"), WAIT, now=PARKED_AT)
    task = get(connection, task_id)
    assert task is not None
    assert task.parked == "no live worker of this queue has a handler named new.name"


def test_parking_burns_nothing_and_keeps_due_at(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON)
    before = row_of(connection, task_id)._mapping
    park_tasks(connection, [task_id], unknown("paused"), WAIT, now=PARKED_AT)
    after = row_of(connection, task_id)._mapping
    assert {k for k in before if before[k] != after[k]} == {
        *("scan_at", "parked", "parked_kind", "parked_for")
    }
    assert after["due_at"] == NOON


def test_a_running_row_is_not_parked(connection: Connection) -> None:
    task = claimed_task(connection, now=NOON)
    before = row_of(connection, task.task_id)
    park_tasks(connection, [task.task_id], unknown("late"), WAIT, now=PARKED_AT)
    assert row_of(connection, task.task_id) == before


def test_a_row_that_is_not_due_for_the_scan_stays_where_it_is(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=PARKED_AT + timedelta(microseconds=1))
    before = row_of(connection, task_id)
    park_tasks(connection, [task_id], unknown("early"), WAIT, now=PARKED_AT)
    assert row_of(connection, task_id) == before


def test_a_parked_row_is_not_pushed_further_by_a_second_message(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON)
    park_tasks(connection, [task_id], unknown("first"), WAIT, now=PARKED_AT)
    park_tasks(connection, [task_id], unknown("second"), WAIT, now=PARKED_AT + timedelta(seconds=1))
    row = row_of(connection, task_id)
    assert (row.parked_for, row.scan_at) == ("first", PARKED_AT + WAIT)


def test_only_the_named_rows_are_parked(connection: Connection) -> None:
    ids = [pending_task(connection, run_at=NOON) for _ in range(2)]
    park_tasks(connection, [ids[0], ids[0], 10**15], unknown("x"), WAIT, now=PARKED_AT)
    assert [row_of(connection, i).parked_for for i in ids] == ["x", None]


BEFORE = NOON - timedelta(microseconds=1)


def test_a_disabled_task_is_skipped_when_it_is_due_and_not_before(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON, enabled=False)
    assert sweep(connection, [task_id], now=BEFORE) == {}
    assert sweep(connection, [task_id], now=NOON) == {task_id: State.SKIPPED}
    row = row_of(connection, task_id, "task_completed")
    assert row.error == "disabled: The task was disabled when it became due."
    assert row.finished_at == NOON


def test_a_task_expires_at_the_instant_that_it_names(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOON - timedelta(hours=1), expires_at=NOON)
    assert sweep(connection, [task_id], now=BEFORE) == {}
    assert sweep(connection, [task_id], now=NOON) == {task_id: State.EXPIRED}
    assert row_of(connection, task_id, "task_completed").error.startswith("expired: ")


def test_a_task_that_expired_is_not_swept_before_it_is_due(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON, expires_at=NOON - timedelta(hours=1))
    assert sweep(connection, [task_id], now=BEFORE) == {}
    assert sweep(connection, [task_id], now=NOON) == {task_id: State.EXPIRED}


def test_a_task_that_is_both_disabled_and_late_was_disabled(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON, enabled=False, expires_at=BEFORE)
    assert sweep(connection, [task_id], now=NOON) == {task_id: State.SKIPPED}


def test_a_running_task_is_never_expired(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOON, expires_at=NOON + timedelta(seconds=1))
    claimed_task(connection, task_id, now=NOON)
    assert sweep(connection, [task_id], now=NOON + timedelta(hours=1)) == {}
    assert pool_of_task(connection, task_id) == "pending RUNNING"


def test_expiry_is_judged_again_at_a_retry(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOON, expires_at=NOON + timedelta(seconds=3))
    task = claimed_task(connection, task_id, now=NOON)
    settle_one(connection, ending(task, Event.RETRY, wait=timedelta(seconds=5)), now=NOON)
    assert sweep(connection, [task_id], now=NOON + timedelta(seconds=5)) == {task_id: State.EXPIRED}


def test_a_task_that_may_run_stays(connection: Connection) -> None:
    plain = pending_task(connection, now=NOON)
    in_time = pending_task(connection, now=NOON, expires_at=NOON + timedelta(microseconds=1))
    assert sweep(connection, [plain, in_time], now=NOON) == {}


def test_only_the_named_rows_are_swept(connection: Connection) -> None:
    named, other = (pending_task(connection, now=NOON, enabled=False) for _ in range(2))
    assert sweep(connection, [named, 10**15], now=NOON) == {named: State.SKIPPED}
    assert pool_of_task(connection, other) == "pending PENDING"
    assert sweep(connection, [], now=NOON) == {}


def test_sweeping_charges_nothing_and_leaves_no_history(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOON, enabled=False)
    sweep(connection, [task_id], now=NOON)
    row = row_of(connection, task_id, "task_completed")
    assert (row.failures, row.crashes, row.attempt) == (0, 0, 0)
    assert count(connection, "task_attempt") == 0


SECOND = timedelta(seconds=1)
QUEUES = ["default", "mail"]


def soon(connection: Connection, within: timedelta = SECOND) -> float | None:
    return next(
        (task.due_in_s for task in find_upcoming(connection, QUEUES, within, now=NOON)), None
    )


def test_the_nearest_row_of_all_queues_and_priorities_counts(connection: Connection) -> None:
    pending_task(connection, run_at=NOON + 0.9 * SECOND, priority=0)
    pending_task(connection, run_at=NOON + 0.3 * SECOND, priority=9, queue="mail")
    pending_task(connection, run_at=NOON + 0.1 * SECOND, queue="theirs")
    assert soon(connection) == pytest.approx(0.3)


def test_rows_that_are_due_or_far_away_or_run_do_not_count(connection: Connection) -> None:
    pending_task(connection, run_at=NOON)
    pending_task(connection, run_at=NOON + 1.001 * SECOND)
    claimed_task(connection, pending_task(connection, run_at=NOON - SECOND), now=NOON)
    assert soon(connection) is None
    assert soon(connection, 2 * SECOND) == pytest.approx(1.001)


def test_what_became_due_since_the_last_look_counts(connection: Connection) -> None:
    pending_task(connection, run_at=NOON - SECOND)
    pending_task(connection, run_at=NOON - SECOND / 2)
    found = find_upcoming(connection, QUEUES, SECOND, since=0.9 * SECOND, now=NOON)
    assert [task.due_in_s for task in found] == [-0.5]


def test_nobody_wakes_up_for_a_parked_row(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON)
    park_tasks(connection, [task_id], unknown("nobody knows it"), 0.5 * SECOND, now=NOON)
    assert soon(connection) is None


def test_the_nearest_come_first_whatever_their_queue_and_priority(connection: Connection) -> None:
    def made(tenths: int, priority: int, queue: str) -> int:
        due = NOON + tenths * SECOND / 10
        return pending_task(connection, run_at=due, priority=priority, queue=queue)

    ids = [made(1, 9, "mail"), made(2, 0, "default"), made(3, 5, "mail"), made(4, 0, "mail")]
    found = find_upcoming(connection, QUEUES, SECOND, most=3, now=NOON)
    assert [(task.id, task.queue) for task in found] == list(
        zip(ids, ["mail", "default", "mail"], strict=False)
    )
    assert [task.due_in_s for task in found] == pytest.approx([0.1, 0.2, 0.3])


DEAD = 3_000
PAGES = DEAD / 50
"""At least so many hold them: of the index and of the table."""
BORN = """
INSERT INTO task_pending (name, due_at, scan_at)
SELECT 't', now() - interval '1h', now() - interval '1h' FROM generate_series(1, :number)
"""
Verb = Callable[[Connection, timedelta | None], object]
VERBS: dict[str, Verb] = {
    "claim_next": lambda c, within: claim_next(
        c, ["default"], 1, claimer("t"), uuid4(), within=within
    ),
    "due": lambda c, within: find_due(c, {"default": 100}, within=within),
}


def plan(connection: Connection, verb: Callable[[Connection], object], name: str = "it") -> Plan:
    """Find one task, and count."""
    found = prepared(connection, name, verb).run(connection)
    connection.rollback()
    return found


@pytest.fixture
def dead(engine: Engine) -> Iterator[Connection]:
    """A connection, a task that is due, and before it thousands that vacuum must leave."""
    with engine.connect() as holder, engine.connect() as connection:
        holder.execution_options(isolation_level="REPEATABLE READ")
        holder.execute(text("SELECT 1 FROM task_pending"))
        connection.execute(text(BORN), {"number": DEAD})
        connection.commit()
        connection.execute(text("DELETE FROM task_pending"))
        connection.commit()
        pending_task(connection)
        connection.execute(text("SET enable_seqscan = off"))  # as for all that is ours
        connection.commit()
        yield connection
        connection.invalidate()  # with what it prepared
        holder.rollback()


@pytest.mark.parametrize("name", VERBS)
def test_who_looks_for_what_is_new_does_not_read_what_is_over(dead: Connection, name: str) -> None:
    verb = VERBS[name]
    whole = plan(dead, lambda c: verb(c, None), "whole")
    end = plan(dead, lambda c: verb(c, timedelta(seconds=30)), "newest")
    assert whole.buffers - end.buffers > PAGES, (end, whole)


def test_who_looks_ahead_does_not_read_what_is_over(dead: Connection) -> None:
    whole = plan(dead, lambda c: find_due(c, {"default": 100}), "whole")
    ahead = plan(dead, lambda c: find_upcoming(c, ["default"], timedelta(seconds=1)), "ahead")
    assert whole.buffers - ahead.buffers > PAGES, (ahead, whole)


def test_who_goes_on_behind_what_was_taken_does_not_read_what_is_over(dead: Connection) -> None:
    after = (datetime.now(UTC) - timedelta(minutes=1)).timestamp()

    def going_on(connection: Connection) -> None:
        places = {("default", 5): (after, 0)}
        claim_next(connection, ["default"], 1, claimer("t"), uuid4(), places=places)
        assert len(places) == 1

    whole = plan(dead, lambda c: VERBS["claim_next"](c, None), "whole")
    behind = plan(dead, going_on, "behind")
    assert whole.buffers - behind.buffers > PAGES, (behind, whole)
