"""The ledger: messages that are out, hidden from the scan, published again when overdue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError

from tasks_app.domain.tasks.records import TaskId
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.dispatch.ledger import (
    add,
    add_all,
    finish,
    overdue,
    read,
    scanner_lock,
    untaken,
)
from tasks_app.pool.runs.release import release
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.requeue import requeue
from tests.factory import claimed_task, ending, pending_task, row_of
from tests.pool.interleave import two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WAIT = timedelta(seconds=30)


def s(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_an_entered_message_is_read_back(connection: Connection) -> None:
    entered = add(connection, "q", [TaskId(3), 1, 2**40], WAIT, now=NOON)

    assert read(connection) == [entered]
    assert (entered.queue, entered.ids, entered.created_at) == ("q", (3, 1, 2**40), NOON)


def test_many_are_entered_by_one_statement_in_their_order(connection: Connection) -> None:
    messages = [("b", [3, 1]), ("a", [2]), ("b", [2**40, 5, 6])]

    entered = add_all(connection, messages, WAIT, now=NOON)

    assert [(m.queue, list(m.ids)) for m in entered] == messages
    assert [m.id for m in entered] == sorted(m.id for m in entered)
    assert read(connection) == entered
    assert add_all(connection, [], WAIT) == []


def test_messages_are_read_oldest_first(connection: Connection) -> None:
    entered = [add(connection, "q", [n], WAIT, now=s(-n)) for n in range(3)]

    assert read(connection) == entered


def test_a_message_that_was_published_hides_a_row_that_was_due_before_it(
    connection: Connection,
) -> None:
    task_id = pending_task(connection, now=NOON)

    entered = add(connection, "default", [task_id], WAIT, now=NOON)

    assert row_of(connection, task_id).scan_at <= entered.created_at


@pytest.mark.parametrize("way", ["retry", "snooze", "release", "requeue"])
def test_a_row_that_came_back_is_not_hidden_by_the_message_that_it_came_with(
    connection: Connection, way: str
) -> None:
    task_id = pending_task(connection, now=NOON)
    entered = add(connection, "default", [task_id], WAIT, now=NOON)
    task = claimed_task(connection, task_id, now=s(1))

    match way:
        case "retry":
            settle_one(connection, ending(task, Event.RETRY), now=s(2))
        case "snooze":
            settle_one(connection, ending(task, Event.SNOOZE), now=s(2))
        case "release":
            release(connection, [task.fence], now=s(2))
        case "requeue":
            settle_one(connection, ending(task, Event.FAIL), now=s(2))
            requeue(connection, task_id, now=s(2))

    row = row_of(connection, task_id)
    assert row.scan_at == row.due_at == s(2)
    assert row.scan_at > entered.created_at


def test_a_message_is_overdue_only_after_its_time(connection: Connection) -> None:
    entered = add(connection, "q", [1], WAIT, now=NOON)

    assert overdue(connection, ["q"], WAIT, now=s(29.999)) == []
    assert overdue(connection, ["q"], WAIT, now=s(30)) == [entered]


def test_an_overdue_message_comes_again_after_twice_the_time_until_ten_minutes(
    connection: Connection,
) -> None:
    entered = add(connection, "q", [1], WAIT, now=NOON)
    at, waits = 30, []

    for _ in range(7):
        assert overdue(connection, ["q"], WAIT, now=s(at)) == [entered]
        wait = (row_of(connection, entered.id, "task_dispatch").publish_at - s(at)).seconds
        assert overdue(connection, ["q"], WAIT, now=s(at + wait - 1)) == []
        waits.append(wait)
        at += wait

    assert waits == [60, 120, 240, 480, 600, 600, 600]


def test_an_overdue_message_keeps_its_id_and_its_creation(connection: Connection) -> None:
    entered = add(connection, "q", [7, 8], WAIT, now=NOON)

    (again,) = overdue(connection, ["q"], WAIT, now=s(99))

    assert again == entered


def test_nothing_is_published_again_for_a_queue_that_nobody_serves(connection: Connection) -> None:
    add(connection, "nobody", [1], WAIT, now=NOON)
    mine = add(connection, "mine", [2], WAIT, now=NOON)

    assert overdue(connection, ["mine", "other"], WAIT, now=s(99)) == [mine]
    assert overdue(connection, [], WAIT, now=s(999)) == []


def test_at_most_so_many_overdue_messages_come_at_once(connection: Connection) -> None:
    for n in range(3):
        add(connection, "q", [n], WAIT, now=NOON)

    assert len(overdue(connection, ["q"], WAIT, most=2, now=s(99))) == 2
    assert len(overdue(connection, ["q"], WAIT, most=2, now=s(99))) == 1


def test_a_finished_message_is_forgotten_and_finishing_it_again_does_no_harm(
    connection: Connection,
) -> None:
    first, second = add(connection, "q", [1], WAIT), add(connection, "q", [1], WAIT)

    finish(connection, first.id)
    finish(connection, first.id, 10**12)

    assert read(connection) == [second]


def test_a_scanner_that_cannot_publish_takes_all_its_messages_back(connection: Connection) -> None:
    entered = [add(connection, "q", [n], WAIT) for n in range(3)]

    finish(connection, *(message.id for message in entered))

    assert read(connection) == []


@pytest.mark.parametrize("number", [0, 501])
def test_a_message_carries_one_to_500_ids(connection: Connection, number: int) -> None:
    with pytest.raises(IntegrityError):
        add(connection, "q", list(range(number)), WAIT)


def test_two_scanners_look_for_overdue_messages_and_each_is_published_by_one(
    engine: Engine,
) -> None:
    with two(engine) as (a, b):
        messages = [add(a, "q", [n], WAIT, now=NOON) for n in range(2)]
        a.commit()

        first = overdue(a, ["q"], WAIT, most=1, now=s(99))
        second = overdue(b, ["q"], WAIT, now=s(99))

        assert [*first, *second] == messages


def test_a_second_scanner_is_told_so_until_the_first_ones_transaction_ends(
    engine: Engine,
) -> None:
    with two(engine) as (a, b):
        assert scanner_lock(a)
        assert not scanner_lock(b)

        a.rollback()

        assert scanner_lock(b)


def test_a_scanner_that_asks_twice_is_still_the_scanner(connection: Connection) -> None:
    assert scanner_lock(connection)
    assert scanner_lock(connection)


def seen_untaken(connection: Connection, after: float, queue: str = "default") -> bool:
    return untaken(connection, [queue], ["t"], timedelta(seconds=45), now=s(after))


def test_a_message_is_untaken_when_it_went_out_twice_and_its_tasks_wait_still(
    connection: Connection,
) -> None:
    task_id = pending_task(connection, now=NOON)
    add(connection, "default", [task_id], WAIT, now=NOON)

    once = seen_untaken(connection, 60)
    overdue(connection, ["default"], WAIT, now=s(30))

    assert not once  # its only copy may be lost, and that is nobody's fault here
    assert not seen_untaken(connection, 44)
    assert seen_untaken(connection, 46)
    assert not seen_untaken(connection, 46, "other")


@pytest.mark.parametrize("way", ["claimed", "released", "unknown"])
def test_a_message_is_not_untaken_when_its_tasks_are_elsewhere(
    connection: Connection, way: str
) -> None:
    name = "stranger" if way == "unknown" else "t"
    task_id = pending_task(connection, name, now=NOON)
    add(connection, "default", [task_id], WAIT, now=NOON)
    overdue(connection, ["default"], WAIT, now=s(30))

    if way != "unknown":
        task = claimed_task(connection, task_id, now=s(31))
        if way == "released":
            release(connection, [task.fence], now=s(32))

    assert not seen_untaken(connection, 46)


def test_only_the_transaction_that_forgets_a_message_does_not_wait_for_the_disk(
    engine: Engine,
) -> None:
    how = text("SHOW synchronous_commit")
    with engine.connect() as connection:
        message = add(connection, "q", [1], WAIT)
        connection.commit()
        finish(connection, message.id)
        forgetting = connection.execute(how).scalar()
        connection.commit()
        afterwards = connection.execute(how).scalar()

    assert (forgetting, afterwards) == ("off", "on")
