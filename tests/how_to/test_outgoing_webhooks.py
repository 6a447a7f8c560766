"""The guide to outgoing webhooks, against an endpoint in a thread."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from tasks_app import NewTask, create_tasks, list_limits, set_limit
from tasks_app.testing import crash_next, drain, travel
from tests.how_to.conftest import Load
from tests.how_to.web import Answer, Web, serving

EVENT: dict[str, object] = {"type": "order.paid", "data": {"order": 7}}
TABLE = """
    CREATE TABLE webhook_endpoint (
        id int PRIMARY KEY, customer int, url text, secret text, gone bool DEFAULT false)
"""


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as web:
        yield web


@pytest.fixture(scope="module")
def outbox(load: Load) -> Iterator[Any]:
    outbox = load("outgoing-webhooks/outbox.py")
    yield outbox
    outbox.client.close()


@pytest.fixture
def shop(session: Session, web: Web) -> Session:
    session.execute(text(TABLE))
    insert = text("INSERT INTO webhook_endpoint VALUES (:id, 1, :url, 'secret')")
    session.execute(insert, [{"id": 1, "url": web.url}, {"id": 2, "url": f"{web.url}second"}])
    return session


def test_each_endpoint_has_a_delivery_of_its_own(outbox: Any, shop: Session, web: Web) -> None:
    outbox.tell(shop, 1, EVENT)
    keys = shop.execute(text("SELECT fair_key, limit_key FROM task_pending")).all()
    assert {*keys} == {("endpoint:1",) * 2, ("endpoint:2",) * 2}
    assert drain(shop).assert_succeeded().counts == {"SUCCEEDED": 2}
    assert [json.loads(asked.body) for asked in web.asked] == [EVENT, EVENT]
    assert len({asked.headers["webhook-id"] for asked in web.asked}) == 2


def test_a_copy_has_the_same_id_and_a_signature(outbox: Any, shop: Session, web: Web) -> None:
    shop.execute(text("DELETE FROM webhook_endpoint WHERE id = 2"))
    outbox.tell(shop, 1, EVENT)
    crash_next("webhook.deliver")
    drain(shop).assert_succeeded()
    first, second = web.asked
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    for asked in web.asked:
        head = f"{asked.headers['webhook-id']}.{asked.headers['webhook-timestamp']}."
        digest = hmac.digest(b"secret", head.encode() + asked.body, hashlib.sha256)
        assert asked.headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()


@pytest.mark.test_all
def test_an_endpoint_that_fails_delays_no_other_and_has_three_days(
    outbox: Any, shop: Session, web: Web
) -> None:
    web.answer = lambda _: Answer(500)
    outbox.tell(shop, 1, EVENT)
    assert [run.error for run in drain(shop).waiting] == ["Retry: HTTP 500"] * 2
    waited = 0
    while (drained := drain(shop)).failed == []:
        waited += 1
        assert waited < 200
        travel("1h", shop)
    assert 70 < waited < 80
    assert len(web.asked) == 20
    assert drained.failed[0].error == "Retry: HTTP 500"


def test_an_endpoint_that_is_gone_is_asked_no_more(outbox: Any, shop: Session, web: Web) -> None:
    web.answer = lambda _: Answer(410)
    outbox.tell(shop, 1, EVENT)
    late = outbox.Delivery(endpoint=1, body="{}")
    create_tasks(shop, [NewTask(outbox.deliver, late, delay="1h")])
    assert {run.result for run in drain(shop).succeeded} == {410}
    travel("1h", shop)
    assert [str(run.error) for run in drain(shop).set_aside] == ["Cancel: the endpoint is gone"]
    assert len(web.asked) == 2


def test_the_limit_of_the_guide_is_for_each_endpoint(session: Session) -> None:
    set_limit(session, "key", "endpoint:*", most=2)
    assert [(limit.target, limit.most) for limit in list_limits(session)] == [("endpoint:*", 2)]
