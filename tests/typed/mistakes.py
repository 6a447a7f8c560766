"""Mistakes of users. Type checkers find each: at each line that says so, and at no other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tasks_app import (
    AsyncTaskContext,
    Flow,
    NewTask,
    TaskBuffer,
    TaskContext,
    TaskId,
    achange_queue,
    acreate_task,
    apause_queue,
    astart_job,
    cancel_task,
    create_flow,
    create_group,
    create_task,
    create_tasks,
    get_task,
    handler,
    requeue_task,
)
from tasks_app.testing import assert_created, drain, fail_next, make_context, travel
from tasks_app.testing import run as run_handler


class Order(BaseModel):
    order_id: int


class Refund(BaseModel):
    refund_id: int


@dataclass
class Parcel:
    weight: float


@handler("order.pay")
def pay(ctx: TaskContext, payload: Order) -> int:
    ctx.session.no_such_method()  # mistake
    ctx.attemptt  # mistake  # noqa: B018
    ctx.need("pay", Parcel).no_such_field  # mistake  # noqa: B018
    return ctx.session.execute  # mistake


@handler("order.mail")
async def mail(ctx: AsyncTaskContext, payload: Order) -> None:
    await ctx.session.no_such_method()  # mistake
    ctx.need("pay", Parcel).weight  # mistake  # noqa: B018
    ctx.session.get(Order, 1).order_id  # mistake  # noqa: B018


@handler("parcel")
def send(ctx: TaskContext, payload: Parcel) -> None:
    ctx.locks(exclusive=5)  # mistake


@handler("tick")
def tick(ctx: TaskContext) -> None: ...


@handler("numbers")
def numbers(ctx: TaskContext, payload: list[int]) -> None: ...


@handler("swapped")  # mistake
def swapped(payload: Order) -> None: ...


@handler("too.many")  # mistake
def too_many(ctx: TaskContext, payload: Order, more: int) -> None: ...


@handler("none")  # mistake
def none() -> None: ...


@handler  # mistake
def bare(ctx: TaskContext, payload: Order, more: int) -> None: ...


@handler("keyword")  # mistake
def keyword(ctx: TaskContext, *, order_id: int) -> None: ...


handler("a", retri="5s")  # mistake
handler("a", commit="sometimes")  # mistake
handler("a", on_interrupt="charged")  # mistake
handler("a", dependency_then="never")  # mistake
handler("a", on_error={ValueError: "ignore"})  # mistake
handler("a", queue=5)  # mistake
handler("a", overlap="perhaps", every="5s")  # mistake
handler(5)  # mistake


def produce(session: Session, engine: Engine, maker: AsyncSession, buffer: TaskBuffer) -> None:
    create_task(session, pay, Refund(refund_id=1))  # mistake
    create_task(session, pay, {"order_id": 1})  # mistake
    create_task(session, pay)  # mistake
    create_task(session, pay, None)  # mistake
    create_task(session, pay, 5)  # mistake
    create_task(session, mail, Refund(refund_id=1))  # mistake
    create_task(session, send, Order(order_id=1))  # mistake
    create_task(session, tick, Order(order_id=1))  # mistake
    create_task(session, numbers, ["one"])  # mistake
    create_task(session, print)  # mistake
    create_task(session, 5)  # mistake
    create_task(session, lambda: None)  # mistake
    create_task(session, "by.name", 5)  # mistake
    create_task(session, "by.name", ["a"])  # mistake
    create_task(session, pay, Order(order_id="one"))  # mistake
    create_task(session, pay, Order(order_id=1), on_conflict="explode")  # mistake
    create_task(session, pay, Order(order_id=1), order_policy="perhaps")  # mistake
    create_task(session, pay, Order(order_id=1), prioritty=1)  # mistake
    create_task(session, pay, Order(order_id=1), priority="high")  # mistake
    create_task(session, pay, Order(order_id=1), run_at="tomorrow")  # mistake
    create_task(session, pay, Order(order_id=1), countdown=5)  # mistake
    create_task(pay, Order(order_id=1))  # mistake
    create_task(engine, pay, Order(order_id=1))  # mistake
    create_task(maker, pay, Order(order_id=1))  # mistake
    buffer.create_task(pay, Refund(refund_id=1))  # mistake
    NewTask(pay, Refund(refund_id=1))  # mistake
    NewTask(pay)  # mistake
    NewTask(print)  # mistake
    NewTask("by.name", {"a": 1}, on_conflict="explode")  # mistake
    NewTask("by.name", {"a": 1}, {"prioritty": 1})  # mistake
    create_tasks(session, NewTask(tick))  # mistake
    create_tasks(session, [(pay, Order(order_id=1))])  # mistake
    create_tasks(session, ["by.name"])  # mistake
    create_group(session, [NewTask(tick)], then="by.name")  # mistake
    flow = Flow("order")
    flow.step("pay", pay, Refund(refund_id=1))  # mistake
    flow.step("pay", pay)  # mistake
    flow.step("pay", tick, needs=7)  # mistake
    flow.step("pay", tick, prioritty=1)  # mistake
    flow.map("labels", pay)  # mistake
    flow.map("labels", pay, over=7)  # mistake
    flow.map("labels", pay, over="pay", prioritty=1)  # mistake
    create_flow(session, "order")  # mistake
    get_task(session, "x")  # mistake
    get_task(maker, 1)  # mistake
    cancel_task(session, None)  # mistake
    requeue_task(session, 1, reason="why")  # mistake
    pay.delay(Order(order_id=1))  # mistake
    pay.apply_async()  # mistake
    pay(None)  # mistake
    pay(None, Refund(refund_id=1))  # mistake
    wrong: str = create_task(session, tick)  # mistake
    print(wrong)


async def produce_in_a_loop(session: AsyncSession, plain: Session, ctx: TaskContext) -> None:
    await acreate_task(session, pay, Refund(refund_id=1))  # mistake
    await acreate_task(session, pay)  # mistake
    await acreate_task(plain, pay, Order(order_id=1))  # mistake
    await create_task(plain, tick)  # mistake
    await apause_queue(plain, "mail")  # mistake
    await achange_queue(session, "mail", runing_below=5)  # mistake
    started: bool = await astart_job(session, "job")  # mistake
    print(started)
    task_id: TaskId = acreate_task(session, tick)  # mistake
    await ctx.session.execute()  # mistake
    print(task_id)


def run(some: Any) -> None:
    asyncio.run(some)


def tests_of_their_own(session: Session, engine: Engine) -> None:
    run_handler(pay, Refund(refund_id=1))  # mistake
    run_handler(pay, Order(order_id=1), atempt=2)  # mistake
    wrong: str = run_handler(mail, Order(order_id=1))  # mistake
    assert_created(session, pay, bizkey="order:7")  # mistake
    assert_created(engine, pay)  # mistake
    make_context(session, cancel=True)  # mistake
    drain(engine)  # mistake
    drain(session).sucess  # mistake  # noqa: B018
    travel(None, session)  # mistake
    fail_next(pay, "an error")  # mistake
    print(wrong)
