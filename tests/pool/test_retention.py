"""Retention: partitions of days, and rows that are pruned."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from tasks_app.domain.config.retention import parse_keep
from tasks_app.domain.tasks.states import State
from tasks_app.pool import retention
from tasks_app.pool.retention import (
    DAYS_AHEAD,
    LOOKED_AT,
    Mark,
    add_partition,
    due_names,
    has_strays,
    missing_partitions,
)
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tables import ERROR
from tasks_app.pool.tasks.browse import failed_attempts, get
from tests.factory import claimed_task, count, ending, pool_of_task
from tests.pool.database import (
    DAY,
    NAME,
    NOON,
    ONE,
    day_of,
    drop_old_days,
    failed,
    finished,
    old_day,
)
from tests.pool.interleave import Blocked, blocked, two


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


def test_the_history_goes_bit_by_bit_by_anybody(connection: Connection) -> None:
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
def test_a_settle_behind_a_waiting_detach_goes_on_after_it(committed_day: Engine) -> None:
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


def test_a_reader_of_the_old_day_keeps_it_and_no_settle_waits(committed_day: Engine) -> None:
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


DAY_2041 = datetime(2041, 5, 6, tzinfo=UTC)
NOON_2041 = DAY_2041 + timedelta(hours=12)


@pytest.fixture
def clean_day(engine: Engine) -> Iterator[datetime]:
    """A day without a partition, before and after."""
    yield DAY_2041
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS task_completed_p20410506"))


def partition_of(connection: Connection, task_id: int) -> str:
    return connection.execute(
        text("SELECT tableoid::regclass::text FROM task_completed WHERE id = :id"), {"id": task_id}
    ).scalar_one()


def finish(connection: Connection, now: datetime) -> int:
    task = claimed_task(connection, now=now)
    settle_one(connection, ending(task), now=now)
    return task.task_id


def test_partitions_are_missing_from_today_to_fourteen_days_ahead(connection: Connection) -> None:
    days = missing_partitions(connection, now=NOON_2041)
    assert days == [DAY_2041 + timedelta(days=n) for n in range(DAYS_AHEAD + 1)]


def test_today_is_the_day_in_utc_whatever_the_sessions_zone(connection: Connection) -> None:
    connection.execute(text("SET LOCAL timezone = 'Pacific/Kiritimati'"))
    assert missing_partitions(connection, now=DAY_2041 + timedelta(hours=23))[0] == DAY_2041


def test_a_partition_that_was_made_is_not_missing(connection: Connection) -> None:
    for day in missing_partitions(connection, now=NOON_2041)[:3]:
        add_partition(connection, day)
    assert missing_partitions(connection, now=NOON_2041)[0] == DAY_2041 + timedelta(days=3)


def test_the_shared_database_has_its_partitions_from_today_on(connection: Connection) -> None:
    finished = finish(connection, now=None)  # type: ignore[arg-type]
    assert missing_partitions(connection) == []
    assert partition_of(connection, finished).startswith("task_completed_p20")
    assert not has_strays(connection)


@pytest.mark.parametrize(
    ("at", "partition"),
    [
        (DAY_2041, "task_completed_p20410506"),
        (DAY_2041 + timedelta(days=1, microseconds=-1), "task_completed_p20410506"),
        (DAY_2041 + timedelta(days=1), "task_completed_default"),
        (DAY_2041 - timedelta(microseconds=1), "task_completed_default"),
    ],
)
def test_a_row_lands_in_the_partition_of_the_day_on_which_it_finished(
    connection: Connection, at: datetime, partition: str
) -> None:
    connection.execute(text("SET LOCAL timezone = 'America/Los_Angeles'"))
    add_partition(connection, DAY_2041)
    task_id = finish(connection, at)
    assert partition_of(connection, task_id) == partition


def test_a_row_in_a_partition_is_found_by_id_and_dropped_with_it(connection: Connection) -> None:
    add_partition(connection, DAY_2041)
    task_id = finish(connection, NOON_2041)
    assert get(connection, task_id) is not None
    connection.execute(text("DROP TABLE task_completed_p20410506"))
    assert get(connection, task_id) is None


def test_a_partition_has_the_indexes_and_checks_of_its_parent(connection: Connection) -> None:
    add_partition(connection, DAY_2041)

    names = connection.execute(
        text("SELECT indexdef FROM pg_indexes WHERE tablename = 'task_completed_p20410506'")
    ).scalars()
    assert len(list(names)) == 2
    with pytest.raises(IntegrityError, match="state_is_completed"):
        connection.execute(
            text(
                "INSERT INTO task_completed (id, name, state, finished_at)"
                " VALUES (1, 't', 'PENDING', :at)"
            ),
            {"at": NOON_2041},
        )


def test_rows_in_the_default_partition_are_noticed(connection: Connection) -> None:
    assert not has_strays(connection)
    finish(connection, NOON_2041)
    assert has_strays(connection)


def test_a_day_with_rows_in_the_default_partition_cannot_be_made(connection: Connection) -> None:
    finish(connection, NOON_2041)
    with pytest.raises(IntegrityError):
        add_partition(connection, DAY_2041)


@pytest.mark.test_all
def test_a_settle_into_the_default_partition_is_open_then_a_new_day_gives_up_and_succeeds_later(
    engine: Engine, clean_day: datetime
) -> None:
    with two(engine) as (a, b):
        task = claimed_task(a, now=NOON_2041)
        a.commit()
        settle_one(a, ending(task), now=NOON_2041 + timedelta(days=99))

        with pytest.raises(OperationalError, match="lock timeout"):
            add_partition(b, clean_day)
        b.rollback()
        a.commit()
        add_partition(b, clean_day)
        b.commit()

        assert pool_of_task(a, task.task_id) == "completed SUCCEEDED"
        assert clean_day not in missing_partitions(b, now=NOON_2041)


def test_an_open_settle_of_today_holds_up_no_new_day(engine: Engine, clean_day: datetime) -> None:
    with two(engine) as (a, b):
        task = claimed_task(a)
        a.commit()
        settle_one(a, ending(task))
        add_partition(b, clean_day)
        b.commit()
        a.commit()
        assert pool_of_task(b, task.task_id) == "completed SUCCEEDED"


def test_the_short_lock_timeout_ends_with_its_transaction(engine: Engine, clean_day) -> None:
    with engine.connect() as connection:
        before = connection.execute(text("SHOW lock_timeout")).scalar()
        connection.rollback()
        add_partition(connection, clean_day)
        connection.commit()
        assert connection.execute(text("SHOW lock_timeout")).scalar() == before


def test_a_day_made_meanwhile_is_only_an_error_of_the_database(connection: Connection) -> None:
    add_partition(connection, DAY_2041)
    with pytest.raises(DBAPIError, match="already exists"):
        add_partition(connection, DAY_2041)


WEEK_LATER = NOON + 7 * ONE


def thin(connection: Connection, *names: str, most: int = LOOKED_AT) -> int:
    """All of the day, step by step, as somebody who reads the mark anew each time."""
    day, total = day_of(connection), 0
    mark = Mark(names=names)
    while mark.names:
        mark, gone = retention.thin_partition(connection, day, mark, most=most)
        assert day_of(connection).mark == mark
        total += gone
    return total


class TestThinning:
    def test_only_that_name_goes_with_its_history(self, connection: Connection) -> None:
        old_day(connection)
        gone, kept = finished(connection, "mail.send"), finished(connection, "order.pay")
        assert thin(connection, "mail.send") == 1
        assert get(connection, gone) is None
        assert failed_attempts(connection, gone) == []
        assert get(connection, kept) is not None
        assert failed_attempts(connection, kept)

    def test_bit_by_bit(self, connection: Connection) -> None:
        old_day(connection)
        for name in ("a", "b", "a", "a", "b"):
            finished(connection, name)
        assert thin(connection, "a", most=2) == 3
        assert count(connection, "task_completed") == 2

    def test_it_is_remembered_that_a_day_is_done(self, connection: Connection) -> None:
        old_day(connection)
        early = {"a": ONE, "b": 2 * ONE}
        before = due_names(day_of(connection), early, DAY + 2 * ONE)
        thin(connection, *before)
        assert before == ("a",)
        assert due_names(day_of(connection), early, DAY + 2 * ONE) == ()
        assert due_names(day_of(connection), early, DAY + 3 * ONE) == ("b",)

    def test_a_day_is_thinned_when_all_of_it_is_old_enough(self, connection: Connection) -> None:
        day = old_day(connection)
        assert due_names(day, {"a": ONE}, DAY + 2 * ONE - timedelta(seconds=1)) == ()


class TestByAge:
    def delete(self, connection: Connection, keep: str, most: int = LOOKED_AT) -> int:
        place, total = None, 0
        while True:
            place, gone = retention.delete_old(
                connection, ERROR, parse_keep(keep), place, most=most, now=WEEK_LATER
            )
            total += gone
            if place is None:
                return total

    def test_errors_are_kept_for_ever_unless_told_otherwise(self, connection: Connection) -> None:
        failed(connection)
        assert self.delete(connection, "forever") == 0

    def test_what_is_older_goes_with_its_history(self, connection: Connection) -> None:
        old, young = failed(connection), failed(connection, now=WEEK_LATER - ONE)
        assert self.delete(connection, "7d") == 0
        assert self.delete(connection, "6d") == 1
        assert get(connection, old) is None
        assert failed_attempts(connection, old) == []
        assert get(connection, young) is not None
        assert failed_attempts(connection, young)

    def test_names_have_ages_of_their_own(self, connection: Connection) -> None:
        noise, kept, other = (failed(connection, name) for name in ("noise", "kept", "other"))
        assert self.delete(connection, "3d,noise=1d,kept=forever") == 2
        assert [bool(get(connection, i)) for i in (noise, kept, other)] == [False, True, False]

    def test_one_name_of_those_that_stay(self, connection: Connection) -> None:
        for name in ("a", "b", "a", "b", "b", "a"):
            failed(connection, name)
        assert self.delete(connection, "forever,a=1d", most=2) == 3
        assert count(connection, "task_error") == 3

    def test_one_that_somebody_holds_is_left_for_the_next_pass(self, engine: Engine) -> None:
        with engine.begin() as connection:
            held, other = failed(connection), failed(connection)
        with two(engine) as (a, b):
            a.execute(text("SELECT FROM task_error WHERE id = :id FOR UPDATE"), {"id": held})
            assert self.delete(b, "1d") == 1
            assert get(b, other) is None
            a.rollback()
            assert self.delete(b, "1d") == 1

    def test_what_would_go_is_counted(self, connection: Connection) -> None:
        failed(connection)
        failed(connection, "kept")
        rows, size = retention.count_old(
            connection, ERROR, parse_keep("1d,kept=forever"), now=WEEK_LATER
        )
        assert rows == 1
        assert 100 < size < 1_000
