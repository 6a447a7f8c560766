"""The shop's own tables, in a schema of their own; the next day starts with empty ones.

No unique constraint protects points, coupons and cancellations: that they are there exactly once
is due to tasks_app alone, and checks.py counts them.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, DateTime, ForeignKey, MetaData, func, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

SCHEMA = "demo_shop"


class Base(DeclarativeBase):
    """All tables of the shop."""

    metadata = MetaData(schema=SCHEMA)
    type_annotation_map = {datetime: DateTime(timezone=True)}  # noqa: RUF012  SQLAlchemy's way


class Customer(Base):
    """A customer of the shop."""

    __tablename__ = "customers"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    email: Mapped[str]


class Order(Base):
    """An order: paid, cancelled, or still open."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey(Customer.id))
    cents: Mapped[int]
    placed_at: Mapped[datetime] = mapped_column(server_default=func.now())
    paid_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]

    customer: Mapped[Customer] = relationship()


class Points(Base):
    """A grant of loyalty points."""

    __tablename__ = "points"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(index=True)
    points: Mapped[int]


class Coupon(Base):
    """A thank-you for large orders."""

    __tablename__ = "coupons"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(index=True)


class Cancellation(Base):
    """A cancelled order, and why."""

    __tablename__ = "cancellations"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(index=True)
    reason: Mapped[str]


class Parcel(Base):
    """Goods that a carrier has."""

    __tablename__ = "parcels"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(index=True)
    arrives_at: Mapped[datetime]
    review_asked_at: Mapped[datetime | None]


class Picture(Base):
    """A picture in the shop window."""

    __tablename__ = "pictures"

    id: Mapped[int] = mapped_column(primary_key=True)
    broken: Mapped[bool]
    thumbnail_at: Mapped[datetime | None]


class Employee(Base):
    """Somebody who works in the shop."""

    __tablename__ = "employees"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    email: Mapped[str]


class Payslip(Base):
    """One employee's wages of a month."""

    __tablename__ = "payslips"

    id: Mapped[int] = mapped_column(primary_key=True)
    employee_id: Mapped[int] = mapped_column(ForeignKey(Employee.id))
    cents: Mapped[int]
    mailed_at: Mapped[datetime | None]

    employee: Mapped[Employee] = relationship()


def drop_shop(connection: Connection) -> None:
    """Forget an earlier day."""
    connection.execute(text(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE"))


def build_shop(connection: Connection) -> None:
    """Make the tables, empty."""
    connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
    Base.metadata.create_all(connection)
