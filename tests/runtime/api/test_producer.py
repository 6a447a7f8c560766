"""Producers: a task exists if and only if the caller's transaction commits (P1)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tasks_app import (
    InvalidTaskError,
    NewTask,
    TaskContext,
    acreate_task,
    acreate_tasks,
    cancel_task,
    cancel_tasks,
    create_task,
    create_tasks,
    get_task,
    requeue_task,
)
from tasks_app.runtime.api import producer
from tasks_app.runtime.api.producer import admitted, admitted_many
from tests.runtime.bench import Bench


class Order(BaseModel):
    """A payload."""

    order_id: int


@dataclass
class Parcel:
    """Another."""

    weight: float


def names(bench: Bench) -> list[str]:
    found = bench.sql("SELECT array_agg(name ORDER BY id) FROM task_pending")
    return found or []


class TestExistsIfAndOnlyIfCommitted:
    def test_session(self, bench: Bench) -> None:
        with Session(bench.engine) as session, session.begin():
            task_id = create_task(session, "committed")
            assert names(bench) == []
        with Session(bench.engine) as session:
            create_task(session, "rolled.back")
            session.rollback()
        failing = Session(bench.engine)
        with contextlib.suppress(ZeroDivisionError), failing, failing.begin():
            create_task(failing, "raised")
            raise ZeroDivisionError

        assert names(bench) == ["committed"]
        assert bench.task(task_id).name == "committed"

    def test_savepoint_of_a_session(self, bench: Bench) -> None:
        with Session(bench.engine) as session, session.begin():
            create_task(session, "outer")
            with session.begin_nested():
                create_task(session, "inner")
            with session.begin_nested() as savepoint:
                create_task(session, "undone")
                savepoint.rollback()

        assert names(bench) == ["outer", "inner"]

    def test_connection(self, bench: Bench) -> None:
        with bench.engine.connect() as connection:
            create_task(connection, "committed")
            connection.commit()
            create_task(connection, "rolled.back")
            connection.rollback()
            savepoint = connection.begin_nested()
            create_task(connection, "undone")
            savepoint.rollback()
            connection.commit()

        assert names(bench) == ["committed"]

    def test_async_session(self, bench: Bench) -> None:
        async def produce(engine: AsyncEngine) -> None:
            async with AsyncSession(engine) as session, session.begin():
                await acreate_task(session, "committed")
                async with session.begin_nested() as savepoint:
                    await acreate_task(session, "undone")
                    await savepoint.rollback()
            async with AsyncSession(engine) as session:
                await acreate_task(session, "rolled.back")

        in_a_loop(bench, produce)

        assert names(bench) == ["committed"]

    def test_async_connection(self, bench: Bench) -> None:
        async def produce(engine: AsyncEngine) -> None:
            async with engine.begin() as connection:
                await acreate_tasks(connection, [NewTask("first"), NewTask("second")])
            connection: AsyncConnection
            async with engine.connect() as connection:
                await acreate_task(connection, "rolled.back")

        in_a_loop(bench, produce)

        assert names(bench) == ["first", "second"]


def in_a_loop(bench: Bench, produce: Callable[[AsyncEngine], Awaitable[None]]) -> None:
    async def run() -> None:
        engine = create_async_engine(bench.url)
        try:
            await produce(engine)
        finally:
            await engine.dispose()

    asyncio.run(run())


def test_create_tasks_keeps_the_order_and_tells_which_were_made(bench: Bench) -> None:
    new = [NewTask("t", {"n": n}, {"unique_key": str(n % 3)}) for n in range(5)]

    with bench.engine.begin() as connection:
        ids = create_tasks(connection, new)

    assert [task_id.created for task_id in ids] == [True, True, True, False, False]
    assert ids[3:] == ids[:2]
    assert bench.task(ids[2]).payload == {"n": 2}


def test_one_bad_task_refuses_all_and_says_which(bench: Bench) -> None:
    with bench.engine.begin() as connection, pytest.raises(InvalidTaskError) as refused:
        create_tasks(connection, [NewTask("ok"), NewTask("ok", {"x": float("nan")})])

    assert refused.value.path == "tasks[1].payload.x"
    assert names(bench) == []


A = "t"
MIXTURE = [
    NewTask(A, {"n": 1}),
    NewTask(A, {"n": [1.5, {"a": None}]}),
    NewTask(A),
    NewTask(A, {}),
    NewTask(A, {"n": 1e17, "m": (2, [-0.0])}),
    NewTask(A, Order(order_id=1)),
    NewTask(A, {"n": "\x7f"}, {"queue": "other", "biz_key": "b"}),
    NewTask(A, {"n": 2}, {}),
    NewTask(A, {"n": 3}, {"priority": 1}),
    NewTask(A, args=[1], kwargs={"b": 2}),
    NewTask(A, kwargs={}),
    NewTask(A, MappingProxyType({"n": 4})),
    NewTask(A, {"n": 5}),
    NewTask("other", {"n": 5}),
    NewTask("other", {"n": 1e300}),
    NewTask("strict", {"order_id": "6"}),
    NewTask("strict", {"order_id": 7}),
    NewTask(A, {"n": 8}),
]


@pytest.fixture
def strict(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of this process that takes orders only."""

    @bench.handler("strict", queue="slow")
    def strict(_ctx: TaskContext, _order: Order) -> None: ...

    monkeypatch.setattr(producer, "HANDLERS", bench.registry)


