"""What the shop does in the background: one function for each kind of task.

Three sentences are all there is to learn:

* What you write through ``ctx.session`` commits together with the task's outcome: exactly once.
* What leaves the database, such as a mail, may happen twice: send ``ctx.idempotency_key`` along.
* Returning is success. An exception is tried again; Skip, Snooze, Retry and Fail say more.
"""

from __future__ import annotations

import asyncio
import os
import signal

from pydantic import BaseModel
from sqlalchemy import func, select

from shop.mail import MailRefusedError, send_mail
from shop.pace import LOOK_AGAIN, MAIL_WAITS, ON_THE_WAY_S, RETRY_WAITS
from shop.tables import Cancellation, Coupon, Order, Parcel, Payslip, Picture, Points
from tasks_app import AsyncTaskContext, Retry, Skip, Snooze, TaskContext, acreate_task, handler


class OrderTask(BaseModel):
    """Tasks carry ids, not copies: what they need they read when they run."""

    order_id: int


class PayslipTask(BaseModel):
    """One payslip."""

    payslip_id: int


class PictureTask(BaseModel):
    """One picture."""

    picture_id: int


@handler("points.grant")
def grant_points(ctx: TaskContext, payload: OrderTask) -> dict[str, int]:
    """Give a point for each euro. Points and outcome are one commit, whatever dies when."""
    order = ctx.session.get_one(Order, payload.order_id)
    points = order.cents // 100
    ctx.session.add(Points(order_id=order.id, points=points))
    return {"points": points}


@handler("order.confirm", retry=MAIL_WAITS, timeout="10s", on_error={MailRefusedError: "fail"})
def confirm_order(ctx: TaskContext, payload: OrderTask) -> None:
    """Mail the customer. While the server is away we try again; a refused address is final."""
    order = ctx.session.get_one(Order, payload.order_id)
    about = f"order:{order.id}"
    send_mail(order.customer.email, "Your order", about=about, key=ctx.idempotency_key)


@handler("order.cancel_unpaid")
def cancel_unpaid(ctx: TaskContext, payload: OrderTask) -> None:
    """Cancel an order that nobody paid in time. The row lock decides a race with the payment."""
    order = ctx.session.get_one(Order, payload.order_id, with_for_update=True)
    if order.paid_at is not None:
        raise Skip("It was paid in time.")
    order.cancelled_at = func.now()
    ctx.session.add(Cancellation(order_id=order.id, reason="not paid in time"))


@handler("coupon.issue", retry=RETRY_WAITS)
def issue_coupon(ctx: TaskContext, payload: OrderTask) -> None:
    """Issue a coupon. It is written before the trouble starts, and a failure takes it back."""
    ctx.session.add(Coupon(order_id=payload.order_id))
    ctx.session.flush()
    if payload.order_id % 3 == 0 and ctx.failures == 0:
        raise Retry("The coupon office is at lunch.", after="1s")
    if payload.order_id % 3 == 1 and ctx.failures < 2:
        raise ConnectionError("The coupon office hung up.")


@handler("parcel.book", retry=RETRY_WAITS)
async def book_parcel(ctx: AsyncTaskContext, payload: OrderTask) -> None:
    """Book the carrier. In async handlers the session is an AsyncSession.

    A task may create tasks: the next one exists if and only if this one succeeds.
    """
    await asyncio.sleep(0.02)  # the carrier thinks
    arrives_at = func.now() + func.make_interval(0, 0, 0, 0, 0, 0, ON_THE_WAY_S)
    ctx.session.add(Parcel(order_id=payload.order_id, arrives_at=arrives_at))
    await acreate_task(ctx.session, ask_for_review, payload, biz_key=f"order:{payload.order_id}")


@handler("review.ask")
def ask_for_review(ctx: TaskContext, payload: OrderTask) -> None:
    """Ask how it was, once the parcel is there. Looking too early is no failure."""
    arrived = select(Parcel).filter_by(order_id=payload.order_id)
    parcel = ctx.session.scalar(arrived.where(Parcel.arrives_at <= func.now()))
    if parcel is None:
        raise Snooze(LOOK_AGAIN, "The parcel is still on its way.")
    parcel.review_asked_at = func.now()


@handler("payslip.mail", retry=MAIL_WAITS, timeout="10s", on_error={MailRefusedError: "fail"})
def mail_payslip(ctx: TaskContext, payload: PayslipTask) -> None:
    """Mail a payslip and remember that it went out."""
    payslip = ctx.session.get_one(Payslip, payload.payslip_id)
    about = f"payslip:{payslip.id}"
    send_mail(payslip.employee.email, "Your payslip", about=about, key=ctx.idempotency_key)
    payslip.mailed_at = func.now()


@handler("thumbnail.make", retry=RETRY_WAITS, max_attempts=3)
def make_thumbnail(ctx: TaskContext, payload: PictureTask) -> None:
    """Shrink a picture. A broken one takes the library down, and the whole process with it."""
    picture = ctx.session.get_one(Picture, payload.picture_id)
    if picture.broken:
        os.kill(os.getpid(), signal.SIGKILL)
    picture.thumbnail_at = func.now()
