"""Find: from an id, a key or a name to what is called so."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tasks_app import NewTask, create_group, create_schedule
from tests.dashboard.browser import Browser
from tests.dashboard.test_errors import fails, fingerprint_of
from tests.dashboard.test_operations import lives
from tests.dashboard.test_pages import waiting_task


def place(browser: Browser, asked: str) -> str:
    return str(browser.get("/find", params={"q": asked}).headers.get("location"))


def test_what_is_called_so(engine: Engine, browser: Browser) -> None:
    task_id = waiting_task(engine, name="orders.pay", biz_key="order:42", queue="money.eu")
    failed = fails(engine, "shop.Declined", "no", name="orders.charge")
    lives(engine, "host/1", queues=["post"], handlers=["mail.send", "orders.pay"])
    with Session(engine) as session, session.begin():
        create_schedule(session, "nightly", "report", every="1h")
    fingerprint = fingerprint_of(browser, failed)
    for asked, where in (
        (str(task_id), f"/tasks/{task_id}"),
        ("order:42", "/tasks?biz_key=order%3A42"),
        ("mail.send", "/tasks?name=mail.send"),
        ("il.se", "/tasks?name=mail.send"),
        ("money.eu", "/queues/money.eu"),
        ("POST", "/queues/post"),
        ("nightly", "/schedules/nightly"),
        ("report", "/tasks?name=report"),
        (fingerprint, f"/errors/{fingerprint}"),
    ):
        assert place(browser, asked) == where, asked


def test_what_may_be_meant_is_listed(engine: Engine, browser: Browser) -> None:
    with Session(engine) as session, session.begin():
        group = create_group(session, [NewTask("a.one"), NewTask("a.two")])
    lives(engine, "host/1", handlers=["a.one", "a.two"], queues=["a"])
    page = browser.get("/find?q=a.").text
    assert 'href="/tasks?name=a.one"' in page
    assert 'href="/tasks?name=a.two"' in page
    assert place(browser, "a") == "/queues/a"
    hits = browser.get(f"/api/find?q={group.id}").json()["hits"]
    assert {"kind": "group", "key": str(group.id), "about": "open", "exact": True} in hits


@pytest.mark.parametrize("asked", ["", "nothing is so", "%", "9" * 30, "'"])
def test_nothing_says_what_to_do(browser: Browser, asked: str) -> None:
    answer = browser.get("/find", params={"q": asked})
    assert answer.status_code == 200
    assert ("Nothing has this id" if asked else "Enter an id") in answer.text
