"""Maintain: the completed pool's partitions are there long before they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from tasks_app.pool.retention import DAYS_AHEAD, add_partition, has_strays, missing_partitions
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.browse import get
from tests.factory import claimed_task, ending, pool_of_task
from tests.pool.interleave import two

DAY = datetime(2041, 5, 6, tzinfo=UTC)
NOON = DAY + timedelta(hours=12)


@pytest.fixture
def clean_day(engine: Engine) -> Iterator[datetime]:
    """A day without a partition, before and after."""
    yield DAY
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS task_completed_p20410506"))


def partition_of(connection: Connection, task_id: int) -> str:
    return connection.execute(
        text("SELECT tableoid::regclass::text FROM task_completed WHERE id = :id"),
        {"id": task_id},
    ).scalar_one()


def finish(connection: Connection, now: datetime) -> int:
    task = claimed_task(connection, now=now)
    settle_one(connection, ending(task), now=now)
    return task.task_id


def test_partitions_are_missing_from_today_to_fourteen_days_ahead(connection: Connection) -> None:
    days = missing_partitions(connection, now=NOON)

    assert days == [DAY + timedelta(days=n) for n in range(DAYS_AHEAD + 1)]


def test_today_is_the_day_in_utc_whatever_the_sessions_zone(connection: Connection) -> None:
    connection.execute(text("SET LOCAL timezone = 'Pacific/Kiritimati'"))

    assert missing_partitions(connection, now=DAY + timedelta(hours=23))[0] == DAY


def test_a_partition_that_was_made_is_not_missing(connection: Connection) -> None:
    for day in missing_partitions(connection, now=NOON)[:3]:
        add_partition(connection, day)

    assert missing_partitions(connection, now=NOON)[0] == DAY + timedelta(days=3)


def test_the_shared_database_has_its_partitions_from_today_on(connection: Connection) -> None:
    finished = finish(connection, now=None)  # type: ignore[arg-type]

    assert missing_partitions(connection) == []
    assert partition_of(connection, finished).startswith("task_completed_p20")
    assert not has_strays(connection)


@pytest.mark.parametrize(
    ("at", "partition"),
    [
        (DAY, "task_completed_p20410506"),
        (DAY + timedelta(days=1, microseconds=-1), "task_completed_p20410506"),
        (DAY + timedelta(days=1), "task_completed_default"),
        (DAY - timedelta(microseconds=1), "task_completed_default"),
    ],
)
def test_a_row_lands_in_the_partition_of_the_day_on_which_it_finished(
    connection: Connection, at: datetime, partition: str
) -> None:
    connection.execute(text("SET LOCAL timezone = 'America/Los_Angeles'"))
    add_partition(connection, DAY)

    task_id = finish(connection, at)

    assert partition_of(connection, task_id) == partition


def test_a_row_in_a_partition_is_found_by_its_id_and_may_be_dropped_with_it(
    connection: Connection,
) -> None:
    add_partition(connection, DAY)
    task_id = finish(connection, NOON)
    assert get(connection, task_id) is not None

    connection.execute(text("DROP TABLE task_completed_p20410506"))

    assert get(connection, task_id) is None


def test_a_partition_has_the_indexes_and_checks_of_its_parent(connection: Connection) -> None:
    add_partition(connection, DAY)

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
            {"at": NOON},
        )


def test_rows_in_the_default_partition_are_noticed(connection: Connection) -> None:
    assert not has_strays(connection)

    finish(connection, NOON)

    assert has_strays(connection)


def test_a_day_whose_rows_lie_in_the_default_partition_cannot_be_made(
    connection: Connection,
) -> None:
    finish(connection, NOON)

    with pytest.raises(IntegrityError):
        add_partition(connection, DAY)


@pytest.mark.test_all
def test_a_settle_into_the_default_partition_is_open_then_a_new_day_gives_up_and_succeeds_later(
    engine: Engine, clean_day: datetime
) -> None:
    with two(engine) as (a, b):
        task = claimed_task(a, now=NOON)
        a.commit()
        settle_one(a, ending(task), now=NOON + timedelta(days=99))

        with pytest.raises(OperationalError, match="lock timeout"):
            add_partition(b, clean_day)
        b.rollback()
        a.commit()
        add_partition(b, clean_day)
        b.commit()

        assert pool_of_task(a, task.task_id) == "completed SUCCEEDED"
        assert clean_day not in missing_partitions(b, now=NOON)


def test_a_settle_into_todays_partition_is_open_then_a_new_day_does_not_wait(
    engine: Engine, clean_day: datetime
) -> None:
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


def test_a_day_that_another_process_made_is_an_error_of_the_database_and_nothing_else(
    connection: Connection,
) -> None:
    add_partition(connection, DAY)

    with pytest.raises(DBAPIError, match="already exists"):
        add_partition(connection, DAY)
