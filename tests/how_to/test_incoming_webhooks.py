"""The guide to incoming webhooks: its application, asked as a provider asks."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from tasks_app import Settings
from tasks_app.testing import drain, travel
from tests.how_to.conftest import Load

KEY = b"a key of twenty-four byt"
Post = Callable[..., int]
DAY = 86_400


def signed(event: str, body: bytes, *, at: float | None = None) -> dict[str, str]:
    sent = str(int(at or time.time()))
    digest = hmac.digest(KEY, f"{event}.{sent}.".encode() + body, hashlib.sha256)
    signature = "v1,bm90aGluZw== v1," + base64.b64encode(digest).decode()
    return {"webhook-id": event, "webhook-timestamp": sent, "webhook-signature": signature}


def body_of(version: int) -> bytes:
    return json.dumps({"order_id": 7, "version": version}).encode()


@pytest.fixture(scope="module")
def post(load: Load, database_url: str) -> Post:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEBHOOK_SECRET", "whsec_" + base64.b64encode(KEY).decode())
        patch.setenv("SHOP_DATABASE_URL", database_url)
        inbox = load("incoming-webhooks/inbox.py")

    async def post(event: str, body: bytes, headers: dict[str, str] | None = None) -> int:
        transport = httpx.ASGITransport(inbox.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            sent = signed(event, body) if headers is None else headers
            answer = await client.post("/webhooks/payments", content=body, headers=sent)
        await inbox.engine.dispose()  # its connections belong to this event loop
        return answer.status_code

    return lambda *args, **more: asyncio.run(post(*args, **more))


@pytest.fixture
def order(engine: Engine) -> Iterator[Engine]:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE purchase (id int PRIMARY KEY, version int)"))
        connection.execute(text("INSERT INTO purchase VALUES (7, 0)"))
    yield engine
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE purchase"))


def version(engine: Engine) -> Any:
    with engine.connect() as connection:
        return connection.execute(text("SELECT version FROM purchase")).scalar()


def tasks(engine: Engine) -> Any:
    with engine.connect() as connection:
        return connection.execute(text("SELECT count(*) FROM task_all")).scalar()


def test_a_repeated_event_is_handled_once(post: Post, order: Engine, database_url: str) -> None:
    settings = Settings(database_url=database_url)
    body = body_of(1)
    for _ in range(2):
        assert post("e1", body) == 204
    drain(settings).assert_succeeded()
    with order.begin() as connection:
        travel("29d", connection)
    assert post("e1", body) == 204
    assert version(order) == 1
    assert tasks(order) == 1


@pytest.mark.test_all
def test_the_newer_event_stays(post: Post, order: Engine, database_url: str) -> None:
    for event in (2, 1):
        body = body_of(event)
        post(f"e{event}", body)
        drain(Settings(database_url=database_url)).assert_succeeded()
    assert version(order) == 2


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (body_of(1), signed("e1", body_of(2))),
        (body_of(1), signed("e1", body_of(1)) | {"webhook-id": "e2"}),
        (body_of(1), signed("e1", body_of(1), at=time.time() - DAY)),
        (body_of(1), {}),
    ],
    ids=["another body", "another id", "old", "unsigned"],
)
def test_a_wrong_signature_is_refused(
    post: Post, engine: Engine, body: bytes, headers: dict[str, str]
) -> None:
    assert post("e1", body, headers=headers) == 401
    assert tasks(engine) == 0
