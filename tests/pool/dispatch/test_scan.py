"""Scan: which rows are due, in which order; nothing is written and nothing is missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, Engine

from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.tasks.create import create_many
from tests.factory import a_row, claimed_task, pending_task, row_of
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


def test_each_queue_gives_as_many_as_it_was_asked_for_and_empty_ones_are_left_out(
    connection: Connection,
) -> None:
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


def test_a_row_that_commits_late_is_found_although_later_ids_were_seen_before(
    engine: Engine,
) -> None:
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