@pytest.mark.usefixtures("strict")
def test_many_are_admitted_as_each_by_itself() -> None:
    assert admitted_many(MIXTURE) == [admitted(task) for task in MIXTURE]


BAD = [
    *(NewTask(A, {"n": bad}) for bad in (float("nan"), "\x00", 2**63, object())),
    NewTask(A, {1: 1}),  # type: ignore[dict-item]
    NewTask(A, [1]),  # type: ignore[arg-type]
    NewTask(A, {"n": "x" * 100_000}),
    NewTask(A, {"n": 1}, {"queue": ""}),
    NewTask(A, {"n": 1}, args=[1]),
    NewTask("", {}),
    NewTask(None, {}),
    NewTask("strict", {"order_id": "x"}),
]


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("before", [0, 1, 3])
def test_what_is_refused_by_itself_is_refused_behind_its_like(bad: NewTask, before: int) -> None:
    with pytest.raises(InvalidTaskError) as alone:
        admitted(bad)
    fine = NewTask(bad.task or A, {"order_id": 1})
    with pytest.raises(InvalidTaskError) as among:
        admitted_many([fine] * before + [bad])

    assert among.value.path == f"tasks[{before}].{alone.value.path}"


def test_a_refused_task_leaves_the_transaction_usable(bench: Bench) -> None:
    with Session(bench.engine) as session, session.begin():
        with pytest.raises(InvalidTaskError):
            create_task(session, "bad name!")
        create_task(session, "good")

    assert names(bench) == ["good"]


def test_a_handler_stands_for_its_name_queue_and_payload_type(bench: Bench) -> None:
    @bench.handler("points.grant", queue="points")
    def grant(ctx: Any, payload: Order) -> None: ...

    with bench.engine.begin() as connection:
        task_id = create_task(connection, grant, Order(order_id=1))
        with pytest.raises(InvalidTaskError) as refused:
            create_task(connection, grant, {"order_id": "one"})

    assert refused.value.path == "payload.order_id"
    task = bench.task(task_id)
    assert (task.name, task.queue, task.payload) == ("points.grant", "points", {"order_id": 1})


