"""What users write. No type checker may find fault with it."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import psycopg
from pydantic import BaseModel
from sqlalchemy import Connection, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session

from tasks_app import (
    AsyncTaskContext,
    CreatedFlow,
    Flow,
    FlowProgress,
    Handler,
    Need,
    NewTask,
    Retry,
    Settings,
    Task,
    TaskBuffer,
    TaskContext,
    TaskId,
    TaskOptions,
    acancel_task,
    acancel_tasks,
    achange_queue,
    acreate_flow,
    acreate_group,
    acreate_task,
    acreate_tasks,
    aexplain_task,
    aget_task,
    agroup_results,
    apause_queue,
    arequeue_task,
    await_task,
    cancel_flow,
    cancel_task,
    create_flow,
    create_group,
    create_schedule,
    create_task,
    create_tasks,
    explain_task,
    extend_flow,
    failed,
    get_flow,
    get_task,
    handler,
    requeue_task,
    schedule,
    set_limit,
    sql_handler,
    wait_task,
)
from tasks_app.testing import (
    Drained,
    TasksTestMixin,
    aassert_created,
    adrain,
    arun,
    assert_created,
    atravel,
    crash_next,
    created,
    drain,
    fail_next,
    make_context,
    run,
    travel,
)


class Order(BaseModel):
    order_id: int


class GiftOrder(Order):
    message: str = ""


@dataclass
class Parcel:
    weight: float


class Point(TypedDict):
    x: int


class Base(DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "row"
    id: Mapped[int] = mapped_column(primary_key=True)


@handler
def bare(ctx: TaskContext) -> None:
    ctx.log.info("no name, no payload")


@handler()
def without_a_name(ctx: TaskContext, payload: Order) -> int:
    return payload.order_id


@handler("points.grant", queue="points", retry="5s,30s", timeout=30)
def grant(ctx: TaskContext, payload: Order) -> dict[str, int]:
    row: Row | None = ctx.session.get(Row, payload.order_id)
    ctx.session.add(Row(id=1))
    ctx.connection.execute(select(Row.id))
    return {"points": row.id if row else 10}


@handler("mail.send", on_error={ValueError: "fail"}, depends_on="smtp", hard_timeout="5m")
async def send(ctx: AsyncTaskContext, payload: Order) -> str:
    row = await ctx.session.get(Row, payload.order_id)
    await ctx.commit({"sent": 1})
    if row is None:
        raise Retry("not yet", after="10s")
    return "sent"


@handler("every.hour", cron="0 * * * *", missed="skip", overlap="skip", timezone="Europe/Vienna")
def hourly(ctx: TaskContext) -> None:
    ctx.commit()


@handler("untyped")
def untyped(ctx, payload):  # type: ignore[no-untyped-def]
    return payload


@handler("anything")
def anything(ctx: Any, payload: dict[str, Any]) -> None: ...


@handler("parcel")
def parcel(ctx: TaskContext, payload: Parcel) -> None: ...


@handler("point")
def point(ctx: TaskContext, payload: Point) -> None: ...


@handler("maybe")
def maybe(ctx: TaskContext, payload: Order | None) -> None: ...


refresh = sql_handler("report.refresh", "CALL refresh(:day)", timeout="10m", retry="1m,10m")
vacate = sql_handler("shop.vacate", "DELETE FROM basket WHERE age > '1d'", cron="0 3 * * *")


@handler("orders")
def orders(ctx: TaskContext, payload: list[Order]) -> None: ...


@handler("number")
def number(ctx: TaskContext, payload: int) -> None: ...


schedule(
    "nightly",
    grant,
    Order(order_id=1),
    cron="0 3 * * *",
    overlap="queue",
    calendar="de",
    on_day_off="skip",
)


def produce(session: Session, connection: Connection, raw: psycopg.Connection[Any]) -> None:
    first: TaskId = create_task(session, bare)
    create_task(connection, without_a_name, Order(order_id=1))
    create_task(raw, grant, GiftOrder(order_id=1), biz_key="order:1", delay="5s", priority=0)
    create_task(
        session, send, Order(order_id=1), unique_key="1", on_conflict="reschedule", max_wait="1m"
    )
    create_task(session, send, Order(order_id=1), run_at=datetime.now(UTC), retry=["5s", 30])
    create_task(session, untyped, {"a": 1})
    create_task(session, anything, {"a": 1})
    create_task(session, parcel, Parcel(1.5))
    create_task(session, point, Point(x=1))
    create_task(session, maybe)
    create_task(session, refresh, {"day": "2026-03-01"}, unique_key="2026-03-01")
    create_task(session, vacate)
    create_task(session, maybe, None)
    create_task(session, maybe, Order(order_id=1))
    create_task(session, orders, [Order(order_id=1)])
    create_task(session, number, 5)
    create_task(session, "by.name")
    create_task(session, "by.name", {"a": 1}, expires_at=None, headers={"trace": "1"})
    create_task(session, "by.name", Order(order_id=1), order_key="k", order_policy="skips")
    create_task(session, "by.name", Parcel(1.5), timeout=timedelta(seconds=5))
    create_task(session, "a.celery.task", args=[1], kwargs={"b": 2})
    options: TaskOptions = {"queue": "q", "on_conflict": "raise", "unique_key": "k"}
    create_task(session, grant, Order(order_id=1), **options)
    ids: list[TaskId] = create_tasks(
        session,
        [
            NewTask(grant, Order(order_id=1), order_key="account:7"),
            NewTask(bare, priority=1),
            NewTask("by.name", {"a": 1}, unique_key="k", on_conflict="raise"),
            NewTask("by.name", None, {"queue": "q"}),
            NewTask("by.name", options=options),
        ],
    )
    create_group(session, [NewTask(bare)], then=NewTask(grant, Order(order_id=1)))
    create_task(session, bare, then=NewTask(grant, Order(order_id=1)), queue="q")
    flow = Flow("order")
    paid: Need = flow.step("pay", grant, Order(order_id=1), queue="q")
    shipped = flow.step("ship", bare, needs=[paid, "other"])
    flow.step("other", "by.name", {"a": 1}, needs=failed(shipped), delay="1h")
    labels: Need = flow.map("labels", grant, over=paid, needs=shipped, queue="q")
    flow.map("by name", "by.name", over="pay", delay="1h")
    flow.step("pack", bare, needs=labels)
    made: CreatedFlow = create_flow(session, flow, key="order:1", on_failure="cancel")
    added: dict[str, TaskId] = extend_flow(session, made.id, flow)
    progress: FlowProgress | None = get_flow(session, added["pay"])
    if progress is not None and progress.state == "stalled":
        cancel_flow(session, progress.id, by=progress.steps[0].name)
    create_schedule(session, "weekly", grant, Order(order_id=2), every="7d")
    set_limit(session, "queue", "mail", most=5)
    found: Task | None = get_task(session, first)
    if found is not None and found.state == "FAILED":
        requeue_task(connection, found.id)
    explain_task(raw, ids[0])
    ended: Task = wait_task(raw, ids[0], "10s")
    wait_task(connection.engine, ended.id, timeout=10)
    cancel_task(raw, 7, by="ann")


@handler("order.ship")
def ship(ctx: TaskContext, payload: Order) -> None:
    order: Order = ctx.need("pay", Order)
    ctx.need("other", int).bit_length()
    ctx.progress(len(ctx.needs()["pay"].step) + order.order_id)


@handler("order.aship")
async def aship(ctx: AsyncTaskContext, payload: Order) -> None:
    order: Order = await ctx.need("pay", Order)
    (await ctx.need("other", int)).bit_length()
    await ctx.commit({"pay": (await ctx.needs())["pay"].step, "order": order.order_id})


def produce_scoped(session: scoped_session[Session]) -> None:
    get_task(session, create_task(session, grant, Order(order_id=1)))


async def produce_in_a_loop(
    session: AsyncSession,
    connection: AsyncConnection,
    raw: psycopg.AsyncConnection[Any],
    scoped: async_scoped_session[AsyncSession],
) -> None:
    task_id = await acreate_task(session, grant, Order(order_id=1), queue="points")
    await acreate_tasks(connection, [NewTask(send, Order(order_id=1))])
    await acreate_group(session, [NewTask(bare)])
    await acreate_flow(session, Flow("order"))
    await aget_task(raw, await acreate_task(raw, bare))
    await aexplain_task(session, task_id)
    ended: Task = await await_task(raw, task_id, timeout="10s")
    await await_task(connection.engine, ended.id, 10)
    await acancel_task(scoped, task_id)
    await arequeue_task(session, task_id)
    paused: bool = await apause_queue(raw, "mail", resume_in="1h")
    await achange_queue(connection, "mail", running_below=5, by=f"{paused}")
    states = [each.state async for each in agroup_results(scoped, 1)]
    await acancel_tasks(session, name=states[0])


def buffered(buffer: TaskBuffer) -> None:
    buffer.create_task(grant, Order(order_id=1), queue="q")
    buffer.create_task("by.name", {"a": 1})


def unit_tests(ctx: TaskContext) -> None:
    points: dict[str, int] = grant(ctx, Order(order_id=1))
    grant(None, Order(order_id=points["points"]))
    bare(ctx)


def takes_handlers(some: Sequence[Handler[Order, Any]]) -> Callable[[Any, Order], Any]:
    return some[0]


takes_handlers([grant, send])


def tests_of_their_own(
    session: Session, connection: Connection, raw: psycopg.Connection[Any], settings: Settings
) -> None:
    points: dict[str, int] = run(grant, Order(order_id=1), session=session, attempt=2)
    said: str = run(send, Order(order_id=points["points"]))
    run(bare, middleware=[lambda ctx, call: call()])
    run("by.name", {"a": 1}, session=raw)
    found: list[Task] = created(connection, grant)
    run(found[0], session=session)
    assert_created(raw, grant, Order(order_id=1), count=1, queue="q", delay="1h", biz_key=None)
    assert_created(session, "by.name", {"a": 1}, test=lambda task: task.priority == 1)
    context: TaskContext = make_context(session, name="a", cancelled=True)
    grant(context, Order(order_id=1))
    grant(make_context(), Order(order_id=1))
    drained: Drained = drain(session)
    drain(raw, queues=["q"])
    drain()
    drain(settings)
    drain(settings=settings, queues=("q",))
    print([run.result for run in drained.of(grant).succeeded], drained.tasks[1].state, said)
    travel("2h", session)
    travel(timedelta(hours=2), settings=settings)
    fail_next(grant, ValueError)
    fail_next("by.name", ValueError("x"), times=2, when="before")
    crash_next(send)


async def async_tests_of_their_own(session: AsyncSession) -> None:
    await arun(send, Order(order_id=1), session=session)
    context: AsyncTaskContext = make_context(session)
    await send(context, Order(order_id=1))
    await aassert_created(session, send, Order(order_id=1), count=1)
    print((await adrain(session)).failed)
    await atravel("2h", session)


class OfUnittest(TasksTestMixin, unittest.TestCase):
    def test_it(self) -> None:
        self.assert_created(grant, Order(order_id=1), queue="q")
        self.drain().assert_succeeded()
