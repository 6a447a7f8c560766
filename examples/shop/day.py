"""One day of the shop, the same each time: who orders, pays and cancels, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from shop import pace, sales
from shop.diary import Diary
from shop.mailserver import FAR_AWAY, NOBODY, PATIENCE, MailServer
from shop.tables import Customer, Employee, Picture
from tasks_app import TaskId, cancel_tasks

EMPLOYEES, PICTURES, BROKEN_PICTURE = 25, 10, 5
REFUSED_ORDER = 1
"""The number of the order of the customer whom no mail reaches."""


class CardDeclinedError(Exception):
    """Raised inside an order's transaction: neither the order nor its tasks ever exist."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens ``at_s`` seconds after the shop opened."""

    at_s: float
    act: Callable[[], None]


class Day:
    """The plan of a day, executed step by step; the diary records the results."""

    def __init__(self, engine: Engine, mail: MailServer, diary: Diary, orders: int) -> None:
        self.diary = diary
        self._engine = engine
        self._mail = mail
        self._rng = Random(7)
        self._customers: list[int] = []
        self._placed: dict[int, int] = {}
        self._plan = sorted(self._events(orders), key=lambda event: event.at_s)

    @property
    def is_over(self) -> bool:
        """Whether everything planned has happened."""
        return not self._plan

    def open(self) -> None:
        """Call off what an interrupted day left in the pool, and let the customers in.

        Before any worker starts: order 7 of that day is not order 7 of this one.
        """
        with Session(self._engine) as session, session.begin():
            for name in self.diary.names:
                cancel_tasks(session, name=name)
            newest = text("SELECT coalesce(max(id), 0) FROM task_all")
            self.diary.since = session.scalars(newest).one()
            people = [Customer(name=email.partition("@")[0], email=email) for email in _customers()]
            session.add_all(people)
            session.add_all(
                Employee(name=f"employee {n}", email=f"employee{n}@shop.example")
                for n in range(EMPLOYEES)
            )
            session.flush()
            self._customers = [person.id for person in people]

    def step(self, elapsed_s: float) -> None:
        """Let the next events happen, if they are due."""
        while self._plan and self._plan[0].at_s <= elapsed_s:
            self._plan.pop(0).act()

    def _events(self, orders: int) -> list[Event]:
        """Every tenth order is rolled back; two in three are paid, half of them by card."""
        down_s, up_s = pace.MAIL_IS_DOWN_S
        events = [
            Event(pace.PICTURES_AT_S, self._show_pictures),
            Event(pace.PAYROLL_AT_S, self._pay_wages),
            Event(down_s, self._mail.down),
            Event(up_s, self._mail.up),
        ]
        for number in range(orders):
            at_s = number * pace.ORDERS_TAKE_S / orders
            declined = number % 10 == 3
            events.append(Event(at_s, partial(self._order, number, declined=declined)))
            if number % 3 != 2 and not declined:
                paid_at_s = at_s + 1.0 + 2.0 * self._rng.random()
                events.append(Event(paid_at_s, partial(self._pay, number, by_card=number % 2 == 0)))
        return events

    def _order(self, number: int, *, declined: bool) -> None:
        refused = number == REFUSED_ORDER
        customer_id = self._customers[-1] if refused else self._rng.choice(self._customers[:-1])
        order_id, tasks = 0, list[TaskId]()
        try:
            with Session(self._engine) as session, session.begin():
                customer = session.get_one(Customer, customer_id)
                order, tasks = sales.place_order(session, customer, self._rng.randrange(500, 9_900))
                order_id = order.id
                if declined:
                    raise CardDeclinedError
        except CardDeclinedError:
            self.diary.rolled_back.append(order_id)
            self.diary.never_created += tasks
            return
        self._placed[number] = order_id
        self.diary.orders.append(order_id)
        self.diary.refused += [order_id] if refused else []
        self.diary.created += tasks

    def _pay(self, number: int, *, by_card: bool) -> None:
        with Session(self._engine) as session, session.begin():
            tasks = sales.pay(session, self._placed[number], by_card=by_card)
        self.diary.created += tasks

    def _pay_wages(self) -> None:
        with Session(self._engine) as session, session.begin():
            employees = session.scalars(select(Employee).order_by(Employee.id))
            tasks = sales.run_payroll(session, employees)
        self.diary.created += tasks

    def _show_pictures(self) -> None:
        pictures = [Picture(broken=number == BROKEN_PICTURE) for number in range(PICTURES)]
        with Session(self._engine) as session, session.begin():
            tasks = sales.take_pictures(session, pictures)
        self.diary.created += tasks
        self.diary.poison.append(tasks[BROKEN_PICTURE])


def _customers() -> list[str]:
    """Return addresses with every mood of the mail server; the last one is refused."""
    easy = [f"{name}@example.org" for name in ("ada", "grace", "edsger", "barbara", "donald")]
    return [*easy, f"tony{PATIENCE}", f"margaret{PATIENCE}", f"frances{FAR_AWAY}", NOBODY]