def test_who_does_not_know_the_handler_is_told_once_where_its_tasks_go(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever creates by a name; not who says the queue, nor who knows the handler."""
    caplog.set_level(logging.INFO, "tasks_app")
    bench.create("in.mail", queue="mail")
    with contextlib.suppress(InvalidTaskError):
        bench.create("refused", {"n": object()})
    assert caplog.messages == []

    bench.create("by.name")
    bench.create("by.name")
    with bench.engine.begin() as connection:
        create_tasks(connection, [NewTask("many", {"n": n}, queue=None) for n in range(3)])

    assert [message.partition(" ")[0] for message in caplog.messages] == ["by.name", "many"]
    assert caplog.messages[0] == (
        "by.name has no handler in this process, so its tasks go to the queue default. "
        "Import the handler's module, or give queue=."
    )


def test_whatever_a_handler_says_its_payload_is_arrives_as_that(bench: Bench) -> None:
    seen: list[Any] = []

    @bench.handler("parcel")
    def parcel(ctx: TaskContext, payload: Parcel) -> None:
        seen.append(payload)

    @bench.handler("numbers")
    def numbers(ctx: TaskContext, payload: list[int]) -> None:
        seen.append(payload)

    @bench.handler("maybe")
    def maybe(ctx: TaskContext, payload: Order | None) -> None:
        seen.append(payload)

    with bench.engine.begin() as connection:
        create_task(connection, parcel, Parcel(1.5))
        create_tasks(connection, [NewTask(numbers, [1, 2]), NewTask(maybe, Order(order_id=1))])
        create_task(connection, maybe)
    bench.sql("""SELECT task_create('numbers', '{"value": [3]}')""")
    wrong = bench.sql("""SELECT task_create('parcel', '{"weight": "much"}')""")
    strange = bench.sql("""SELECT task_create('numbers', '{"secret": 1}')""")
    bench.drain()

    assert seen == [Parcel(1.5), [1, 2], Order(order_id=1), None, [3]]
    assert "payload.weight is refused" in str(bench.task(wrong).error)
    assert 'The payload is not stored as {"value": …}' in str(bench.task(strange).error)
    assert "secret" not in str(bench.task(strange).error)


class TestWrongSessions:
    def test_an_async_session_is_sent_to_the_async_functions(self, bench: Bench) -> None:
        with pytest.raises(TypeError, match=r"AsyncSession isn't a Session.*acreate_task"):
            create_task(AsyncSession(), "t")  # type: ignore[arg-type]

    def test_a_sync_session_is_sent_to_the_sync_functions(self, bench: Bench) -> None:
        with pytest.raises(TypeError, match=r"A Session isn't an AsyncSession.*create_task"):
            asyncio.run(acreate_task(Session(bench.engine), "t"))  # type: ignore[arg-type]

    def test_an_engine_is_no_session(self, bench: Bench) -> None:
        with pytest.raises(TypeError, match="An Engine isn't a Session"):
            create_task(bench.engine, "t")  # type: ignore[arg-type]


def test_get_cancel_and_requeue_work_on_any_pool_and_in_the_callers_transaction(
    bench: Bench,
) -> None:
    task_id = bench.create(biz_key="order:1")

    with Session(bench.engine) as session, session.begin():
        done = [
            cancel_task(session, task_id),
            cancel_task(session, task_id),
            requeue_task(session, task_id),
            requeue_task(session, task_id),
            cancel_task(session, 2**60),
        ]
        many = cancel_tasks(session, biz_key="order:1")
        found = get_task(session, task_id)
        session.rollback()

    assert done == ["cancelled", "already over", "requeued", "still pending", "not found"]
    assert (many.cancelled, many.requested) == (1, 0)
    assert found is not None
    assert found.state == "CANCELLED"
    assert bench.state(task_id) == "PENDING"


def test_cancel_tasks_never_cancels_everything(bench: Bench) -> None:
    with Session(bench.engine) as session, pytest.raises(ValueError, match="never cancels"):
        cancel_tasks(session)


PRODUCER = """
import json, sys
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tasks_app import create_task, handler

engine = create_engine(sys.argv[1])
with Session(engine) as session, session.begin():
    task_id = create_task(session, "from.a.producer")
engine.dispose()
heavy = [name for name in ("celery", "kombu", "redis", "flower", "billiard") if name in sys.modules]
print(json.dumps([task_id, heavy]))
"""


@pytest.mark.test_all
def test_a_producer_needs_neither_celery_nor_a_broker_nor_our_configuration(bench: Bench) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TASKS_APP_")}

    done = subprocess.run(
        [sys.executable, "-c", PRODUCER, bench.url],
        env=environment,
        capture_output=True,
        check=True,
    )

    task_id, heavy = json.loads(done.stdout)
    assert heavy == []
    assert bench.task(task_id).name == "from.a.producer"
    assert done.stderr == b""
