"""``drain`` in the test's transaction, and of what is committed: the same record of both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import ConfigurationError, InvalidConnectionError
from tasks_app.domain.handlers.outcomes import Cancel, Fail, Retry, Skip, Snooze
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import database_now
from tasks_app.runtime.api.producer import acreate_task, create_task
from tasks_app.runtime.api.queues import pause_queue
from tasks_app.runtime.api.tasks import cancel_task, get_task
from tasks_app.runtime.handlers.bulk import Item
from tasks_app.runtime.handlers.context import AsyncTaskContext, TaskContext
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.runtime.schedules.schedules import create_schedule
from tasks_app.testing import adrain, assert_created, atravel, drain, run, travel
from tasks_app.testing.results import Drained
from tests.factory import claimed_task, count
from tests.testing.conftest import NOTE, Kit, in_async_session


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "note"
    text: Mapped[str] = mapped_column(primary_key=True)


class Remark(Base):
    __tablename__ = "remark"
    id: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[str]


def test_it_runs_in_the_transaction_of_the_test(kit: Kit, engine: Engine) -> None:
    @kit.handler()
    def write(ctx: TaskContext, payload: dict[str, Any]) -> dict[str, Any]:
        ctx.session.add(Note(text=payload["text"]))
        return {"n": 1}

    task_id = create_task(kit.session, write, {"text": "x"})
    (run,) = kit.drain().succeeded

    assert (run.task_id, run.name, run.attempt, run.result) == (task_id, "a", 1, {"n": 1})
    assert kit.notes() == ["x"]
    task = get_task(kit.session, task_id)
    assert task is not None
    assert task.state is State.SUCCEEDED
    kit.session.rollback()
    with engine.connect() as other:
        assert count(other) == 0


def test_on_a_connection_of_psycopg(raw: psycopg.Connection, registry: Registry) -> None:
    raw.execute("CREATE TABLE note (text text)")

    @handler("a", registry=registry)
    def write(ctx: TaskContext) -> None:
        ctx.session.execute(NOTE, {"text": "session"})
        ctx.connection.execute(NOTE, {"text": "connection"})

    create_task(raw, write)
    assert len(drain(raw, registry=registry).assert_succeeded()) == 1
    assert raw.execute("SELECT count(*) FROM note").fetchone() == (2,)
    assert raw.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def test_a_connection_in_autocommit_is_refused(
    raw: psycopg.Connection, engine: Engine, registry: Registry
) -> None:
    raw.rollback()
    raw.set_autocommit(True)
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        for autocommit in (raw, connection):
            with pytest.raises(InvalidConnectionError, match="autocommit"):
                drain(autocommit, registry=registry)


def test_another_driver_is_refused(database_url: str, registry: Registry) -> None:
    engine = create_engine(database_url, poolclass=NullPool)
    engine.dialect.driver = "pg8000"
    with engine.connect() as connection, pytest.raises(InvalidConnectionError, match="of pg8000"):
        drain(connection, registry=registry)


def test_an_error_undoes_what_its_run_wrote_and_nothing_else(kit: Kit) -> None:
    @kit.handler("bad", retry="1h")
    def bad(ctx: TaskContext) -> None:
        ctx.session.execute(NOTE, {"text": "bad"})
        raise ValueError("no")

    @kit.handler("good")
    def good(ctx: TaskContext) -> None:
        ctx.session.execute(NOTE, {"text": "good"})

    drained = kit.drain(bad, good)

    (waiting,) = drained.waiting
    found = waiting.name, waiting.error, waiting.wait
    assert found == ("bad", "ValueError: no", timedelta(hours=1))
    assert isinstance(waiting.exception, ValueError)
    assert [run.name for run in drained.succeeded] == ["good"]
    assert kit.notes() == ["good"]


def test_an_error_of_the_database_spoils_its_run_alone(kit: Kit) -> None:
    @kit.handler(max_attempts=1)
    def twice(ctx: TaskContext) -> None:
        ctx.session.add(Note(text="x"))
        ctx.session.flush()
        ctx.connection.execute(NOTE, {"text": "x"})

    (failed,) = kit.drain(twice).failed
    assert failed.error is not None
    assert "UniqueViolation" in failed.error or "IntegrityError" in failed.error
    assert kit.notes() == []


def test_what_the_session_still_holds_is_written_with_the_outcome(kit: Kit) -> None:
    @kit.handler(max_attempts=1)
    def write(ctx: TaskContext) -> None:
        ctx.session.add(Note(text="x"))

    assert kit.drain(write, write).counts == {"SUCCEEDED": 1, "FAILED": 1}


def test_a_commit_by_the_handler_fails_it_as_in_a_worker(kit: Kit) -> None:
    @kit.handler(max_attempts=1)
    def write(ctx: TaskContext) -> None:
        ctx.session.execute(NOTE, {"text": "x"})
        ctx.session.commit()

    (failed,) = kit.drain(write).failed
    assert "commits together" in str(failed.error)
    assert kit.notes() == []


def test_a_checkpoint_outlives_the_error_after_it(kit: Kit) -> None:
    seen: list[Any] = []

    @kit.handler(retry="0s", max_attempts=2)
    def write(ctx: TaskContext) -> None:
        seen.append(ctx.checkpoint)
        ctx.session.execute(NOTE, {"text": f"kept {ctx.attempt}"})
        ctx.commit({"page": ctx.attempt})
        ctx.session.execute(NOTE, {"text": f"lost {ctx.attempt}"})
        raise ValueError

    drained = kit.drain(write)
    assert kit.notes() == ["kept 1", "kept 2"]
    assert seen == [None, {"page": 1}]
    assert [run.state for run in drained] == [State.PENDING, State.FAILED]
    assert len(drained.tasks) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_sleep_between_kept_steps_is_over_when_so_much_time_has_passed(
    kit: Kit, *, is_async: bool
) -> None:
    calls: list[str] = []

    @kit.handler(retry="0s,0s")
    def plain(ctx: TaskContext) -> None:
        ctx.step("before", calls.append, "before")
        ctx.sleep("1d", name="night")
        ctx.step("behind", calls.append, "behind")
        if ctx.failures == 0:
            raise ValueError

    @kit.handler("b", retry="0s,0s")
    async def awaited(ctx: AsyncTaskContext) -> None:
        await ctx.step("before", calls.append, "before")
        await ctx.sleep("1d", name="night")
        await ctx.step("behind", calls.append, "behind")
        if ctx.failures == 0:
            raise ValueError

    def states(drained: Drained) -> list[State]:
        return [run.state for run in drained]

    assert states(kit.drain(awaited if is_async else plain)) == [State.PENDING]
    travel("23h", kit.session)
    assert states(kit.drain()) == []
    travel("1h", kit.session)
    assert states(kit.drain()) == [State.PENDING, State.SUCCEEDED]
    assert calls == ["before", "behind"]


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Skip("no"), State.SKIPPED),
        (Cancel("no"), State.CANCELLED),
        (Fail("no"), State.FAILED),
        (Snooze("1h"), State.PENDING),
        (Retry(after="1h"), State.PENDING),
    ],
    ids=["skip", "cancel", "fail", "snooze", "retry"],
)
def test_each_outcome_leads_where_it_does_in_a_worker(
    kit: Kit, outcome: Exception, state: State
) -> None:
    @kit.handler()
    def end(ctx: TaskContext) -> None:
        raise outcome

    task_id = create_task(kit.session, end)
    assert kit.drain().tasks[task_id].state is state
    task = get_task(kit.session, task_id)
    assert task is not None
    assert task.state is state


def test_tasks_that_tasks_create_are_run_too(kit: Kit) -> None:
    @kit.handler("first")
    def first(ctx: TaskContext) -> None:
        create_task(ctx.session, second)

    @kit.handler("second")
    def second(ctx: TaskContext) -> None: ...

    assert [run.name for run in kit.drain(first)] == ["first", "second"]


@pytest.fixture
def name(kit: Kit) -> str:
    """The name of a handler that succeeds."""

    @kit.handler()
    def ok(ctx: TaskContext) -> None: ...

    return "a"


def test_names_that_nobody_knows_and_other_queues_stay(kit: Kit, name: str) -> None:
    create_task(kit.session, "unknown")
    create_task(kit.session, name)
    create_task(kit.session, name, queue="other")
    assert len(drain(kit.session, registry=kit.registry, queues=["default"])) == 1
    assert_created(kit.session, state="PENDING", count=2)


def test_what_expired_or_is_disabled_is_in_the_record(kit: Kit, name: str) -> None:
    create_task(kit.session, name, enabled=False)
    (aside,) = kit.drain().set_aside
    assert (aside.state, aside.attempt) == (State.SKIPPED, 0)


def test_an_order_key_is_kept(kit: Kit) -> None:
    @kit.handler(retry="1h")
    def some(ctx: TaskContext, payload: dict[str, Any]) -> None:
        if payload.get("bad"):
            raise ValueError

    create_task(kit.session, some, {"bad": True}, order_key="o")
    create_task(kit.session, some, {"behind": True}, order_key="o")
    create_task(kit.session, some, {"other": True})
    assert kit.drain().counts == {"PENDING": 1, "SUCCEEDED": 1}
    assert_created(kit.session, payload={"behind": True}, state="PENDING")


def test_a_cancelled_task_does_not_run(kit: Kit, name: str) -> None:
    cancel_task(kit.session, create_task(kit.session, name))
    assert len(kit.drain()) == 0


def test_async_handlers_run_in_it(kit: Kit) -> None:
    @kit.handler()
    async def write(ctx: AsyncTaskContext) -> int:
        await asyncio.sleep(0)
        ctx.session.add(Note(text="a"))
        await ctx.session.execute(NOTE, {"text": "b"})
        await ctx.commit({"page": 1})
        return len(list(await ctx.session.scalars(text("SELECT text FROM note"))))

    (run,) = kit.drain(write).assert_succeeded().succeeded
    assert run.result == 2
    assert kit.notes() == ["a", "b"]


def test_a_loop_that_runs_already_is_said(kit: Kit) -> None:
    @kit.handler()
    async def some(ctx: AsyncTaskContext) -> None: ...
    async def scene() -> None:
        with pytest.raises(RuntimeError, match="await adrain"):
            kit.drain()

    create_task(kit.session, some)
    asyncio.run(scene())


def test_in_an_async_test(engine: Engine, database_url: str, registry: Registry) -> None:
    @handler("plain", registry=registry)
    def plain(ctx: TaskContext) -> None:
        ctx.session.execute(text("CREATE TABLE note (text text)"))

    @handler("async", registry=registry)
    async def other(ctx: AsyncTaskContext) -> int:
        async with ctx.locks(exclusive="account:7"):
            await ctx.session.execute(NOTE, {"text": "x"})
        await ctx.commit({"page": 1})
        ctx.write("INSERT INTO note (text) VALUES (%s)", ("late",))
        connection = await ctx.session.connection()
        await connection.execute(NOTE, {"text": "y"})
        return await ctx.session.scalar(text("SELECT count(*) FROM note")) or 0

    async def scene(session: AsyncSession) -> None:
        await acreate_task(session, "plain")
        await acreate_task(session, "async")
        drained = await adrain(session, registry=registry)
        assert [run.result for run in drained.assert_succeeded()] == [None, 2]
        assert await session.scalar(text("SELECT count(*) FROM note")) == 3
        with pytest.raises(ConfigurationError, match="await adrain"):
            drain(session, registry=registry)  # type: ignore[arg-type]

    in_async_session(database_url, scene)


def test_locks_and_chunks_work_in_it(kit: Kit) -> None:
    for number in range(5):
        kit.session.execute(NOTE, {"text": f"n{number}"})

    @kit.handler("plain")
    def read(ctx: TaskContext) -> list[int]:
        with ctx.locks(exclusive="account:7"):
            return [len(p) for p in ctx.chunks("SELECT text FROM note", key="text", size=2)]

    @kit.handler("async")
    async def read_soon(ctx: AsyncTaskContext) -> list[int]:
        async with ctx.locks(exclusive="account:7"):
            pages = ctx.chunks("SELECT text FROM note", key="text", size=2)
            return [len(page) async for page in pages]

    drained = kit.drain(read, read_soon).assert_succeeded()
    assert [run.result for run in drained] == [[2, 2, 1], [2, 2, 1]]


def test_objects_of_the_test_see_what_handlers_wrote(kit: Kit) -> None:
    @kit.handler()
    def write(ctx: TaskContext) -> None:
        ctx.session.execute(text("UPDATE remark SET body = 'new'"))

    Base.metadata.tables["remark"].create(kit.session.connection())
    remark = Remark(id=1, body="old")
    kit.session.add(remark)
    kit.drain(write)
    assert remark.body == "new"


def test_an_assertion_says_what_did_not_succeed(kit: Kit) -> None:
    @kit.handler("mail.send", retry="1h")
    def bad(ctx: TaskContext) -> None:
        raise ValueError("no mail server")

    task_id = create_task(kit.session, bad)
    with pytest.raises(AssertionError) as failure:
        kit.drain().assert_succeeded()
    assert str(failure.value) == (
        "1 of 1 tasks did not succeed:\n"
        f"  mail.send ({task_id}, attempt 1) is PENDING, due again in 1h: "
        "ValueError: no mail server"
    )
    assert isinstance(failure.value.__cause__, ValueError)


def test_nothing_due_is_no_success(kit: Kit) -> None:
    with pytest.raises(AssertionError, match="Nothing was due"):
        kit.drain().assert_succeeded()


@pytest.mark.test_all
def test_a_task_without_an_end_ends_the_test(kit: Kit) -> None:
    @kit.handler()
    def again(ctx: TaskContext) -> None:
        raise Snooze(0)

    with pytest.raises(RuntimeError, match="a comes back at once"):
        kit.drain(again)


def test_an_interrupt_ends_the_test(kit: Kit) -> None:
    @kit.handler()
    def stop(ctx: TaskContext) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kit.drain(stop)


def test_a_drain_of_what_is_committed_has_the_same_record(
    engine: Engine, database_url: str, registry: Registry
) -> None:
    @handler("good", registry=registry)
    def good(ctx: TaskContext) -> dict[str, int]:
        return {"n": 1}

    @handler("bad", registry=registry, retry="1h")
    def bad(ctx: TaskContext) -> None:
        raise ValueError("no")

    @handler("worse", registry=registry)
    def worse(ctx: TaskContext) -> None:
        raise Fail("never")

    with engine.begin() as connection:
        for each in (good, bad, worse):
            create_task(connection, each)
        create_task(connection, good, enabled=False)

    drained = drain(Settings(database_url=database_url), registry=registry)

    assert drained.counts == {"SUCCEEDED": 1, "PENDING": 1, "FAILED": 1, "SKIPPED": 1}
    assert drained.of(good).succeeded[0].result == {"n": 1}
    assert drained.of("bad").waiting[0].error == "ValueError: no"
    assert drained.of("bad").waiting[0].wait == timedelta(hours=1)
    assert str(drained.of(worse).failed[0].error).endswith("Fail: never")
    assert drained.of(good.spec.name).of(drained.succeeded[0].task_id).succeeded


def test_settings_may_be_given_by_name(database_url: str, registry: Registry) -> None:
    assert len(drain(settings=Settings(database_url=database_url), registry=registry)) == 0


def test_what_is_no_session_is_refused(registry: Registry) -> None:
    with pytest.raises((ConfigurationError, InvalidConnectionError), match="is neither Settings"):
        drain(7, registry=registry)  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", [True, False])
def test_a_late_write_is_there_if_the_run_succeeds(kit: Kit, fails: bool) -> None:
    @kit.handler(max_attempts=1)
    def write(ctx: TaskContext) -> None:
        ctx.write("INSERT INTO note (text) VALUES (%s)", ("late",))
        assert kit.notes() == []
        if fails:
            raise ValueError

    kit.drain("a")
    assert kit.notes() == ([] if fails else ["late"])


def test_a_success_that_leaves_no_row_is_in_the_record(kit: Kit) -> None:
    @kit.handler(history="none")
    def one(ctx: TaskContext) -> dict[str, int]:
        return {"n": 1}

    task_id = create_task(kit.session, one)
    (run,) = kit.drain().succeeded
    assert (run.task_id, run.result) == (task_id, None)
    assert get_task(kit.session, task_id) is None


def test_a_delay_passes_and_can_still_be_asserted(kit: Kit, name: str) -> None:
    create_task(kit.session, name, delay="2h")
    travel("119m", kit.session)
    assert len(kit.drain()) == 0
    assert_created(kit.session, "a", delay="2h")
    travel("1m", kit.session)
    assert len(kit.drain().succeeded) == 1


def test_each_retry_comes_in_its_turn(kit: Kit) -> None:
    @kit.handler("bad", retry="1m,1h")
    def bad(ctx: TaskContext) -> None:
        raise ValueError

    create_task(kit.session, bad)
    waits = []
    for span in ("0s", "1m", "1h"):
        travel(span, kit.session)
        (run,) = kit.drain()
        waits.append((run.attempt, run.state, run.wait))
    assert waits == [
        (1, State.PENDING, timedelta(minutes=1)),
        (2, State.PENDING, timedelta(hours=1)),
        (3, State.FAILED, None),
    ]


def test_a_task_expires(kit: Kit, name: str) -> None:
    now = database_now(kit.session.connection())
    create_task(kit.session, name, delay="2h", expires_at=now + timedelta(hours=1))
    travel("2h", kit.session)
    assert kit.drain().set_aside[0].state is State.EXPIRED


def test_a_lease_ends(kit: Kit, name: str) -> None:
    task_id = create_task(kit.session, name)
    claimed_task(kit.session.connection(), task_id, name=name)
    travel("1m", kit.session)
    first, *more = kit.drain()
    travel("1m", kit.session)
    assert first.state is State.PENDING
    assert [*more, *kit.drain()]  # it is due within seconds


def test_a_unique_period_ends(session: Session) -> None:
    options: Any = {"unique_key": "u", "unique_scope": "for_period 1h"}
    create_task(session, "a", None, **options)
    assert not create_task(session, "a", None, **options).created
    travel("1h", session)
    assert create_task(session, "a", None, **options).created


def test_a_pause_ends(kit: Kit, name: str) -> None:
    create_task(kit.session, name)
    pause_queue(kit.session, "default", resume_in="1h")
    assert len(kit.drain()) == 0
    travel("1h", kit.session)
    assert kit.drain().succeeded


def test_a_schedule_fires_once_for_each_instant(kit: Kit, name: str) -> None:
    create_schedule(kit.session, "s", name, every="1h", overlap="allow")
    travel("3h", kit.session)
    assert len(kit.drain().succeeded) == 3


@pytest.mark.test_all
def test_travels_add_up_for_schedules(kit: Kit, name: str) -> None:
    """Twice two hours in front of a daily instant: it comes once, not twice."""
    soon = database_now(kit.session.connection()) + timedelta(hours=1)
    create_schedule(kit.session, "s", name, cron=f"{soon.minute} {soon.hour} * * *", timezone="UTC")
    numbers = []
    for _ in range(13):
        travel("2h", kit.session)
        numbers.append(len(kit.drain().succeeded))
    assert numbers == [1, *[0] * 11, 1]


def test_a_schedule_that_a_handler_declares_fires(kit: Kit) -> None:
    @kit.handler("nightly", cron="0 3 * * *")
    def nightly(ctx: TaskContext) -> None: ...

    travel("1d", kit.session, registry=kit.registry)
    assert [run.name for run in kit.drain()] == ["nightly"]


def test_a_schedule_that_fires_too_often_is_said(kit: Kit, name: str) -> None:
    create_schedule(kit.session, "s", name, every="1s", overlap="allow", missed="skip")
    with pytest.raises(ValueError, match="more than 10 instants"):
        travel("1h", kit.session, most_instants=10)


def test_what_is_committed_travels_too(engine: Engine, database_url: str) -> None:
    settings, registry = Settings(database_url=database_url), Registry()
    with engine.begin() as connection:
        create_task(connection, handler("a", registry=registry)(lambda ctx: None), delay="2h")
    assert len(drain(settings, registry=registry)) == 0
    travel("2h", settings=settings)
    assert len(drain(settings, registry=registry).succeeded) == 1


def test_an_async_test_travels_too(engine: Engine, database_url: str, registry: Registry) -> None:
    handler("a", registry=registry)(lambda ctx: None)

    async def scene(session: AsyncSession) -> None:
        await acreate_task(session, "a", delay="1h")
        await atravel("1h", session)
        assert len((await adrain(session, registry=registry)).succeeded) == 1

    in_async_session(database_url, scene)


def test_a_wrong_span_is_refused(session: Session) -> None:
    with pytest.raises(ValueError, match="span is 'soon'"):
        travel("soon", session)


def test_a_bulk_handler_is_called_for_one_item(kit: Kit) -> None:
    @kit.handler(at_once=10)
    def write(ctx: TaskContext, items: Sequence[Item[dict[str, Any]]]) -> None:
        for item in items:
            if item.payload["text"] == "bad":
                item.fail("bad")
            else:
                ctx.session.add(Note(text=item.payload["text"]))
                item.result(len(items))

    for each in ("x", "bad", "y"):
        create_task(kit.session, write, {"text": each})
    drained = kit.drain()

    assert [run.result for run in drained.succeeded] == [1, 1]
    assert len(drained.failed) == 1
    assert kit.notes() == ["x", "y"]
    assert run(write, {"text": "z"}, session=kit.session) == 1
