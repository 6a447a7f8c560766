"""The guide to rates, against an API that has one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.orm import Session

from tasks_app import NewTask, create_tasks, get_task, set_limit
from tasks_app.testing import crash_next, drain, travel
from tests.how_to.conftest import Load
from tests.how_to.web import Answer, Web, serving


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    with serving() as web:
        monkeypatch.setenv("CRM_URL", web.url)
        yield web


@pytest.fixture(scope="module")
def crm(load: Load) -> Iterator[Any]:
    crm = load("rate-limited-api/crm.py")
    yield crm
    crm.client.close()


def push(session: Session, crm: Any, number: int = 1, **options: Any) -> list[int]:
    contacts = [crm.Contact(id=i, email=f"{i}@shop.example") for i in range(number)]
    return [*create_tasks(session, [NewTask(crm.push, each, **options) for each in contacts])]


@pytest.mark.test_all
def test_the_rate_holds_minute_by_minute(crm: Any, session: Session, web: Web) -> None:
    set_limit(session, "name", "crm.push", rate="10/1m", burst=10)
    push(session, crm, 30)

    drain(session)
    assert 10 <= len(web.asked) < 15  # the test itself takes a moment
    travel("30s", session)
    drain(session)
    assert 15 <= len(web.asked) < 25
    travel("1m", session)
    drain(session)
    travel("1m", session)
    drain(session).assert_succeeded()
    assert len({asked.headers["Idempotency-Key"] for asked in web.asked}) == 30


def test_each_customer_has_a_rate(crm: Any, session: Session, web: Web) -> None:
    set_limit(session, "key", "crm:customer:*", rate="1/1h", burst=2)
    push(session, crm, 9, limit_key="crm:customer:7")
    push(session, crm, 1, limit_key="crm:customer:8")
    drain(session)
    assert len(web.asked) == 3


def test_a_task_needs_room_in_each_of_its_limits(crm: Any, session: Session, web: Web) -> None:
    set_limit(session, "key", "crm:customer:*", rate="1/1h", burst=2)
    set_limit(session, "name", "crm.push", rate="1/1h", burst=3)
    for customer in (7, 8):
        push(session, crm, 9, limit_key=f"crm:customer:{customer}")
    drain(session)
    assert len(web.asked) == 3


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("answer", "wait"),
    [
        (Answer(429, {"Retry-After": "17"}), 17),
        (Answer(429), 60),
        (Answer(429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}), 60),
    ],
)
def test_the_answer_says_when_and_nothing_is_charged(
    crm: Any, session: Session, web: Web, answer: Answer, wait: int
) -> None:
    web.answer = lambda _: answer
    (task,) = push(session, crm)
    for _ in range(6):  # more often than `retry` allows
        (run,) = drain(session).waiting
        assert run.wait is not None
        assert run.wait.total_seconds() == pytest.approx(wait, abs=1)
        travel(wait, session)
    assert get_task(session, task).failures == 0
    web.answer = lambda _: Answer(204)
    drain(session).assert_succeeded()


def test_an_outage_is_waited_for_uncharged(crm: Any, session: Session, web: Web) -> None:
    web.answer = lambda _: Answer(503)
    (task,) = push(session, crm)
    assert drain(session).waiting
    assert get_task(session, task).failures == 0


def test_what_is_refused_fails_at_once(crm: Any, session: Session, web: Web) -> None:
    web.answer = lambda _: Answer(422)
    push(session, crm)
    assert [run.error for run in drain(session).failed] == ["Fail: HTTP 422"]


def test_a_call_that_is_made_again_has_its_key(crm: Any, session: Session, web: Web) -> None:
    push(session, crm)
    crash_next("crm.push")
    drain(session).assert_succeeded()
    first, second = web.asked
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
