"""Unique keys through each door: psycopg's connections, sessions, the buffer; and their pruning."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tasks_app import (
    InvalidTaskError,
    NewTask,
    TaskBuffer,
    UniqueKeyTakenError,
    acreate_task,
    acreate_tasks,
    create_task,
    create_tasks,
)
from tests.runtime.bench import Bench, own_maintainer

SCOPES = ("queued", "until_terminal", "for_period 1h", "forever")
NUMBER = "SELECT count(*) FROM task_pending"


@pytest.fixture
def url(bench: Bench) -> str:
    return make_url(bench.url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture(params=[False, True], ids=["transaction", "autocommit"])
def raw(url: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=request.param) as connection:
        yield connection


def keyed(scope: str, key: str = "k", policy: str = "return_existing") -> NewTask:
    return NewTask("t", None, {"unique_key": key, "unique_scope": scope, "on_conflict": policy})


@pytest.mark.parametrize("scope", SCOPES)
def test_a_connection_of_psycopg(bench: Bench, raw: psycopg.Connection, scope: str) -> None:
    first = create_task(raw, "t", **keyed(scope).options)
    told = create_tasks(raw, [keyed(scope), NewTask("t"), keyed(scope, policy="reschedule")])
    with pytest.raises(UniqueKeyTakenError) as taken:
        create_tasks(raw, [keyed(scope, "new"), keyed(scope, policy="raise")])
    raw.commit()

    assert [i.outcome for i in told] == ["existing", "created", "rescheduled"]
    assert told[0] == told[2] == first == taken.value.holder
    assert bench.sql(NUMBER) == 2


@pytest.mark.parametrize("scope", SCOPES)
def test_a_pipeline_of_psycopg(bench: Bench, url: str, scope: str) -> None:
    with psycopg.connect(url) as connection, connection.pipeline():
        first = create_task(connection, "t", **keyed(scope).options)
        with pytest.raises(UniqueKeyTakenError):
            create_tasks(connection, [keyed(scope, "new"), keyed(scope, policy="raise")])
        assert create_tasks(connection, [keyed(scope), keyed(scope, "n")])[0] == first

    assert bench.sql(NUMBER) == 2


@pytest.mark.parametrize("scope", SCOPES)
def test_an_async_connection_of_psycopg(bench: Bench, url: str, scope: str) -> None:
    async def act() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            first = await acreate_task(connection, "t", **keyed(scope).options)
            again = await acreate_tasks(connection, [keyed(scope), keyed(scope, "n")])
            assert (again[0], [i.created for i in again]) == (first, [False, True])
            with pytest.raises(UniqueKeyTakenError):
                await acreate_tasks(connection, [keyed(scope, "new"), keyed(scope, "n", "raise")])

    asyncio.run(act())
    assert bench.sql(NUMBER) == 2


@pytest.mark.parametrize("scope", SCOPES)
def test_sessions_sync_and_async(bench: Bench, scope: str) -> None:
    async def act() -> None:
        engine = create_async_engine(bench.url)
        async with AsyncSession(engine) as session:
            assert await acreate_task(session, "t", **keyed(scope).options) == first
            with pytest.raises(UniqueKeyTakenError):
                await acreate_tasks(session, [keyed(scope, "n"), keyed(scope, policy="raise")])
            await session.commit()
        await engine.dispose()

    with Session(bench.engine) as session:
        first = create_task(session, "t", **keyed(scope).options)
        session.commit()
    asyncio.run(act())

    assert bench.sql(NUMBER) == 1


def test_a_buffer_takes_all_but_raise_which_nobody_would_hear(bench: Bench) -> None:
    with TaskBuffer(bench.engine) as buffer:
        for scope in SCOPES * 2:
            buffer.create_task("t", **keyed(scope, scope).options)
        with pytest.raises(InvalidTaskError, match="on_conflict"):
            buffer.create_task("t", **keyed("forever", policy="raise").options)

    assert bench.sql(NUMBER) == len(SCOPES)


@pytest.mark.usefixtures("maintenance_due")
def test_maintenance_prunes_keys_a_little_at_a_time(bench: Bench) -> None:
    """Who maintains may have to scan; the rest goes at the next looks, not an hour later."""
    bench.sql(
        "INSERT INTO task_key (name, unique_key, task_id, scope)"
        " SELECT 't', i::text, 0, 'queued' FROM generate_series(1, 5) AS i"
    )
    mine = own_maintainer(bench, prune_for_s=0, look_every_s=0, rows_at_once=2)

    left = []
    for _ in range(3):
        mine.run_if_due()
        left.append(bench.sql("SELECT count(*) FROM task_key"))

    assert left == [3, 1, 0]


def test_maintenance_prunes(bench: Bench) -> None:
    with Session(bench.engine) as session:
        for scope in SCOPES:
            create_task(session, "t", **keyed(scope, scope).options)
        session.execute(text("UPDATE task_key SET until = 'epoch' WHERE until IS NOT NULL"))
        session.execute(text("DELETE FROM task_pending"))
        session.commit()
    own_maintainer(bench).run_once()

    assert bench.sql("SELECT array_agg(unique_key) FROM task_key") == ["forever"]
