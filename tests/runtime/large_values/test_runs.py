"""A large payload reaches its handler, a large result its reader; a store may hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine

from tasks_app import (
    AsyncTaskContext,
    Flow,
    NewTask,
    TaskContext,
    acreate_task,
    acreate_tasks,
    cancel_task,
    create_flow,
    create_group,
    create_schedule,
    create_task,
    create_tasks,
    get_task,
    load_large_values,
    requeue_task,
)
from tasks_app.domain.errors import InvalidTaskError, TasksError
from tasks_app.domain.large_values.store import (
    RESULT,
    LargePayload,
    LargeValueStore,
    Reference,
    reference_of,
)
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.large_values import write_value
from tasks_app.runtime.api.amend_waiting import edit_payload
from tasks_app.runtime.erasure import erase
from tasks_app.runtime.large_values import LargeValues
from tasks_app.runtime.leader import maintainer
from tasks_app.runtime.leader.maintainer import LargeValueUpkeep, Maintainer
from tasks_app.runtime.leader.retention import Retention
from tests.clock import until
from tests.factory import claimed_task, ending
from tests.pool.database import DAY, NAME, NOON, drop_old_days, old_day
from tests.runtime.bench import Bench
from tests.runtime.large_values.conftest import BIG, Configure, echo, values


def test_without_the_setting_it_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidTaskError, match="at most 65536 bytes"):
        bench.create(payload=BIG)


def test_payload_and_result_are_kept_outside_of_the_row(bench: Bench, kept: dict[str, Any]) -> None:
    echo(bench)
    task_id = bench.create(payload=BIG)
    assert reference_of(bench.task(task_id).payload)

    bench.drain(**kept)

    assert bench.runs == [BIG]
    task = bench.task(task_id)
    assert task.state == "SUCCEEDED"
    assert (reference_of(task.payload), reference_of(task.result)) != (None, None)
    assert values(bench) == 2
    full = bench.do(load_large_values, task)
    assert (full.payload, full.result) == (BIG, {"echo": BIG})


@pytest.mark.test_all
def test_fifty_megabytes_go_there_and_back(bench: Bench, kept: dict[str, Any]) -> None:
    echo(bench)
    payload = {"text": "".join(f"{n:08x}" for n in range(50 * 1024 * 1024 // 8))}
    task_id = bench.create(payload=payload)
    bench.drain(**kept)
    assert bench.runs == [payload]
    full = bench.do(load_large_values, bench.task(task_id))
    assert full.result == {"echo": payload}


def test_more_than_the_large_limit_is_refused(bench: Bench, configure: Configure) -> None:
    configure(large_values="database", large_limit=2**17)
    with pytest.raises(InvalidTaskError, match="at most 131072 bytes"):
        bench.create(payload={"text": "x" * 2**17})


def test_a_result_beyond_it_fails_by_name(bench: Bench, configure: Configure) -> None:
    kept = configure(large_values="database", large_limit=2**17)
    bench.handler()(lambda ctx: "x" * 2**17)
    task_id = bench.create()
    bench.drain(**kept)
    assert "result cannot be stored" in bench.error(task_id)


def test_an_async_handler_has_it_too(bench: Bench, kept: dict[str, Any]) -> None:
    @bench.handler()
    async def run(ctx: AsyncTaskContext, payload: dict[str, Any]) -> dict[str, Any]:
        bench.runs.append(payload)
        return payload

    task_id = bench.create(payload=BIG)
    bench.drain(**kept)
    assert bench.runs == [BIG]
    assert reference_of(bench.task(task_id).result)


def test_a_result_commits_with_what_its_handler_wrote(bench: Bench, kept: dict[str, Any]) -> None:
    @bench.handler()
    def run(ctx: TaskContext) -> dict[str, Any]:
        ctx.connection.exec_driver_sql("INSERT INTO effect (task_id, note) VALUES (1, 'x')")
        return BIG

    task_id = bench.create()
    bench.drain(**kept)
    assert bench.do(load_large_values, bench.task(task_id)).result == BIG


def test_one_among_many_is_large(bench: Bench, kept: dict[str, Any]) -> None:
    echo(bench)
    bench.do(create_tasks, [NewTask("t", BIG if n == 7 else {"n": n}) for n in range(20)])
    assert values(bench) == 1
    bench.drain(**kept)
    assert BIG in bench.runs
    assert len(bench.runs) == 20


def test_every_kind_of_connection_keeps_it(bench: Bench, kept: dict[str, Any]) -> None:
    with psycopg.connect(bench.plain_url, autocommit=True) as raw:
        create_task(raw, "t", BIG)
    with psycopg.connect(bench.plain_url) as raw:
        create_tasks(raw, [NewTask("t", BIG)])
    engine = create_engine(bench.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(TasksError, match="needs a transaction"):
        create_task(connection, "t", BIG)
    engine.dispose()
    assert values(bench) == 2
    assert bench.sql("SELECT count(*) FROM task_pending") == 2


def test_async_connections_keep_it(bench: Bench, kept: dict[str, Any]) -> None:
    async def through_each() -> None:
        async with bench.async_engine() as engine, engine.begin() as connection:
            await acreate_task(connection, "t", BIG)
        plain = psycopg.AsyncConnection.connect(bench.plain_url, autocommit=True)
        async with await plain as raw:
            await acreate_task(raw, "t", BIG)
            await acreate_tasks(raw, [NewTask("t", BIG)])

    asyncio.run(through_each())
    assert values(bench) == 3


def test_a_rollback_keeps_nothing(bench: Bench, kept: dict[str, Any]) -> None:
    with bench.engine.connect() as connection:
        create_task(connection, "t", BIG)
        connection.rollback()
    assert values(bench) == 0


def test_a_taken_key_keeps_no_value(bench: Bench, kept: dict[str, Any]) -> None:
    echo(bench)
    first = bench.create(payload=BIG, unique_key="k")
    assert not bench.create(payload={"text": "y" * 100_000}, unique_key="k").created
    assert values(bench) == 1
    new = {"text": "z" * 100_000}
    assert bench.create(payload=new, unique_key="k", on_conflict="replace_payload") == first
    bench.drain(**kept)
    assert bench.runs == [new]


def test_only_members_of_groups_may_be_large(bench: Bench, kept: dict[str, Any]) -> None:
    bench.do(create_group, [NewTask("t", BIG)])
    assert values(bench) == 1
    with bench.engine.begin() as connection:
        with pytest.raises(InvalidTaskError, match=r"then"):
            create_group(connection, [NewTask("t")], then=NewTask("t", BIG))
        with pytest.raises(InvalidTaskError, match="at most 65536 bytes"):
            create_schedule(connection, "s", "t", BIG, every="1h")


def test_a_reference_is_nobodys_payload(bench: Bench, kept: dict[str, Any]) -> None:
    task_id = bench.create(payload=BIG)
    payload = bench.task(task_id).payload
    with pytest.raises(InvalidTaskError, match="is a stored reference"):
        bench.create(payload=payload)


def test_a_reference_opens_no_value_of_another_task(bench: Bench, kept: dict[str, Any]) -> None:
    echo(bench)
    owner = bench.create(payload=BIG, delay="1h")
    reference = reference_of(bench.task(owner).payload)
    assert isinstance(reference, Reference)
    thief = bench.sql("SELECT task_create('t', CAST(:p AS jsonb))", p=str(reference))
    bench.drain(**kept)
    assert bench.runs == []
    assert "is missing" in bench.error(thief)


def test_a_payload_that_looks_like_one_is_a_payload(bench: Bench, kept: dict[str, Any]) -> None:
    echo(bench)
    bench.create(payload={"$large": 5})
    bench.drain(**kept)
    assert bench.runs == [{"$large": 5}]


def test_a_worker_without_the_setting_loads_it(bench: Bench, kept: dict[str, Any]) -> None:
    bench.handler()(lambda ctx, payload: bench.runs.append(payload))
    task_id = bench.run_one(payload=BIG)
    assert bench.runs == [BIG]
    assert bench.do(get_task, task_id) == bench.task(task_id)


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
    bench.do(old_day, DAY)
    bench.sql("UPDATE task_completed SET finished_at = :at WHERE id = :id", at=NOON, id=task_id)


@pytest.mark.parametrize("fails", [True, False])
def test_it_goes_with_its_old_row(bench: Bench, kept: dict[str, Any], *, fails: bool) -> None:
    task_id = ended(bench, kept, fails=fails)
    table = "task_error" if fails else "task_completed"
    assert swept(bench) == (1 if fails else 2)
    bench.sql(f"UPDATE {table} SET finished_at = :at WHERE id = :id", at=LONG_AGO, id=task_id)
    Retention(bench.settings(keep_errors="1d"), bench.child(start=False).database).run()
    assert values(bench) == 0


@pytest.mark.usefixtures("old_days")
def test_a_flow_keeps_a_large_result_that_a_later_step_needs(
    bench: Bench, kept: dict[str, Any]
) -> None:
    read: list[Any] = []
    bench.handler("big")(lambda ctx: BIG)
    bench.handler("later")(lambda ctx: read.append(ctx.need("big")))
    flow = Flow("f")
    flow.step("later", "later", needs=flow.step("big", "big"), delay="1h")
    big = bench.do(create_flow, flow).task_ids["big"]
    bench.drain(**kept)
    bench.do(old_day, DAY)
    bench.sql("UPDATE task_completed SET finished_at = :at WHERE id = :id", at=NOON, id=big)
    child = bench.child(start=False)
    pruned = Retention(bench.settings(keep_completed="30d"), child.database).run()
    assert pruned.days == [NAME]

    bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
    bench.drain(**kept)
    assert read == [BIG]


def test_items_of_a_map_and_their_results_may_be_large(bench: Bench, kept: dict[str, Any]) -> None:
    read: list[Any] = []
    bench.handler("list")(lambda ctx: [BIG, {"n": 1}])
    bench.handler("item")(lambda ctx, payload: payload)
    bench.handler("read")(lambda ctx: read.append(ctx.need("all")))
    flow = Flow("f")
    flow.map("all", "item", over=flow.step("list", "list"))
    flow.step("read", "read", needs="all")
    bench.do(create_flow, flow)
    bench.drain(**kept)
    assert read == [[BIG, {"n": 1}]]
    assert values(bench) == 3  # the list, the payload of an item and its result


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


def test_a_cancelled_task_keeps_its_payload(bench: Bench, kept: dict[str, Any]) -> None:
    task_id = bench.create(payload=BIG)
    bench.do(cancel_task, task_id)
    assert swept(bench) == 1
    bench.sql("DELETE FROM task_completed WHERE id = :id", id=task_id)  # by hand
    assert swept(bench) == 0


@pytest.mark.test_all
def test_a_requeued_task_has_its_payload_alone(bench: Bench, kept: dict[str, Any]) -> None:
    echo(bench, "t")
    task_id = bench.create(payload=BIG)
    bench.drain(**kept)
    bench.do(requeue_task, task_id)
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
    assert bench.do(edit_payload, task_id, {"n": 1}, registry=bench.registry)
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
    bench.do(settle_one, ending(task))  # with another result
    assert swept(bench) == 0


def test_a_value_is_there_when_its_task_is(bench: Bench, kept: dict[str, Any]) -> None:
    """Step by step: nobody sees the one without the other, and a sweep meanwhile removes none."""
    with bench.engine.connect() as producer:
        task_id = create_task(producer, "t", BIG)
        assert (swept(bench), bench.sql("SELECT count(*) FROM task_pending")) == (0, 0)
        producer.commit()
    assert swept(bench) == 1
    assert bench.do(get_task, task_id) is not None


def test_a_killed_producer_leaves_no_value(bench: Bench, kept: dict[str, Any]) -> None:
    with bench.engine.connect() as producer:
        create_task(producer, "t", BIG)
        pid = producer.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        bench.sql("SELECT pg_terminate_backend(:pid, 5000)", pid=pid)
        producer.invalidate()
    assert values(bench) == 0
    assert bench.sql("SELECT count(*) FROM task_pending") == 0


DONE = "SELECT done_at FROM task_lease WHERE name = 'maintain'"
ASKED, ANSWERED, OVER = threading.Event(), threading.Event(), threading.Event()


class Hanging:
    """Answers when the test is over."""

    def put(self, key: str, data: bytes) -> None: ...

    def get(self, key: str) -> bytes | None: ...

    def delete(self, key: str) -> None: ...

    def keys(self, before: datetime) -> Iterator[str]:
        ASKED.set()
        OVER.wait(10)
        ANSWERED.set()
        return iter(())


def hanging() -> LargeValueStore:
    return Hanging()


@pytest.fixture
def events(bench: Bench) -> None:
    for each in (ASKED, ANSWERED, OVER):
        each.clear()
    bench.at_end(OVER.set)


@pytest.mark.usefixtures("maintenance_due", "events")
def test_maintenance_ends_as_a_store_hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = bench.settings(large_values=f"{__name__}:hanging")
    database = bench.database()
    monkeypatch.setattr(maintainer, "PRUNE_FOR_S", 60)
    Maintainer(database, settings=settings).run_if_due()
    assert not ANSWERED.is_set()
    assert bench.sql(DONE)
    until(ASKED.is_set)


@pytest.mark.usefixtures("events")
def test_one_look_at_a_store_at_a_time(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    values = LargeValues(bench.settings(large_values=f"{__name__}:hanging"))
    upkeep = LargeValueUpkeep(values, bench.engine.begin)
    upkeep.start_outside()
    until(ASKED.is_set)
    ASKED.clear()
    upkeep.start_outside()
    assert not ASKED.is_set()
    assert "still runs" in caplog.text
