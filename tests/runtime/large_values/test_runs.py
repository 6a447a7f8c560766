"""A large payload reaches its handler, and a large result its reader; rows have references."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from tasks_app import (
    AsyncTaskContext,
    NewTask,
    TaskContext,
    acreate_task,
    acreate_tasks,
    create_group,
    create_schedule,
    create_task,
    create_tasks,
    get_task,
    load_large_values,
)
from tasks_app.domain.errors import InvalidTaskError, TasksError
from tasks_app.domain.large_values.store import Reference, reference_of
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
    with bench.engine.connect() as connection:
        full = load_large_values(connection, task)
    assert (full.payload, full.result) == (BIG, {"echo": BIG})


@pytest.mark.test_all
def test_fifty_megabytes_go_there_and_back(bench: Bench, kept: dict[str, Any]) -> None:
    echo(bench)
    payload = {"text": "".join(f"{n:08x}" for n in range(50 * 1024 * 1024 // 8))}
    task_id = bench.create(payload=payload)

    bench.drain(**kept)

    assert bench.runs == [payload]
    with bench.engine.connect() as connection:
        full = load_large_values(connection, bench.task(task_id))
    assert full.result == {"echo": payload}


def test_more_than_the_large_limit_is_refused(bench: Bench, configure: Configure) -> None:
    configure(large_values="database", large_limit=2**17)
    with pytest.raises(InvalidTaskError, match="at most 131072 bytes"):
        bench.create(payload={"text": "x" * 2**17})


def test_a_result_beyond_it_fails_by_name(bench: Bench, configure: Configure) -> None:
    kept = configure(large_values="database", large_limit=2**17)

    @bench.handler()
    def run(ctx: TaskContext) -> str:
        return "x" * 2**17

    task_id = bench.create()
    bench.drain(**kept)

    assert "result cannot be stored" in str(bench.task(task_id).error)


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

    with bench.engine.connect() as connection:
        assert load_large_values(connection, bench.task(task_id)).result == BIG


def test_one_among_many_is_large(bench: Bench, kept: dict[str, Any]) -> None:
    echo(bench)
    with bench.engine.begin() as connection:
        create_tasks(connection, [NewTask("t", BIG if n == 7 else {"n": n}) for n in range(20)])
    assert values(bench) == 1

    bench.drain(**kept)

    assert BIG in bench.runs
    assert len(bench.runs) == 20


def test_every_kind_of_connection_keeps_it(bench: Bench, kept: dict[str, Any]) -> None:
    url = bench.url.replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(url, autocommit=True) as raw:
        create_task(raw, "t", BIG)
    with psycopg.connect(url) as raw:
        create_tasks(raw, [NewTask("t", BIG)])
    engine = create_engine(bench.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(TasksError, match="needs a transaction"):
        create_task(connection, "t", BIG)
    engine.dispose()
    assert values(bench) == 2
    assert bench.sql("SELECT count(*) FROM task_pending") == 2


async def _through_async(url: str) -> None:
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await acreate_task(connection, "t", BIG)
    await engine.dispose()
    async with await psycopg.AsyncConnection.connect(
        url.replace("postgresql+psycopg", "postgresql"), autocommit=True
    ) as raw:
        await acreate_task(raw, "t", BIG)
        await acreate_tasks(raw, [NewTask("t", BIG)])


def test_async_connections_keep_it(bench: Bench, kept: dict[str, Any]) -> None:
    import asyncio

    asyncio.run(_through_async(bench.url))
    assert values(bench) == 3


def test_a_rollback_keeps_nothing(bench: Bench, kept: dict[str, Any]) -> None:
    with bench.engine.connect() as connection:
        create_task(connection, "t", BIG)
        connection.rollback()
    assert values(bench) == 0


def test_a_taken_key_keeps_nothing_and_a_replaced_payload_is_the_new_one(
    bench: Bench, kept: dict[str, Any]
) -> None:
    echo(bench)
    first = bench.create(payload=BIG, unique_key="k")
    assert not bench.create(payload={"text": "y" * 100_000}, unique_key="k").created
    assert values(bench) == 1

    new = {"text": "z" * 100_000}
    assert bench.create(payload=new, unique_key="k", on_conflict="replace_payload") == first
    bench.drain(**kept)

    assert bench.runs == [new]


def test_members_of_groups_may_be_large_but_no_callback_and_no_schedule(
    bench: Bench, kept: dict[str, Any]
) -> None:
    with bench.engine.begin() as connection:
        create_group(connection, [NewTask("t", BIG)])
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
    assert "is missing" in str(bench.task(thief).error)


def test_a_payload_that_looks_like_one_is_a_payload(bench: Bench, kept: dict[str, Any]) -> None:
    echo(bench)
    bench.create(payload={"$large": 5})
    bench.drain(**kept)
    assert bench.runs == [{"$large": 5}]


def test_a_worker_without_the_setting_loads_it(bench: Bench, kept: dict[str, Any]) -> None:
    @bench.handler()
    def run(ctx: TaskContext, payload: dict[str, Any]) -> None:
        bench.runs.append(payload)

    task_id = bench.create(payload=BIG)
    bench.drain()
    assert bench.runs == [BIG]
    with bench.engine.connect() as connection:
        assert get_task(connection, task_id) == bench.task(task_id)
