"""The demo's checks must be able to fail: each is shown a good evening, then a bad one."""

from __future__ import annotations

from uuid import uuid4

import pytest
from shop import checks
from shop.diary import Diary
from shop.evidence import Evidence, Verdict
from shop.tables import build_shop, drop_shop
from sqlalchemy import Connection, text

NAMES = ("points.grant", "order.confirm", "order.cancel_unpaid", "thumbnail.make", "payslip.mail")


@pytest.fixture
def evening(connection: Connection) -> Evidence:
    """An empty shop in a transaction that is rolled back."""
    drop_shop(connection)
    build_shop(connection)
    execute(connection, "INSERT INTO demo_shop.customers VALUES (1, 'ada', 'ada@example.org')")
    return Evidence(connection, Diary(names=NAMES), {})


def execute(connection: Connection, sql: str, **values: object) -> None:
    connection.execute(text(sql), values)


def order(evening: Evidence, number: int, *, paid: bool = False, cancelled: bool = False) -> None:
    evening.diary.orders.append(number)
    execute(
        evening.connection,
        "INSERT INTO demo_shop.orders (id, customer_id, cents, paid_at, cancelled_at) VALUES"
        " (:id, 1, 100, CASE WHEN :paid THEN now() END, CASE WHEN :cancelled THEN now() END)",
        id=number,
        paid=paid,
        cancelled=cancelled,
    )


def points(evening: Evidence, number: int) -> None:
    sql = "INSERT INTO demo_shop.points (order_id, points) VALUES (:id, 1)"
    execute(evening.connection, sql, id=number)


def cancellation(evening: Evidence, number: int) -> None:
    sql = "INSERT INTO demo_shop.cancellations (order_id, reason) VALUES (:id, 'unpaid')"
    execute(evening.connection, sql, id=number)


def finished(evening: Evidence, task_id: int, name: str, **columns: object) -> str:
    """Put a task into a terminal pool and return its idempotency key."""
    key = str(uuid4())
    failed = "error" in columns
    values = {"state": "FAILED" if failed else "SUCCEEDED", "idempotency_key": key, **columns}
    names = ", ".join(values)
    execute(
        evening.connection,
        f"INSERT INTO {'task_error' if failed else 'task_completed'} (id, name, {names})"
        f" VALUES (:id, :name, {', '.join(':' + column for column in values)})",
        **{"id": task_id, "name": name, **values},
    )
    return key


def attempt(evening: Evidence, task_id: int, number: int, kind: str) -> None:
    insert = "INSERT INTO task_attempt (task_id, attempt, event, kind, message)"
    values = {"id": task_id, "number": number, "kind": kind}
    execute(evening.connection, f"{insert} VALUES (:id, :number, 'retry', :kind, '')", **values)


def test_missing_or_double_points_are_seen(evening: Evidence) -> None:
    order(evening, 1)
    points(evening, 1)
    good = checks.points_are_granted_once(evening)
    points(evening, 1)
    double = checks.points_are_granted_once(evening)
    order(evening, 2)
    execute(evening.connection, "DELETE FROM demo_shop.points")
    points(evening, 2)
    missing = checks.points_are_granted_once(evening)
    assert holds(good, double, missing) == [True, False, False]


def test_a_task_of_an_order_that_was_rolled_back_is_seen(evening: Evidence) -> None:
    evening.diary.rolled_back.append(7)
    good = checks.rolled_back_orders_left_nothing(evening)
    finished(evening, 1, "points.grant", biz_key="order:7")
    bad = checks.rolled_back_orders_left_nothing(evening)
    assert holds(good, bad) == [True, False]


def test_a_mail_that_is_missing_or_under_another_key_is_seen(evening: Evidence) -> None:
    order(evening, 1)
    key = finished(evening, 1, "order.confirm", biz_key="order:1")
    mails: list[dict[tuple[str, str], int]] = [
        {("order:1", key): 1},
        {("order:1", key): 3},
        {("order:1", key): 1, ("order:1", "another"): 1},
        {},
    ]

    found = [
        checks.confirmations_arrived(Evidence(evening.connection, evening.diary, accepted))
        for accepted in mails
    ]

    assert holds(*found) == [True, True, False, False]
    assert "2 duplicates" in found[1].figure


