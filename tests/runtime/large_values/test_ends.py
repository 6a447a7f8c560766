"""A large value goes with its task, whichever way that goes, and no sooner."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tasks_app import TaskContext, cancel_task, create_task, get_task, requeue_task
from tasks_app.domain.large_values.store import RESULT, LargePayload, reference_of
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.large_values import write_value
from tasks_app.runtime.api.edit import edit_payload
from tasks_app.runtime.erasure import erase
from tasks_app.runtime.large_values import LargeValues
from tasks_app.runtime.leader.maintainer import LargeValueUpkeep
from tasks_app.runtime.leader.retention import Retention
from tests.factory import claimed_task, ending
from tests.pool.old_days import DAY, NAME, NOON, drop_old_days, old_day
from tests.runtime.bench import Bench
from tests.runtime.large_values.conftest import BIG, echo, values

LONG_AGO = datetime(2020, 1, 1, 12, tzinfo=UTC)


def swept(bench: Bench) -> int:
    """Sweep, and return how many values are left."""
    LargeValueUpkeep(LargeValues(bench.settings()), bench.engine.begin, most=1).run()
    return values(bench)


def ended(bench: Bench, kept: dict[str, Any], *, fails: bool = False, **options: Any) -> int:
    @bench.handler("t", max_attempts=1)
    def run(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
        if fails:
            raise ValueError
        return payload

    task_id = bench.create(payload=BIG, **options)
    bench.drain(**kept)
    return task_id


@pytest.fixture
def old_days(bench: Bench) -> Iterator[None]:
    drop_old_days(bench.engine)
    yield
    drop_old_days(bench.engine)


def old_task(bench: Bench, kept: dict[str, Any]) -> None:
    """A task with a large payload and result that ended on a day of its own."""
    task_id = ended(bench, kept)
    with bench.engine.begin() as connection:  # by now: the worker prunes, too
        old_day(connection, DAY)
    bench.sql("UPDATE task_completed SET finished_at = :at WHERE id = :id", at=NOON, id=task_id)


@pytest.mark.parametrize("fails", [True, False])
def test_it_goes_with_a_row_that_is_too_old(
    bench: Bench, kept: dict[str, Any], *, fails: bool
) -> None:
    task_id = ended(bench, kept, fails=fails)
    table = "task_error" if fails else "task_completed"
    assert swept(bench) == (1 if fails else 2)
    bench.sql(f"UPDATE {table} SET finished_at = :at WHERE id = :id", at=LONG_AGO, id=task_id)

    Retention(bench.settings(keep_errors="1d"), bench.child(start=False).database).run()

    assert values(bench) == 0


@pytest.mark.usefixtures("old_days")
def test_it_goes_with_the_partition_of_its_day(bench: Bench, kept: dict[str, Any]) -> None:
    old_task(bench, kept)

    pruned = Retention(
        bench.settings(keep_completed="30d"), bench.child(start=False).database
    ).run()

    assert (pruned.days, pruned.in_use) == ([NAME], [])
    assert values(bench) == 0


@pytest.mark.usefixtures("old_days")
def test_it_goes_with_one_name_of_a_day_that_stays(bench: Bench, kept: dict[str, Any]) -> None:
    old_task(bench, kept)

    settings = bench.settings(keep_completed="forever,t=1d")
    Retention(settings, bench.child(start=False).database).run()

    assert values(bench) == 0
    assert bench.sql("SELECT count(*) FROM task_all") == 0


def test_an_erased_task_has_none(bench: Bench, kept: dict[str, Any]) -> None:
    ended(bench, kept, biz_key="order:1")
    receipt = erase(bench.engine, ["order:1"], None)
    assert receipt.rows["task_large_value"] == 2
    assert values(bench) == 0


def test_a_cancelled_task_keeps_its_payload_for_as_long_as_its_row(
    bench: Bench, kept: dict[str, Any]
) -> None:
    task_id = bench.create(payload=BIG)
    with bench.engine.begin() as connection:
        cancel_task(connection, task_id)
    assert swept(bench) == 1
    bench.sql("DELETE FROM task_completed WHERE id = :id", id=task_id)  # by hand
    assert swept(bench) == 0


@pytest.mark.test_all
def test_a_requeued_task_runs_with_its_payload_and_leaves_its_old_result(
    bench: Bench, kept: dict[str, Any]
) -> None:
    echo(bench, "t")
    task_id = bench.create(payload=BIG)
    bench.drain(**kept)
    with bench.engine.begin() as connection:
        requeue_task(connection, task_id)
    assert values(bench) == 2
    assert swept(bench) == 1

    bench.drain(**kept)

    assert bench.runs == [BIG, BIG]
    assert reference_of(bench.task(task_id).result)
    assert swept(bench) == 2


def test_a_replaced_payload_is_removed(bench: Bench, kept: dict[str, Any]) -> None:
    bench.create(payload=BIG, unique_key="k")
    bench.create(payload={"n": 1}, unique_key="k", on_conflict="replace_payload")
    assert values(bench) == 1
    assert swept(bench) == 0


def test_an_edited_payload_stands_in_its_row(bench: Bench, kept: dict[str, Any]) -> None:
    echo(bench)
    task_id = bench.create(payload=BIG)
    with bench.engine.begin() as connection:
        assert edit_payload(connection, task_id, {"n": 1}, registry=bench.registry)
    assert swept(bench) == 0
    bench.drain(**kept)
    assert bench.runs == [{"n": 1}]


def test_what_a_running_task_has_written_stays_until_it_has_ended(bench: Bench) -> None:
    """Its result is there before the row refers to it; were it swept, the settle would lose it."""
    value = LargePayload.of('{"text": "x"}', encrypted=False)
    with bench.engine.begin() as connection:
        task = claimed_task(connection)
        write_value(connection, value, task.fence.task_id, RESULT)
    assert swept(bench) == 1
    with bench.engine.begin() as connection:
        settle_one(connection, ending(task))  # with another result
    assert swept(bench) == 0


def test_a_value_is_there_when_its_task_is(bench: Bench, kept: dict[str, Any]) -> None:
    """Step by step: nobody sees the one without the other, and a sweep meanwhile removes none."""
    with bench.engine.connect() as producer:
        task_id = create_task(producer, "t", BIG)
        assert (swept(bench), bench.sql("SELECT count(*) FROM task_pending")) == (0, 0)
        producer.commit()
    assert swept(bench) == 1
    with bench.engine.connect() as connection:
        assert get_task(connection, task_id) is not None


def test_a_producer_that_is_killed_before_its_commit_leaves_nothing(
    bench: Bench, kept: dict[str, Any]
) -> None:
    with bench.engine.connect() as producer:
        create_task(producer, "t", BIG)
        pid = producer.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        bench.sql("SELECT pg_terminate_backend(:pid, 5000)", pid=pid)
        producer.invalidate()
    assert values(bench) == 0
    assert bench.sql("SELECT count(*) FROM task_pending") == 0
