"""Events as senders and handlers meet them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel, ValidationError
from sqlalchemy import text
from sqlalchemy.orm import Session

from tasks_app.domain.errors import InvalidSelectionError, InvalidTaskError, TasksError
from tasks_app.domain.events import event
from tasks_app.domain.flows import Flow, FlowState
from tasks_app.runtime.api.events import asend_event, get_event, list_events, send_event
from tasks_app.runtime.api.flows import create_flow, get_flow
from tasks_app.runtime.api.producer import create_task
from tasks_app.runtime.api.tasks import get_task
from tests.runtime.bench import Bench, effect

KEY = "order:7/approved"


class Approval(BaseModel):
    limit: int


def made(bench: Bench, **options: Any) -> Any:
    flow = Flow("order")
    pay = flow.step("pay", "pay")
    flow.step("ship", "ship", needs=[pay, event(KEY, **options)])
    return bench.do(create_flow, flow)


@pytest.fixture
def read(bench: Bench) -> list[Any]:
    """Register the handlers; each run of ship adds what it reads of the event."""
    told: list[Any] = []
    bench.handler("pay")(lambda ctx, payload: None)

    @bench.handler("ship")
    def ship(ctx: Any, payload: Any) -> None:
        told.append(ctx.event(KEY, Approval))

    return told


@pytest.mark.parametrize("caller", ["session", "connection", "psycopg", "autocommit", "async"])
def test_an_event_is_sent_from_any_transaction(bench: Bench, read, caller: str) -> None:
    created = made(bench)
    bench.drain()
    assert read == []
    given: Any = Approval(limit=100)

    async def send() -> bool:
        async with bench.async_session() as session:
            return await asend_event(session, KEY, given, by="ann")

    if caller == "async":
        counts = asyncio.run(send())
    elif caller in ("psycopg", "autocommit"):
        with psycopg.connect(bench.plain_url, autocommit=caller == "autocommit") as raw:
            counts = send_event(raw, KEY, given, by="ann")
    elif caller == "connection":
        with bench.engine.begin() as connection:
            counts = send_event(connection, KEY, given, by="ann")
    else:
        with Session(bench.engine) as session, session.begin():
            counts = send_event(session, KEY, given, by="ann")
    assert counts
    assert not bench.do(send_event, KEY, {"limit": 900})
    bench.drain()
    assert read == [Approval(limit=100)]
    assert bench.do(get_flow, created.id).state is FlowState.SUCCEEDED
    found = bench.do(get_event, KEY)
    assert (found.payload, found.by, found.waiting) == ({"limit": 100}, "ann", 0)


def test_what_is_rolled_back_was_not_sent(bench: Bench, read) -> None:
    made(bench)
    with bench.engine.connect() as connection:
        assert send_event(connection, KEY)
        connection.rollback()
    bench.drain()
    assert read == []
    assert [(e.key, e.waiting) for e in bench.do(list_events, waiting=True)] == [(KEY, 1)]


def test_an_event_is_sent_by_sql(bench: Bench, read) -> None:
    made(bench)
    with bench.engine.begin() as connection:
        call = f"SELECT task_send_event('{KEY}', '{{\"limit\": 7}}', why => 'asked them')"
        assert connection.execute(text(call)).scalar()
    bench.drain()
    assert read == [Approval(limit=7)]
    assert bench.do(get_event, KEY).why == "asked them"


def test_without_a_payload_it_is_an_empty_object(bench: Bench) -> None:
    got: list[Any] = []
    bench.handler("ship")(lambda ctx, payload: got.append(ctx.event(KEY)))
    flow = Flow("order")
    flow.step("ship", "ship", needs=event(KEY, timeout="1h"))
    bench.do(create_flow, flow)
    assert bench.do(send_event, KEY)
    bench.drain()
    assert got == [{}]


def test_after_its_time_out_there_is_none(bench: Bench, read) -> None:
    made(bench, timeout="10ms")
    while not read:
        bench.drain()
    assert read == [None]


def test_an_async_handler_awaits_it(bench: Bench) -> None:
    got: list[Any] = []
    bench.handler("pay")(lambda ctx, payload: None)

    @bench.handler("ship")
    async def ship(ctx: Any, payload: Any) -> None:
        got.append(await ctx.event(KEY, Approval))

    made(bench)
    assert bench.do(send_event, KEY, {"limit": 5})
    bench.drain()
    assert got == [Approval(limit=5)]


@pytest.mark.parametrize(
    ("key", "kind", "error", "words"),
    [
        ("other", None, TasksError, f"waits for {KEY}, and not 'other'"),
        (KEY, Approval, ValidationError, "limit"),
    ],
)
def test_what_a_handler_reads_wrongly_is_refused(
    bench: Bench, key: str, kind: Any, error: type[Exception], words: str
) -> None:
    raised: list[str] = []

    @bench.handler("ship")
    def ship(ctx: Any, payload: Any) -> None:
        with pytest.raises(error) as refused:
            ctx.event(key, kind)
        raised.append(str(refused.value))

    bench.handler("pay")(lambda ctx, payload: None)
    made(bench)
    bench.do(send_event, KEY, {"limit": "much"})
    bench.drain()
    assert words in raised[0]


@dataclass
class Much:
    text: str


@pytest.mark.parametrize(
    ("key", "payload", "why", "error"),
    [
        ("", None, "", InvalidTaskError),
        (7, None, "", InvalidTaskError),
        ("k" * 201, None, "", InvalidTaskError),
        ("a\x00b", None, "", InvalidTaskError),
        (KEY, {"at": object()}, "", InvalidTaskError),
        (KEY, "approved", "", InvalidTaskError),
        (KEY, Much("x" * 70_000), "", InvalidTaskError),
        (KEY, None, "a\x00b", InvalidSelectionError),
    ],
)
def test_what_cannot_be_sent_is_refused(
    bench: Bench, key: Any, payload: Any, why: str, error: type[Exception]
) -> None:
    with bench.engine.begin() as connection, pytest.raises(error):
        send_event(connection, key, payload, why=why)
    assert bench.do(list_events) == []


# -- runs that wait
def test_a_run_ends_until_the_event_is_sent(bench: Bench) -> None:
    got: list[Any] = []

    @bench.handler("pickup")
    def pickup(ctx: Any, payload: Any) -> None:
        if ctx.checkpoint is None:
            effect(ctx)
            ctx.checkpoint = {"ordered": True}
        got.append(ctx.wait_event(KEY, timeout="5d", kind=Approval))

    task_id = bench.do(create_task, "pickup")
    bench.drain()
    assert got == []
    row = "SELECT attempt = 1 AND failures = 0 AND state = 'PENDING' FROM task_pending"
    assert bench.sql(row)
    assert bench.sql("SELECT count(*) FROM effect") == 1  # it is committed with the wait
    bench.do(send_event, KEY, {"limit": 5})
    bench.drain()
    assert got == [Approval(limit=5)]
    assert bench.sql("SELECT count(*) FROM effect") == 1
    assert bench.do(get_task, task_id).state == "SUCCEEDED"


def test_an_async_run_ends_until_its_time_out(bench: Bench) -> None:
    got: list[Any] = []

    @bench.handler("pickup")
    async def pickup(ctx: Any, payload: Any) -> None:
        got.append(await ctx.wait_event(KEY, timeout="10ms"))

    bench.do(create_task, "pickup")
    while not got:
        bench.drain()
    assert got == [None]


def test_a_step_may_wait_while_it_runs(bench: Bench) -> None:
    got: list[Any] = []

    @bench.handler("pay")
    async def pay(ctx: Any, payload: Any) -> None:
        got.append(await ctx.wait_event("paid"))

    bench.handler("ship")(lambda ctx, payload: got.append(ctx.event(KEY)))
    created = made(bench)
    bench.drain()
    assert bench.do(get_flow, created.id).state is FlowState.RUNNING
    for key in (KEY, "paid"):
        bench.do(send_event, key, {"by": key})
        bench.drain()
    assert got == [{"by": "paid"}, {"by": KEY}]


@pytest.mark.parametrize("given", [("",), (KEY, 0), (KEY, "soon")])
def test_a_wait_that_cannot_be_meant_fails_the_run(bench: Bench, given: Any) -> None:
    bench.handler("pickup", max_attempts=1)(lambda ctx, payload: ctx.wait_event(*given))
    bench.do(create_task, "pickup")
    bench.drain()
    assert "InvalidTaskError" in bench.sql("SELECT error FROM task_error")