def test_a_paid_order_that_was_cancelled_is_seen(evening: Evidence) -> None:
    order(evening, 1, paid=True)
    order(evening, 2, cancelled=True)
    cancellation(evening, 2)
    good = checks.only_unpaid_orders_are_cancelled(evening)
    cancellation(evening, 2)
    double = checks.only_unpaid_orders_are_cancelled(evening)
    execute(evening.connection, "UPDATE demo_shop.cancellations SET order_id = 1 WHERE id = 1")
    paid = checks.only_unpaid_orders_are_cancelled(evening)
    assert holds(good, double, paid) == [True, False, False]


def test_poison_must_have_run_three_times_and_say_why(evening: Evidence) -> None:
    evening.diary.poison.append(1)
    none = checks.poison_is_put_away(evening)
    finished(evening, 1, "thumbnail.make", failures=3, attempt=3, error="process died: it did")
    for number in (1, 2):
        attempt(evening, 1, number, "process died")
    twice = checks.poison_is_put_away(evening)
    attempt(evening, 1, 3, "process died")
    thrice = checks.poison_is_put_away(evening)
    assert holds(none, twice, thrice) == [False, False, True]


def test_a_neighbour_that_was_charged_is_seen(evening: Evidence) -> None:
    finished(evening, 1, "points.grant", failures=1, attempt=2)
    attempt(evening, 1, 1, "ConnectionError")
    good = checks.nobody_else_is_charged(evening)
    finished(evening, 2, "points.grant", failures=1, attempt=2)
    attempt(evening, 2, 1, "process died")
    bad = checks.nobody_else_is_charged(evening)
    assert holds(good, bad) == [True, False]


def test_a_refused_mail_must_lie_in_the_error_pool_with_its_code(evening: Evidence) -> None:
    order(evening, 1)
    evening.diary.refused.append(1)
    absent = checks.refused_mail_is_in_the_error_pool(evening)
    finished(evening, 1, "order.confirm", biz_key="order:1", error="MailRefusedError: SMTP 550")
    present = checks.refused_mail_is_in_the_error_pool(evening)
    assert holds(absent, present) == [False, True]


def test_a_task_that_is_lost_unfinished_or_in_two_pools_is_seen(evening: Evidence) -> None:
    evening.diary.created += [1, 2]
    finished(evening, 1, "points.grant")
    lost = checks.nothing_is_lost(evening)
    finished(evening, 2, "points.grant")
    good = checks.nothing_is_lost(evening)

    finished(evening, 2, "points.grant", error="again")
    twice = checks.nothing_is_lost(evening)
    execute(evening.connection, "DELETE FROM task_error")
    execute(evening.connection, "DELETE FROM task_completed WHERE id = 2")
    execute(evening.connection, "INSERT INTO task_pending (id, name) VALUES (2, 'points.grant')")
    unfinished = checks.nothing_is_lost(evening)

    assert holds(lost, good, twice, unfinished) == [False, True, False, False]


def test_an_effect_without_its_outcome_is_seen(evening: Evidence) -> None:
    finished(evening, 1, "points.grant")
    points(evening, 1)
    good = checks.effects_match_outcomes(evening)
    points(evening, 2)
    bad = checks.effects_match_outcomes(evening)
    assert holds(good, bad) == [True, False]
    assert "points.grant" in bad.figure


def test_a_payslip_that_only_one_side_knows_of_is_seen(evening: Evidence) -> None:
    execute(evening.connection, "INSERT INTO demo_shop.employees VALUES (1, 'e', 'e@shop.example')")
    sql = (
        "INSERT INTO demo_shop.payslips (id, employee_id, cents, mailed_at) VALUES (1, 1, 1, now())"
    )
    execute(evening.connection, sql)
    unseen = checks.payslips_are_mailed(evening)
    mails = {("payslip:1", "key"): 1}
    seen = checks.payslips_are_mailed(Evidence(evening.connection, evening.diary, mails))
    assert holds(unseen, seen) == [False, True]


def test_a_day_without_its_accidents_is_seen(evening: Evidence) -> None:
    quiet = checks.accidents_happened(evening)
    evening.diary.in_hand, evening.diary.forgotten = 0, 0
    assert holds(quiet, checks.accidents_happened(evening)) == [False, True]


def holds(*verdicts: Verdict) -> list[bool]:
    return [verdict.holds for verdict in verdicts]
