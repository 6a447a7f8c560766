"""Retire: a day goes without a DELETE, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError

from tasks_app.domain.tasks.states import State
from tasks_app.pool import retention
from tasks_app.pool.retention import Mark
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.browse import failed_attempts, get
from tests.factory import claimed_task, count, ending
from tests.pool.interleave import Blocked, blocked, two
from tests.pool.old_days import DAY, NAME, NOON, ONE, day_of, drop_old_days, finished, old_day


@pytest.fixture
def committed_day(engine: Engine) -> Iterator[Engine]:
    """A day that is over, seen by all."""
    with engine.begin() as connection:
        old_day(connection)
        finished(connection)
    yield engine
    drop_old_days(engine)


def exists(connection: Connection, name: str = NAME) -> bool:
    return bool(connection.execute(text("SELECT to_regclass(:n)"), {"n": name}).scalar())


def test_a_day_goes_in_three_steps(connection: Connection) -> None:
    day = old_day(connection)
    gone, kept = finished(connection), finished(connection, now=NOON + ONE)

    retention.detach_partition(connection, day)
    detached = day_of(connection)
    assert (detached.attached, detached.mark.detached) == (False, True)
    assert get(connection, gone) is None
    assert failed_attempts(connection, gone)
    assert retention.forget_history(connection, detached, 0) is None
    assert failed_attempts(connection, gone) == []
    retention.drop_partition(connection, detached)

    assert not exists(connection)
    assert get(connection, kept) is not None
    assert failed_attempts(connection, kept)


def test_the_history_goes_bit_by_bit_and_somebody_else_goes_on(
    connection: Connection,
) -> None:
    day = old_day(connection)
    ids = [finished(connection) for _ in range(5)]
    retention.detach_partition(connection, day)

    first = retention.forget_history(connection, day, 0, most=2)
    left = count(connection, "task_attempt")
    seen = day_of(connection)
    second = retention.forget_history(connection, seen, seen.mark.after, most=2)
    third = retention.forget_history(connection, seen, second, most=2)

    assert (first, second, third) == (ids[1], ids[3], None)
    assert left == 3
    assert count(connection, "task_attempt") == 0


def test_a_table_that_somebody_else_detached_is_not_ours_to_drop(connection: Connection) -> None:
    old_day(connection)
    connection.execute(text(f"ALTER TABLE task_completed DETACH PARTITION {NAME}"))
    connection.execute(text(f"COMMENT ON TABLE {NAME} IS 'my archive'"))

    assert NAME not in [day.name for day in retention.partitions(connection)[0]]


def test_days_know_when_they_end(connection: Connection) -> None:
    assert old_day(connection).until == DAY + ONE


def test_a_settle_is_open_then_a_day_is_not_detached_and_later_is(committed_day: Engine) -> None:
    with two(committed_day) as (a, b):
        task = claimed_task(a)
        a.commit()
        settle_one(a, ending(task))

        with pytest.raises(OperationalError, match="lock timeout"):
            retention.detach_partition(b, day_of(b))
        b.rollback()
        a.commit()
        retention.detach_partition(b, day_of(b))
        b.commit()

        assert not day_of(b).attached


@pytest.mark.test_all
def test_a_settle_behind_a_detach_that_waits_goes_on_when_that_gives_up(
    committed_day: Engine,
) -> None:
    """Somebody's transaction stays open all the time."""
    with two(committed_day) as (a, b), committed_day.connect() as c:
        settled, second = claimed_task(a), claimed_task(a)
        a.commit()
        day = day_of(b)
        settle_one(a, ending(settled))

        def detach(connection: Connection) -> None:
            # long enough to see who waits for whom
            retention.detach_partition(connection, day, lock_wait="2s")

        waits = blocked(committed_day, b, a, detach)
        behind = Blocked(
            committed_day, c, b, lambda connection: settle_one(connection, ending(second))
        )
        with pytest.raises(OperationalError, match="lock timeout"):
            waits.result()
        b.rollback()

        assert behind.result() is State.SUCCEEDED
        c.commit()


def test_who_reads_the_old_day_itself_keeps_it_and_no_settle_waits(
    committed_day: Engine,
) -> None:
    with two(committed_day) as (a, b), committed_day.connect() as c:
        task = claimed_task(c)
        c.commit()
        day = day_of(b)
        a.execute(text(f"SELECT count(*) FROM {NAME}"))

        def detach(connection: Connection) -> None:
            retention.detach_partition(connection, day, lock_wait="10s")

        waits = blocked(committed_day, b, a, detach)
        c.execute(text("SET LOCAL lock_timeout = '1s'"))
        settled = settle_one(c, ending(task))
        c.commit()
        a.rollback()
        waits.result()

        assert settled is State.SUCCEEDED


def test_thinning_waits_for_a_row_that_somebody_holds(committed_day: Engine) -> None:
    """No later pass comes to it: the name is done with that day."""
    with two(committed_day) as (a, b):
        a.execute(text(f"SELECT FROM {NAME} FOR UPDATE"))

        waits = blocked(
            committed_day,
            b,
            a,
            lambda c: retention.thin_partition(c, day_of(c), Mark(names=("t",)))[1],
        )
        a.rollback()

        assert waits.result() == 1


def test_the_wait_for_the_lock_is_a_tenth_of_a_second() -> None:
    """Settles stand behind it so long, where somebody's transaction holds the table."""
    assert retention.LOCK_WAIT == "100ms"
