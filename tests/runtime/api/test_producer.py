"""Producers: a task exists if and only if the caller's transaction commits (P1)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
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
    hint_tasks,
    pause_queue,
    requeue_task,
)
from tasks_app.runtime.api import producer
from tasks_app.runtime.api.producer import admitted, admitted_many
from tests.environment import forbidden
from tests.factory import some
from tests.runtime.bench import Bench
from tests.runtime.hints.ear import Ear, told, wait_of


class Order(BaseModel):
    order_id: int


@dataclass
class Parcel:
    weight: float


def names(bench: Bench) -> list[str]:
    return bench.sql("SELECT array_agg(name ORDER BY id) FROM task_pending") or []


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
        async with bench.async_engine() as engine:
            await produce(engine)

    asyncio.run(run())


def test_create_tasks_keeps_the_order_and_tells_which_were_made(bench: Bench) -> None:
    new = [NewTask("t", {"n": n}, {"unique_key": str(n % 3)}) for n in range(5)]
    ids = bench.do(create_tasks, new)
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


def test_an_unknown_handlers_queue_is_told_once(
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
    bench.do(create_tasks, [NewTask("many", {"n": n}, queue=None) for n in range(3)])

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
    assert "payload.weight is refused" in bench.error(wrong)
    assert 'The payload is not stored as {"value": …}' in bench.error(strange)
    assert "secret" not in bench.error(strange)


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


def test_get_cancel_and_requeue_work_on_any_pool_in_the_callers_transaction(bench: Bench) -> None:
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
        found = some(get_task(session, task_id))
        session.rollback()

    assert done == ["cancelled", "already over", "requeued", "still pending", "not found"]
    assert (many.cancelled, many.requested) == (1, 0)
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


MIXED = [NewTask("b"), NewTask("a", None, {"unique_key": "k"}), NewTask("c", {"n": 1})]


@pytest.fixture
def url(bench: Bench) -> str:
    return bench.plain_url


@pytest.fixture
def raw(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


COUNTS_LOCKS = """
    CREATE FUNCTION counts_locks() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        new.biz_key := (SELECT count(*) || ' lock' FROM pg_locks
            WHERE locktype = 'advisory' AND pid = pg_backend_pid());
        RETURN new;
    END $$;
    CREATE TRIGGER counts_locks BEFORE INSERT ON task_pending
        FOR EACH ROW EXECUTE FUNCTION counts_locks()
