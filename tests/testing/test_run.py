"""``run`` and ``make_context``: a handler as a function of its payload."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tasks_app.domain.errors import InvalidTaskError, TasksError
from tasks_app.domain.flows import StepEnd
from tasks_app.domain.handlers.outcomes import Fail, Snooze
from tasks_app.runtime.api.producer import create_task
from tasks_app.runtime.handlers.context import AsyncTaskContext, TaskContext
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.runtime.handlers.sql_handler import sql_handler
from tasks_app.testing import arun, created, make_context, run
from tests.testing.conftest import NOTE, Kit, in_async_session


class Points(BaseModel):
    order_id: int


def test_it_returns_what_the_handler_returns(registry: Registry) -> None:
    @handler("points.grant", registry=registry)
    def grant(ctx: TaskContext, payload: Points) -> dict[str, int]:
        assert isinstance(payload, Points)
        return {"points": payload.order_id, "attempt": ctx.attempt}

    assert run(grant, Points(order_id=7)) == {"points": 7, "attempt": 1}
    assert run("points.grant", {"order_id": 7}, registry=registry, attempt=3)["attempt"] == 3


def test_it_raises_what_the_handler_raises(registry: Registry) -> None:
    @handler("a", registry=registry)
    def later(ctx: TaskContext) -> None:
        raise Snooze("1h")

    with pytest.raises(Snooze):
        run(later)


def test_the_payload_is_checked_as_a_producers(registry: Registry) -> None:
    @handler("points.grant", registry=registry)
    def grant(ctx: TaskContext, payload: Points) -> None: ...

    with pytest.raises(InvalidTaskError, match="order_id"):
        run("points.grant", {"order": 7}, registry=registry)


def test_a_result_that_cannot_be_stored_fails_as_in_a_worker(registry: Registry) -> None:
    @handler("a", registry=registry)
    def bad(ctx: TaskContext) -> object:
        return object()

    with pytest.raises(Fail, match="result cannot be stored"):
        run(bad)


def test_an_unknown_name_is_said(registry: Registry) -> None:
    with pytest.raises(LookupError, match="No handler is named 'a'"):
        run("a", registry=registry)


def test_a_created_task_is_run_with_its_payload(session: Session, registry: Registry) -> None:
    @handler("a", registry=registry)
    def told(ctx: TaskContext, payload: dict[str, Any]) -> list[Any]:
        return [ctx.task_id, ctx.biz_key, payload]

    task_id = create_task(session, told, {"n": 1}, biz_key="order:7")
    (task,) = created(session)
    assert run(task, session=session, registry=registry) == [task_id, "order:7", {"n": 1}]


def test_a_task_in_sql_is_run_in_the_session_of_the_test(kit: Kit) -> None:
    note = sql_handler("note", NOTE.text, registry=kit.registry)
    assert run(note, {"text": "it's"}, session=kit.session) == {"rows": 1}
    assert note(make_context(session=kit.session), {"text": ":text"}) == {"rows": 1}
    assert kit.notes() == [":text", "it's"]


def test_the_handler_writes_in_the_session_of_the_test(kit: Kit) -> None:
    @kit.handler()
    def write(ctx: TaskContext) -> None:
        ctx.session.execute(NOTE, {"text": "session"})
        ctx.connection.execute(NOTE, {"text": "connection"})

    run(write, session=kit.session)
    assert kit.notes() == ["connection", "session"]


def test_what_it_wrote_is_undone_when_it_raises(kit: Kit) -> None:
    @kit.handler()
    def write(ctx: TaskContext) -> None:
        ctx.session.execute(NOTE, {"text": "a"})
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        run(write, session=kit.session)
    assert kit.notes() == []


def test_a_commit_of_the_handler_is_refused_as_in_a_worker(kit: Kit) -> None:
    @kit.handler()
    def write(ctx: TaskContext) -> None:
        ctx.session.execute(NOTE, {"text": "a"})
        ctx.session.commit()

    with pytest.raises(RuntimeError, match="commits together with the task's outcome"):
        run(write, session=kit.session)
    assert kit.notes() == []


def test_on_a_connection(connection: Connection, registry: Registry) -> None:
    @handler("a", registry=registry)
    def write(ctx: TaskContext) -> None:
        ctx.session.execute(text("CREATE TABLE note (text text)"))

    run(write, session=connection)
    assert connection.execute(text("SELECT count(*) FROM note")).scalar() == 0


def test_on_a_connection_of_psycopg(raw: psycopg.Connection, registry: Registry) -> None:
    @handler("a", registry=registry)
    def write(ctx: TaskContext) -> None:
        ctx.session.execute(text("CREATE TABLE note (text text)"))

    run(write, session=raw)
    row = raw.execute("SELECT count(*) FROM note").fetchone()
    assert row == (0,)
    raw.rollback()
    assert raw.execute("SELECT to_regclass('note')").fetchone() == (None,)


def test_an_async_handler_is_run_to_its_end(kit: Kit) -> None:
    @kit.handler()
    async def write(ctx: AsyncTaskContext) -> int:
        await asyncio.sleep(0)
        await ctx.session.execute(NOTE, {"text": "a"})
        connection = await ctx.session.connection()
        await connection.execute(NOTE, {"text": "b"})
        return await ctx.session.scalar(select(7)) or 0

    assert run(write, session=kit.session) == 7
    assert kit.notes() == ["a", "b"]


def test_an_await_that_was_forgotten_is_said(kit: Kit) -> None:
    @kit.handler()
    async def write(ctx: AsyncTaskContext) -> None:
        ctx.commit()

    with pytest.raises(RuntimeError, match=r"never awaited, so it did nothing: ctx\.commit"):
        run(write, session=kit.session)


def test_in_an_async_test(engine: Engine, database_url: str, registry: Registry) -> None:
    @handler("a", registry=registry)
    async def write(ctx: AsyncTaskContext) -> str:
        await ctx.session.execute(text("CREATE TABLE note (text text)"))
        return "done"

    async def scene(session: AsyncSession) -> None:
        assert await arun(write, session=session) == "done"
        assert await session.scalar(text("SELECT count(*) FROM note")) == 0
        with pytest.raises(RuntimeError, match=r"await arun"):
            run(write)

    in_async_session(database_url, scene)


def test_middleware_may_surround_it(registry: Registry) -> None:
    @handler("a", registry=registry)
    def one(ctx: TaskContext) -> int:
        return 1

    assert run(one, middleware=[lambda ctx, call: call() + 1]) == 2


def test_a_context_says_what_it_was_told() -> None:
    ctx = make_context(
        name="a", task_id=7, attempt=2, failures=1, biz_key="x", headers={"t": 1}, timeout="10s",
        cancelled=True, stopping=True, checkpoint={"page": 3},
    )  # fmt: skip
    assert (ctx.name, ctx.task_id, ctx.attempt, ctx.failures) == ("a", 7, 2, 1)
    assert (ctx.biz_key, ctx.headers, ctx.cancelled, ctx.stopping) == ("x", {"t": 1}, True, True)
    assert ctx.remaining is not None
    assert 0 < ctx.remaining <= 10
    assert ctx.checkpoint == {"page": 3}


def test_a_context_refuses_what_no_context_has() -> None:
    with pytest.raises(TypeError, match="no atempt"):
        make_context(atempt=2)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="no atempt"):
        run(handler("a", registry=Registry())(lambda ctx: None), atempt=2)  # type: ignore[call-overload]


def test_its_log_names_the_run(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        make_context(name="a", task_id=7).log.info("hello")
    assert caplog.messages == ["task 7 (a), attempt 1: hello"]


def test_without_a_session_it_says_how_to_give_one() -> None:
    with pytest.raises(RuntimeError, match=r"session=…"):
        _ = make_context().session


def test_a_commit_keeps_the_checkpoint_in_the_context(kit: Kit) -> None:
    ctx = make_context(kit.session)
    ctx.session.execute(NOTE, {"text": "a"})
    ctx.commit({"page": 1})
    assert ctx.checkpoint == {"page": 1}
    assert kit.session.in_transaction()


def test_kept_steps_are_found_and_others_called(kit: Kit) -> None:
    ctx = make_context(kit.session, steps={"parcel": {"id": 7}, "night": None})
    assert ctx.step("parcel", int) == {"id": 7}
    ctx.sleep("1d", name="night")
    assert ctx.step("note", lambda: (ctx.session.execute(NOTE, {"text": "a"}), (1, 2))[1]) == [1, 2]
    assert kit.notes() == ["a"]
    with pytest.raises(Snooze, match="It sleeps: day"):
        ctx.sleep("1d", name="day")


def test_steps_work_without_a_session() -> None:
    ctx = make_context(attempt=2)
    assert ctx.step("a", int, "7") == 7
    assert ctx.step_key("a") == ctx.step_key("a") != ctx.step_key("b")


def test_steps_of_an_async_handler_work_without_a_session(registry: Registry) -> None:
    @handler("a", registry=registry)
    async def read(ctx: AsyncTaskContext) -> list[Any]:
        async def seven() -> int:
            return 7

        await ctx.sleep("1d", name="night")
        return [await ctx.step("a", seven), await ctx.step("kept", seven)]

    assert run(read, steps={"kept": 8, "night": None}) == [7, 8]


def test_a_step_has_the_needs_and_events_that_are_given() -> None:
    ctx = make_context(
        needs={"pay": {"card": 7}, "mail": StepEnd.FAILURE},
        events={"ok": {"order_id": 7}, "late": None},
    )
    assert (ctx.need("pay"), ctx.need("pay", dict[str, str | int])) == ({"card": 7}, {"card": 7})
    assert {name: step.end for name, step in ctx.needs().items()} == {
        "pay": "success",
        "mail": "failure",
    }
    assert ctx.need("mail") is None
    assert ctx.event("ok", Points) == ctx.wait_event("ok", kind=Points) == Points(order_id=7)
    assert ctx.event("late") is ctx.wait_event("late", "5d") is None
    with pytest.raises(TasksError, match="needs pay, mail, and not 'ship'"):
        ctx.need("ship")
    with pytest.raises(TasksError, match="waits for ok, late, and not 'no'"):
        ctx.event("no")


def test_an_async_step_awaits_what_is_given(kit: Kit, registry: Registry) -> None:
    @handler("a", registry=registry)
    async def read(ctx: AsyncTaskContext) -> list[Any]:
        return [
            (await ctx.needs())["pay"].result,
            await ctx.need("pay"),
            await ctx.event("ok"),
            await ctx.wait_event("late", "5d"),
        ]

    given: Any = {"needs": {"pay": 1}, "events": {"ok": {}, "late": None}}
    assert run(read, **given) == run(read, session=kit.session, **given) == [1, 1, {}, None]


def test_chunks_and_locks_work_in_it(kit: Kit) -> None:
    kit.session.execute(text("INSERT INTO note SELECT 'n' || g FROM generate_series(1, 5) g"))
    ctx = make_context(kit.session)
    with ctx.locks(exclusive="a"):
        pages = list(ctx.chunks("SELECT text FROM note", key="text", size=2))
    assert [len(page) for page in pages] == [2, 2, 1]


def test_async_chunks_and_checkpoints_work_in_it(kit: Kit) -> None:
    kit.session.execute(text("INSERT INTO note SELECT 'n' || g FROM generate_series(1, 5) g"))

    @kit.handler()
    async def read(ctx: AsyncTaskContext) -> list[Any]:
        async with ctx.locks(exclusive="a"):
            pages = [
                len(page) async for page in ctx.chunks("SELECT text FROM note", key="text", size=2)
            ]
        await ctx.commit({"page": 3})
        return [pages, await ctx.checkpoint]

    assert run(read, session=kit.session) == [[2, 2, 1], {"page": 3}]


def test_a_late_write_is_there_at_once(kit: Kit) -> None:
    @kit.handler()
    def write(ctx: TaskContext) -> None:
        ctx.write("INSERT INTO note (text) VALUES (%s)", ("late",))

    run(write, session=kit.session)
    assert kit.notes() == ["late"]


def test_a_late_write_of_an_async_handler_needs_an_outcome(registry: Registry) -> None:
    @handler("a", registry=registry)
    async def write(ctx: AsyncTaskContext) -> None:
        ctx.write("SELECT 1")

    with pytest.raises(RuntimeError, match=r"drain\(\), or adrain\(\) in an async test"):
        run(write)
