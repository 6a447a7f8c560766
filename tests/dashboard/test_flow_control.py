"""Settings, limits, breakers, shares and locks on the pages of queues, and their buttons."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tasks_app import locks
from tasks_app.domain.flow_control.circuit_breaker import Breaker
from tasks_app.pool.flow_control.circuit_breakers import synchronise
from tests.dashboard.browser import Browser, text_of, write
from tests.dashboard.test_pages import audit, waiting_task
from tests.dashboard.test_queues import queue
from tests.factory import claimed_task


@pytest.mark.test_all
def test_limits(engine: Engine, browser: Browser) -> None:
    with engine.begin() as connection:
        claimed_task(connection, queue="mail")
    write(engine, "UPDATE task_pending SET limit_key = 'x', more_limit_keys = '{tenant:1}'")
    form = {"kind": "key", "target": "tenant:*", "most": "2", "rate": "100/1m", "page": "mail"}
    answer = browser.act("/limits/set", form)
    assert answer.headers["location"] == "/queues/mail"
    held = waiting_task(engine, queue="mail", limit_key="tenant:1")
    parked = "UPDATE task_pending SET parked_kind = 'key', parked_for = 'tenant:1', parked = 'x'"
    write(engine, f"{parked} WHERE id = :id", id=held)
    browser.act("/limits/set", {"kind": "queue", "target": "mail", "most": "1"})
    own, key = queue(browser, "mail")["limits"]
    assert (own["kind"], own["running"], own["most"]) == ("queue", 1, 1)
    found = tuple(key[name] for name in ("key", "target", "running", "held", "rate"))
    assert found == ("tenant:1", "tenant:*", 1, 1, "100/1m")
    assert key["starts_left"] is not None
    assert "holds 1 back" in text_of(browser.get("/queues/mail").text)
    model = browser.get("/api/queues").json()
    assert model["limits"][0]["held"] == 1
    assert model["limit_number"] == 2
    browser.act("/limits/drop", {"kind": "queue", "target": "mail"})
    browser.act("/limits/drop", {"kind": "queue", "target": "mail"})
    assert "There is no limit of" in browser.get("/queues").text
    assert [line[0] for line in audit(engine)] == ["set limit", "set limit", "drop limit"]
    assert browser.act("/limits/set", {"kind": "key", "target": "x"}).status_code == 409
    assert browser.act("/limits/set", {"kind": "key", "most": "x"}).status_code == 400


def test_a_breaker_that_opened_itself_may_be_tried_at_once(
    engine: Engine, browser: Browser
) -> None:
    with engine.begin() as connection:
        synchronise(connection, {Breaker("bank"): ["pay"]}, ["pay"])
        connection.exec_driver_sql("UPDATE task_breaker SET state = 'open'")
    assert "Try now" in browser.get("/queues").text


def test_breakers(engine: Engine, browser: Browser) -> None:
    with engine.begin() as connection:
        synchronise(connection, {Breaker("bank"): ["pay"]}, ["pay"])
    waiting_task(engine, name="pay", queue="mail")
    assert [each["dependency"] for each in queue(browser, "mail")["breakers"]] == ["bank"]
    assert queue(browser, "other")["breakers"] == []
    for mode, state, label in (
        ("open", "open", "Leave to outcomes"),
        ("closed", "closed", "Leave to outcomes"),
        ("auto", "closed", "Keep open"),
    ):
        form = {"dependency": "bank", "mode": mode, "page": "mail"}
        assert browser.act("/breakers/override", form).status_code == 303
        (found,) = browser.get("/api/queues").json()["breakers"]
        assert (found["state"], found["by_operator"]) == (state, mode != "auto")
        assert label in browser.get("/queues/mail").text
    assert [line[0] for line in audit(engine)] == ["breaker"] * 3
    wrong = {"dependency": "bank", "mode": "ajar"}
    assert browser.ask("POST", "/api/breakers/override", json=wrong).status_code == 400
    assert browser.act("/breakers/override", {"dependency": "x", "mode": "open"}).status_code == 404


def test_shares(engine: Engine, browser: Browser) -> None:
    for key in ("a", "a", "b"):
        waiting_task(engine, queue="mail", fair_key=key)
    assert queue(browser, "mail")["weights"] is None
    browser.act("/queues/mail/share", {"weights": "a=3\n\nc=2"})
    found = queue(browser, "mail")
    assert found["weights"] == {"a": 3, "c": 2}
    assert [(x["key"], x["weight"], x["share"], x["waiting"]) for x in found["shares"]] == [
        ("a", 3, 0.75, 2),
        ("b", 1, 0.25, 1),
        ("c", 2, 0.0, 0),
    ]
    assert "a=3" in browser.get("/queues/mail").text
    assert browser.act("/queues/mail/share", {"weights": "a:3"}).status_code == 400
    assert browser.act("/queues/mail/share", {"weights": "a=0"}).status_code == 409
    sent = {"weights": {"a": 2}}
    assert browser.ask("POST", "/api/queues/mail/share", json=sent).status_code == 200
    browser.act("/queues/mail/unshare")
    assert queue(browser, "mail")["weights"] is None
    assert [line[0] for line in audit(engine)] == ["share", "share", "unshare"]


def test_settings(engine: Engine, browser: Browser) -> None:
    form = {"windows": "mon-fri 22:00-06:00\nsat 10:00-12:00", "retry": "5s,30s", "timeout": "30s"}
    browser.act("/queues/mail/change", form)
    rules = queue(browser, "mail")["rules"]
    assert len(rules["windows"]) == 2
    assert rules["timeout"] == "30s"
    shown = browser.get("/queues/mail").text
    assert "sat 10:00-12:00 UTC" in shown
    browser.act("/queues/mail/change", {"running_below": "3"})
    rules = queue(browser, "mail")["rules"]
    assert (rules["windows"], rules["timeout"], rules["running_below"]) == ([], None, 3)
    browser.act("/queues/mail/change")
    assert queue(browser, "mail")["rules"] is None
    assert browser.act("/queues/mail/change", {"windows": "sometimes"}).status_code == 409
    assert [line[0] for line in audit(engine)] == ["queue change"] * 3


def test_locks(engine: Engine, browser: Browser) -> None:
    with engine.begin() as connection:
        task = claimed_task(connection, queue="mail")
    lost = pytest.raises(locks.LockLostError)
    with lost, locks.hold(engine, exclusive="account:42/eur", who="teller"):
        (held,) = browser.get("/api/queues").json()["locks"]
        assert (held["resource"], held["who"], held["waits"]) == ("account:42/eur", "teller", False)
        assert queue(browser, "mail")["locks"] == []
        mine = "UPDATE task_lock_holder SET task_id = :id, attempt = 1, lease_token = token"
        write(engine, mine, id=task.fence.task_id)
        browser.act("/queues/x/resume")
        assert [each["resource"] for each in queue(browser, "mail")["locks"]] == ["account:42/eur"]
        assert "its lease is over: the next request gets it" in browser.get("/queues").text
        form = {"resource": "account:42/eur", "holder": held["token"], "page": "mail"}
        assert browser.act("/locks/free", form).headers["location"] == "/queues/mail"
        assert "was taken from teller" in browser.get("/queues/mail").text
        browser.act("/locks/free", form)
        assert "account:42/eur is not held." in browser.get("/queues/mail").text
    assert [line[0] for line in audit(engine)] == ["free lock"]
    assert browser.act("/locks/free", {"resource": "x", "holder": "y"}).status_code == 400