"""


class TestSync:
    def test_a_task_exists_if_and_only_if_the_transaction_commits(
        self, bench: Bench, raw: psycopg.Connection
    ) -> None:
        task_id = create_task(raw, "committed", {"n": 1}, queue="q", biz_key="order:1")
        create_tasks(raw, [NewTask("one"), NewTask("two")])
        assert names(bench) == []
        raw.commit()
        create_task(raw, "rolled.back")
        create_tasks(raw, [NewTask("rolled.back")] * 2)
        raw.rollback()
        assert names(bench) == ["committed", "one", "two"]
        task = bench.task(task_id)
        assert (task.payload, task.queue, task.biz_key) == ({"n": 1}, "q", "order:1")

    def test_a_savepoint(self, bench: Bench, raw: psycopg.Connection) -> None:
        with raw.transaction():
            create_task(raw, "outer")
            with raw.transaction() as savepoint:
                create_task(raw, "undone")
                create_tasks(raw, [NewTask("undone")] * 2)
                raise psycopg.Rollback(savepoint)
        assert names(bench) == ["outer"]

    def test_autocommit_commits_each_call(self, bench: Bench, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as raw:
            create_task(raw, "one")
            assert names(bench) == ["one"]
            create_tasks(raw, MIXED)
            assert sorted(names(bench)) == ["a", "b", "c", "one"]

    def test_with_autocommit_many_are_created_all_or_none(self, bench: Bench, url: str) -> None:
        with (
            forbidden(bench.engine, "task_pending", "name = 'c'"),  # behind the one with a key
            psycopg.connect(url, autocommit=True) as raw,
            pytest.raises(psycopg.errors.CheckViolation),
        ):
            create_tasks(raw, MIXED)
        assert names(bench) == []

    @pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
    def test_with_autocommit_a_strict_order_holds_its_turn_until_the_commit(
        self, bench: Bench, url: str, many: bool
    ) -> None:
        bench.sql(COUNTS_LOCKS)
        bench.at_end(lambda: bench.sql("DROP FUNCTION counts_locks CASCADE"))
        options: dict[str, Any] = {"order_key": "k", "strict_order": True}
        with psycopg.connect(url, autocommit=True) as raw:
            if many:
                create_tasks(raw, [NewTask("t", None, options)])
            else:
                create_task(raw, "t", **options)
        assert bench.sql("SELECT biz_key FROM task_pending") == "1 lock"

    def test_a_taken_unique_key(self, bench: Bench, raw: psycopg.Connection) -> None:
        first = create_task(raw, "t", unique_key="k")
        again = create_task(raw, "t", unique_key="k")
        many = create_tasks(raw, [NewTask("t", None, {"unique_key": "k"}), NewTask("t")])
        assert (first.created, again, again.created) == (True, first, False)
        assert (many[0], many[0].created, many[1].created) == (first, False, True)

    def test_a_refused_task_leaves_the_transaction_usable(
        self, bench: Bench, raw: psycopg.Connection
    ) -> None:
        with pytest.raises(InvalidTaskError):
            create_task(raw, "bad name!")
        with pytest.raises(InvalidTaskError, match=r"tasks\[1\]\.payload\.x"):
            create_tasks(raw, [NewTask("ok"), NewTask("ok", {"x": float("nan")})])
        create_task(raw, "good")
        raw.commit()
        assert names(bench) == ["good"]

    @pytest.mark.parametrize("kind", [psycopg.ClientCursor, psycopg.RawCursor])
    def test_rows_and_cursors_may_be_of_any_kind(
        self, bench: Bench, url: str, kind: type[psycopg.Cursor]
    ) -> None:
        with psycopg.connect(url, row_factory=dict_row, cursor_factory=kind) as raw:
            first = create_task(raw, "t", delay="5s")
            again = create_tasks(raw, MIXED)
        assert bench.task(first).name == "t"
        assert [bench.task(task_id).name for task_id in again] == ["b", "a", "c"]

    def test_in_a_pipeline(self, bench: Bench, raw: psycopg.Connection) -> None:
        with raw.pipeline():
            create_task(raw, "one")
            create_tasks(raw, MIXED)
        raw.commit()
        assert sorted(names(bench)) == ["a", "b", "c", "one"]

    def test_the_other_verbs_say_that_they_need_sqlalchemy(self, raw: psycopg.Connection) -> None:
        with pytest.raises(TypeError, match=r"^A Connection of psycopg isn't a Session"):
            pause_queue(raw, "default")  # type: ignore[arg-type]

    def test_an_async_connection_is_sent_to_the_async_functions(self, url: str) -> None:
        async def run() -> None:
            async with await psycopg.AsyncConnection.connect(url) as raw:
                create_task(raw, "t")  # type: ignore[arg-type]

        with pytest.raises(TypeError, match=r"AsyncConnection of psycopg .*acreate_task"):
            asyncio.run(run())

    def test_a_sync_connection_is_sent_to_the_sync_functions(self, raw: psycopg.Connection) -> None:
        with pytest.raises(TypeError, match=r"A Connection of psycopg .*create_task"):
            asyncio.run(acreate_task(raw, "t"))  # type: ignore[arg-type]


class TestAsync:
    def run(self, url: str, work: Callable[[psycopg.AsyncConnection], Awaitable[None]]) -> None:
        async def connected() -> None:
            async with await psycopg.AsyncConnection.connect(url) as raw:
                await work(raw)
                await raw.rollback()

        asyncio.run(connected())

    def test_a_task_exists_if_and_only_if_the_transaction_commits(
        self, bench: Bench, url: str
    ) -> None:
        async def work(raw: psycopg.AsyncConnection) -> None:
            await acreate_task(raw, "committed")
            many = await acreate_tasks(raw, MIXED)
            again = await acreate_task(raw, "a", unique_key="k")
            assert (again, again.created) == (many[1], False)
            assert names(bench) == []
            await raw.commit()
            await acreate_task(raw, "rolled.back")
            await acreate_tasks(raw, MIXED)

        self.run(url, work)

        assert names(bench) == ["committed", "b", "a", "c"]

    def test_autocommit_commits_each_call(self, bench: Bench, url: str) -> None:
        async def work(raw: psycopg.AsyncConnection) -> None:
            await raw.set_autocommit(True)
            await acreate_task(raw, "one")
            await acreate_tasks(raw, MIXED)

        self.run(url, work)
        assert names(bench) == ["one", "b", "a", "c"]


class TestHints:
    def test_none_is_sent_unless_it_is_asked_for(
        self, bench: Bench, raw: psycopg.Connection, ear: Ear
    ) -> None:
        one = create_task(raw, "t", queue="mail")
        many = create_tasks(raw, [NewTask("t", None, {"queue": "mail"})] * 2)
        raw.commit()
        assert told(ear) == []
        assert not wait_of(bench, one)
        hint_tasks([one, *many], queue="mail")
        assert sorted(told(ear)) == [one, *many]
        assert {queue for queue, _ in ear.messages} == {"mail"}

    def test_without_a_broker_asking_does_nothing(self) -> None:
        hint_tasks([1])


def test_sqlalchemy_has_no_part_in_it(bench: Bench, raw: psycopg.Connection) -> None:
    create_task(raw, "t")  # what is made once is made
    seen: set[str] = set()
    sys.setprofile(lambda frame, *_: seen.add(frame.f_code.co_filename))
    try:
        create_task(raw, "t", {"n": 1})
    finally:
        sys.setprofile(None)
    assert any("tasks_app" in name for name in seen)
    assert not [name for name in seen if "sqlalchemy" in name]
