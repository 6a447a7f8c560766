"""Days of the completed pool that are long over, with tasks in them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, Engine, text

from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.retention import DayPartition, add_partition, partitions
from tasks_app.pool.runs.settle import settle_one
from tests.factory import claimed_task, ending

DAY = datetime(2020, 5, 6, tzinfo=UTC)
NOON = DAY + timedelta(hours=12)
ONE = timedelta(days=1)
NAME = "task_completed_p20200506"


def old_day(connection: Connection, day: datetime = DAY) -> DayPartition:
    """Make the partition of a day that is over."""
    add_partition(connection, day)
    return day_of(connection, f"task_completed_p{day:%Y%m%d}")


def day_of(connection: Connection, name: str = NAME) -> DayPartition:
    """A day as the database has it."""
    (found,) = [day for day in partitions(connection)[0] if day.name == name]
    return found


def finished(connection: Connection, name: str = "t", now: datetime = NOON) -> int:
    """A task that succeeded at its second attempt, and has a line in the history."""
    task = claimed_task(connection, name=name, now=now)
    cause = Cause("E", "m")
    retry = ending(task, Event.RETRY, failures=1, cause=cause)
    settle_one(connection, retry, now=now)
    task = claimed_task(connection, task.task_id, name=name, now=now)
    settle_one(connection, ending(task), now=now)
    return task.task_id


def failed(connection: Connection, name: str = "t", now: datetime = NOON) -> int:
    """A task in the error pool."""
    task = claimed_task(connection, name=name, now=now)
    settle_one(connection, ending(task, Event.FAIL, cause=Cause("E", "m")), now=now)
    return task.task_id


def drop_old_days(engine: Engine) -> None:
    """Leave none behind, attached or not."""
    with engine.begin() as connection:
        names = connection.execute(
            text(
                "SELECT relname FROM pg_class"
                " WHERE relkind = 'r' AND relname ~ '^task_completed_p(19|20[012][0-5])'"
            )
        )
        for name in names.scalars().all():
            if name < "task_completed_p2024":
                connection.execute(text(f"DROP TABLE IF EXISTS {name}"))
