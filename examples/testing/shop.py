"""A shop: what the tests beside it are about."""

from __future__ import annotations

from typing import Protocol

from pydantic import BaseModel
from sqlalchemy import func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tasks_app import TaskContext, create_task, handler


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(Base):
    """What somebody bought."""

    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


class Points(Base):
    """What an order is worth."""

    __tablename__ = "shop_points"
    order_id: Mapped[int] = mapped_column(primary_key=True)
    points: Mapped[int]


class OfOrder(BaseModel):
    """The payload of tasks about an order."""

    order_id: int


class Bank(Protocol):
    """Charges cards; a second charge with the same key does nothing."""

    def charge(self, key: str, order_id: int) -> None:
        """Charge the card of an order."""


class Shop:
    """What the handlers use outside of the database."""

    bank: Bank
    mails: list[str]


def place_order(session: Session, customer: str) -> Order:
    """Store an order, and create what follows from it in the same transaction."""
    order = Order(customer=customer)
    session.add(order)
    session.flush()
    payload = OfOrder(order_id=order.id)
    about = f"order:{order.id}"
    create_task(session, grant_points, payload, biz_key=about)
    create_task(session, charge_card, payload, biz_key=about, queue="payments")
    create_task(session, ask_for_review, payload, biz_key=about, delay="2d")
    return order


@handler("points.grant")
def grant_points(ctx: TaskContext, payload: OfOrder) -> dict[str, int]:
    """Write through the session: that commits together with the outcome, once."""
    ctx.session.add(Points(order_id=payload.order_id, points=10))
    return {"points": 10}


@handler("card.charge", queue="payments", retry="1m,1h", timeout=30)
def charge_card(ctx: TaskContext, payload: OfOrder) -> None:
    """Act outside: that may happen twice, so the key goes along."""
    Shop.bank.charge(str(ctx.idempotency_key), payload.order_id)


@handler("review.ask")
def ask_for_review(ctx: TaskContext, payload: OfOrder) -> None:
    """Send a mail, two days after the order."""
    order = ctx.session.get_one(Order, payload.order_id)
    Shop.mails.append(f"{order.customer}, how was it?")


@handler("order.thank")
def thank(ctx: TaskContext, payload: OfOrder) -> str:
    """Read what another step returned, and what somebody sent."""
    note = ctx.event(f"order:{payload.order_id}/note")
    return f"{ctx.need('points')['points']} points, {note['text'] if note else 'no note'}"


@handler("report.make", cron="0 6 * * *")
def make_report(ctx: TaskContext) -> int:
    """Count the orders, every morning."""
    return ctx.session.scalar(select(func.count()).select_from(Order)) or 0
