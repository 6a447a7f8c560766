"""What the shop does in the foreground: business rows and their tasks in ONE transaction.

None of these functions commits. If the caller rolls back, neither the order nor a task was there.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import func
from sqlalchemy.orm import Session

from shop.handlers import (
    OrderTask,
    PayslipTask,
    PictureTask,
    book_parcel,
    cancel_unpaid,
    confirm_order,
    grant_points,
    issue_coupon,
    mail_payslip,
    make_thumbnail,
)
from shop.pace import PAY_WITHIN
from shop.tables import Customer, Employee, Order, Payslip, Picture
from tasks_app import NewTask, TaskId, cancel_tasks, create_task, create_tasks

COUPON_FROM_CENTS = 5_000


def place_order(session: Session, customer: Customer, cents: int) -> tuple[Order, list[TaskId]]:
    """Take an order and create all that follows from it."""
    order = Order(customer=customer, cents=cents)
    session.add(order)
    session.flush()
    payload, about = OrderTask(order_id=order.id), f"order:{order.id}"
    tasks = [
        create_task(session, grant_points, payload, biz_key=about),
        create_task(session, confirm_order, payload, biz_key=about, priority=3),
        create_task(session, cancel_unpaid, payload, biz_key=about, delay=PAY_WITHIN),
    ]
    if cents >= COUPON_FROM_CENTS:
        tasks.append(create_task(session, issue_coupon, payload, biz_key=about))
    return order, tasks


def pay(session: Session, order_id: int, *, by_card: bool) -> list[TaskId]:
    """Book a payment, unless it comes too late; return the tasks that it made.

    A card payment calls the waiting cancellation off. A bank transfer does not know of it: then
    the handler itself finds the order paid, and skips.
    """
    order = session.get_one(Order, order_id, with_for_update=True)
    if order.cancelled_at is not None:
        return []
    order.paid_at = func.now()
    about = f"order:{order_id}"
    if by_card:
        cancel_tasks(session, name="order.cancel_unpaid", biz_key=about)
    return [create_task(session, book_parcel, OrderTask(order_id=order_id), biz_key=about)]


def run_payroll(session: Session, employees: Iterable[Employee]) -> list[TaskId]:
    """Write everybody's payslip and create all mails in few statements."""
    payslips = [Payslip(employee=employee, cents=300_000) for employee in employees]
    session.add_all(payslips)
    session.flush()
    return create_tasks(
        session,
        [NewTask(mail_payslip, PayslipTask(payslip_id=payslip.id)) for payslip in payslips],
    )


def take_pictures(session: Session, pictures: Iterable[Picture]) -> list[TaskId]:
    """Put new pictures on show; each gets its thumbnail."""
    shown = list(pictures)
    session.add_all(shown)
    session.flush()
    return create_tasks(
        session,
        [
            NewTask(
                make_thumbnail,
                PictureTask(picture_id=picture.id),
                biz_key=f"picture:{picture.id}",
            )
            for picture in shown
        ],
    )
