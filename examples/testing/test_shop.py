"""The shop's tests in pytest; docs/testing.md explains each."""

from __future__ import annotations

import pytest
import shop
from conftest import RecordingBank
from shop import OfOrder, Points, charge_card, grant_points, place_order, thank
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from tasks_app import Flow, create_flow, create_task
from tasks_app.testing import (
    assert_created,
    assert_flow,
    crash_next,
    created,
    drain,
    fail_next,
    make_context,
    run,
    travel,
)


def test_an_order_creates_its_tasks(tasks_app_session: Session) -> None:
    order = place_order(tasks_app_session, "Ann")

    assert_created(tasks_app_session, grant_points, OfOrder(order_id=order.id), count=1)
    assert_created(tasks_app_session, "review.ask", delay="2d", biz_key=f"order:{order.id}")
    assert len(created(tasks_app_session)) == 3


def test_points_are_granted(tasks_app_session: Session) -> None:
    result = run(grant_points, OfOrder(order_id=7), session=tasks_app_session)

    assert result == {"points": 10}
    assert tasks_app_session.get_one(Points, 7).points == 10


def test_a_card_is_charged_with_the_key_of_its_task(bank: RecordingBank) -> None:
    ctx = make_context(attempt=2)

    charge_card(ctx, OfOrder(order_id=7))

    assert bank.asked == [str(ctx.idempotency_key)]


def test_a_step_thanks_for_an_order_without_a_note() -> None:
    ctx = make_context(needs={"points": {"points": 10}}, events={"order:7/note": None})

    assert thank(ctx, OfOrder(order_id=7)) == "10 points, no note"


def test_all_that_is_due_runs(tasks_app_session: Session, bank: RecordingBank) -> None:
    place_order(tasks_app_session, "Ann")

    drained = drain(tasks_app_session).assert_succeeded()

    assert {run.name for run in drained} == {"points.grant", "card.charge"}
    assert drained.of(grant_points).succeeded[0].result == {"points": 10}
    assert bank.charges == 1


def test_a_bank_that_is_down_is_asked_again(
    tasks_app_session: Session, bank: RecordingBank
) -> None:
    place_order(tasks_app_session, "Ann")

    fail_next(charge_card, ConnectionError("the bank is down"), when="before")
    drained = drain(tasks_app_session)
    assert drained.of(charge_card).waiting[0].error == "ConnectionError: the bank is down"

    travel("1m", tasks_app_session)
    drain(tasks_app_session).assert_succeeded()
    assert bank.charges == 1


def test_a_review_is_asked_for_two_days_later(tasks_app_session: Session) -> None:
    place_order(tasks_app_session, "Ann")
    drain(tasks_app_session)
    assert shop.Shop.mails == []

    travel("2d", tasks_app_session)
    assert drain(tasks_app_session).of("review.ask").succeeded
    assert shop.Shop.mails == ["Ann, how was it?"]


def test_points_follow_the_payment(tasks_app_session: Session, bank: RecordingBank) -> None:
    flow = Flow("order")
    pay = flow.step("pay", charge_card, OfOrder(order_id=7))
    flow.step("points", grant_points, OfOrder(order_id=7), needs=pay, delay="1d")
    made = create_flow(tasks_app_session, flow)
    assert_flow(tasks_app_session, made.id, waiting={"points": ["pay"]})

    drain(tasks_app_session)
    assert_flow(tasks_app_session, made.id, done=["pay"], waiting={}, failed=[])
    assert bank.charges == 1

    travel("1d", tasks_app_session)
    drain(tasks_app_session)
    assert_flow(tasks_app_session, made.id, done=["pay", "points"])


def test_nobody_pays_twice_when_a_machine_dies(
    tasks_app_session: Session, bank: RecordingBank
) -> None:
    place_order(tasks_app_session, "Ann")

    crash_next(charge_card)
    crash_next(grant_points)
    drain(tasks_app_session).assert_succeeded()

    assert len(bank.asked) == 2
    assert bank.charges == 1
    assert tasks_app_session.scalar(select(func.count()).select_from(Points)) == 1


def test_the_report_is_made_every_morning(tasks_app_session: Session) -> None:
    drain(tasks_app_session)
    for _ in range(3):
        travel("1d", tasks_app_session)
        assert len(drain(tasks_app_session).of("report.make").succeeded) == 1


@pytest.mark.usefixtures("tasks_app_pool")
def test_code_that_commits(tasks_app_engine: Engine) -> None:
    with Session(tasks_app_engine) as session, session.begin():
        place_order(session, "Ann")

    drained = drain()

    assert drained.counts == {"SUCCEEDED": 2}


def test_a_payload_that_a_producer_may_not_send(tasks_app_session: Session) -> None:
    with pytest.raises(ValueError, match="order_id"):
        create_task(tasks_app_session, "points.grant", {"order": 7})
