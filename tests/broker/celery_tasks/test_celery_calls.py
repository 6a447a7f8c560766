"""``create_task`` with Celery tasks and signatures: what becomes a row, and what is refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from celery import Celery, shared_task, signature
from kombu import Queue
from pydantic import BaseModel
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import create_async_engine

from tasks_app import InvalidTaskError, NewTask, acreate_task, create_task, create_tasks, get_task
from tasks_app.broker.celery_tasks import from_json
from tasks_app.domain.tasks.records import Task
from tasks_app.runtime.handlers.registry import HANDLERS, handler
from tests.environment import NEWEST_CELERY

app = Celery("shop", broker="redis://nowhere")
app.set_default()


class Order(BaseModel):
    number: int


@app.task(name="shop.add")
def add(x: int, y: int = 1) -> int:
    return x + y


@app.task(name="shop.bound", bind=True)
def bound(self: Any, x: int) -> None: ...


@app.task(name="shop.untyped", typing=False)
def untyped(x: int) -> None: ...


@app.task(name="shop.price", pydantic=True)
def price(order: Order) -> None: ...


@app.task(name="shop.brief", expires=60)
def brief() -> None: ...


@app.task(name="not a name/of ours")
def misnamed() -> None: ...


@shared_task(name="shop.shared")
def shared(x: int) -> None: ...


def row(connection: Connection, *args: Any, **options: Any) -> Task:
    task = get_task(connection, create_task(connection, *args, **options))
    assert task is not None
    return task


def refusal(*args: Any, **options: Any) -> str:
    with pytest.raises(InvalidTaskError) as refused:
        create_task(None, *args, **options)  # type: ignore[arg-type]
    return str(refused.value)


@pytest.fixture
def no_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HANDLERS, "specs", {})


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("task", "name"),
    [(add, "shop.add"), (bound, "shop.bound"), (untyped, "shop.untyped"), (shared, "shop.shared")],
)
def test_a_celery_task_becomes_a_row_of_its_name(
    connection: Connection, task: Any, name: str
) -> None:
    made = row(connection, task, args=(20,), biz_key="order:1")
    assert (made.name, made.payload) == (name, {"args": [20], "kwargs": {}})
    assert (made.queue, made.priority, made.biz_key) == ("default", 5, "order:1")


def test_many_are_created_at_once(connection: Connection) -> None:
    ids = create_tasks(
        connection, [NewTask(add, args=(1,), kwargs={"y": 2}), NewTask(add.s(3)), NewTask("other")]
    )
    tasks = [get_task(connection, task_id) for task_id in ids]
    assert [task and task.payload for task in tasks] == [
        {"args": [1], "kwargs": {"y": 2}},
        {"args": [3], "kwargs": {}},
        {},
    ]


def test_one_is_created_in_an_async_transaction(engine: Engine, database_url: str) -> None:
    async def created() -> int:
        async_engine = create_async_engine(database_url)
        async with async_engine.begin() as connection:
            task_id = await acreate_task(connection, add, args=(1,))
        await async_engine.dispose()
        return task_id

    task_id = asyncio.run(created())
    with engine.connect() as connection:
        assert get_task(connection, task_id).payload == {"args": [1], "kwargs": {}}


def test_a_name_with_arguments_is_send_task(connection: Connection) -> None:
    made = row(connection, "elsewhere.task", args=[1], kwargs={"k": None})
    assert (made.name, made.payload) == ("elsewhere.task", {"args": [1], "kwargs": {"k": None}})


def test_a_signature_brings_its_arguments_and_options(connection: Connection) -> None:
    expires = datetime(2030, 1, 1, tzinfo=UTC)
    made = row(
        connection,
        add.signature(
            (1,), {"y": 2}, countdown=90, expires=expires, queue=Queue("mail"), priority=3
        ),
        biz_key="b",
    )

    assert made.payload == {"args": [1], "kwargs": {"y": 2}}
    assert (made.queue, made.priority, made.biz_key) == ("mail", 3, "b")
    assert made.due_at - made.created_at == timedelta(seconds=90)
    assert made.expires_at == expires


def test_a_countdown_wins_over_an_eta_and_is_never_negative(connection: Connection) -> None:
    both = row(connection, add.s(1).set(countdown=5, eta=datetime(2031, 1, 1, tzinfo=UTC)))
    past = row(connection, add.s(1).set(countdown=-5, expires=-5))
    assert (both.due_at - both.created_at, past.due_at - past.created_at) == (
        timedelta(seconds=5),
        timedelta(0),
    )
    assert past.expires_at is not None


def test_options_of_create_task_win_over_those_of_the_signature(connection: Connection) -> None:
    made = row(connection, add.s(1).set(priority=3, countdown=90), priority=0, queue=None)
    assert (made.priority, made.queue) == (0, "default")


def test_a_signature_by_name_needs_no_code(connection: Connection) -> None:
    made = row(connection, signature("far.away", args=(1,), kwargs={"a": 2}, app=app))
    assert (made.name, made.payload) == ("far.away", {"args": [1], "kwargs": {"a": 2}})


def test_what_the_task_declares_is_the_default(connection: Connection) -> None:
    made = row(connection, brief)
    assert made.expires_at is not None
    assert 55 < (made.expires_at - made.created_at).total_seconds() < 65


def test_an_eta_without_a_zone_is_utc_as_in_celery(connection: Connection) -> None:
    made = row(connection, add.s(1).set(eta=datetime(2031, 5, 1, 12)))  # noqa: DTZ001  as users do
    assert made.due_at == datetime(2031, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("url", "given", "ours"),
    [
        ("redis://h", 0, 0),
        ("redis://h", 7, 7),
        ("redis+socket:///s", 12, 9),
        ("sentinel://h", 3, 3),
        ("amqp://h", 9, 0),
        ("amqp://h", 0, 9),
        ("pyamqp://h", 200, 0),
    ],
)
def test_priorities_keep_the_order_of_the_apps_broker(
    connection: Connection, url: str, given: int, ours: int
) -> None:
    other = Celery("other", broker=url, set_as_current=False)

    @other.task(name="other.t", shared=False)
    def t() -> None: ...

    assert row(connection, t.s().set(priority=given)).priority == ours
    other.conf.task_default_priority = given

    @other.task(name="other.default", shared=False)
    def default() -> None: ...

    assert row(connection, default).priority == ours
    assert row(connection, default, priority=4).priority == 4


def test_values_that_only_celerys_json_knows_come_back_as_they_were(connection: Connection) -> None:
    values = [datetime(2026, 1, 2, 3, tzinfo=UTC), date(2026, 1, 2), Decimal("1.10"), UUID(int=5)]
    values += [b"text", b"\xff", {"deep": [Decimal("2")]}]
    made = row(connection, untyped, args=values, kwargs={"k": UUID(int=6)})
    assert from_json(made.payload) == {"args": values, "kwargs": {"k": UUID(int=6)}}


def test_models_of_pydantic_tasks_are_written_as_celery_writes_them(connection: Connection) -> None:
    if not NEWEST_CELERY:
        with pytest.raises(InvalidTaskError, match="newer take models"):
            create_task(connection, price, args=(Order(number=3),))
        return
    made = row(connection, price, args=(Order(number=3),))
    assert made.payload == {"args": [{"number": 3}], "kwargs": {}}


def test_the_route_counts_only_where_a_handler_of_ours_lives(
    connection: Connection, no_handlers: None
) -> None:
    routed = Celery("routed", broker="memory://", set_as_current=False)
    routed.conf.task_routes = {"routed.*": {"queue": "mails"}}

    @routed.task(name="routed.t", shared=False)
    def t() -> None: ...

    before = row(connection, t).queue
    handler("mail.send", queue="mails")(lambda ctx: None)
    assert (before, row(connection, t).queue) == ("default", "mails")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: refusal(add.delay), "task is a method of the Celery task shop.add. Allowed: the"),
        (lambda: refusal(add.AsyncResult("x")), "what delay() returned, so it was sent already"),
        (lambda: refusal(add, {"x": 1}), "payload is given to a Celery task. Allowed: args= and"),
        (lambda: refusal(add), "args is wrong: add() missing 1 required positional argument: 'x'"),
        (lambda: refusal(add, args=(1, 2, 3)), "args is wrong: add() takes from 1 to 2"),
        (lambda: refusal(bound, args=(1, 2)), "args is wrong: bound() takes 2"),
        (lambda: refusal(add, args="12"), "args is of type str. Allowed: a list or tuple"),
        (lambda: refusal("n", args="12"), "args is of type str. Allowed: a list or tuple"),
        (lambda: refusal("n", kwargs=[1]), "kwargs is of type list. Allowed: a dict"),
        (lambda: refusal("n", {}, args=()), "payload is given together with args or kwargs"),
        (lambda: refusal(add, args=(1, {2})), "payload.args[1] is of type set"),
        (lambda: refusal(add, kwargs={"x": 1j}), "payload.kwargs.x is of type complex"),
        (lambda: refusal(add, args=(Order(number=1),)), "args[0] is a model, which shop.add would"),
        (lambda: refusal(misnamed), "name is 'not a name/of ours'"),
        (lambda: refusal(add.s(1), args=(1,)), "args is given together with a signature"),
        (lambda: refusal(add.chunks([(1, 1)], 1)), "task is a chunks, which only messages carry"),
        (lambda: refusal(add.map([1])), "task is a map, which only messages carry"),
        (lambda: refusal(add.s(1).set(task_id="42")), "options.task_id looks like a row's id"),
        (
            lambda: refusal(add.s(1).set(task_id="mine"), biz_key="order:1"),
            "biz_key is given beside a task_id",
        ),
        (lambda: refusal(add.s(1).set(routing_key="x")), "options.routing_key has no meaning in"),
        (lambda: refusal(add.s(1).set(serializer="pickle")), "options.serializer is unknown to"),
        (lambda: refusal(add, args=(1,), countdown=3), "is unknown; perhaps delay is meant."),
        (lambda: refusal(add.s(1).set(priority="high")), "options.priority is 'high'"),
        (lambda: refusal(object()), "task is of type object. Allowed: a task's name, or a handler"),
        (lambda: refusal({}), "after the session: create_task(session, task, payload)"),
        (lambda: refusal({}), "dict, as a payload is: the session comes first, and is missing."),
        (lambda: refusal(print), "a function that is no handler. Allowed: a task's name, or a fun"),
        (lambda: refusal(type(add)), "task is of type"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_with_their_place(call: Callable[[], str], said: str) -> None:
    assert said in call()


def test_a_handler_takes_no_arguments(no_handlers: None) -> None:
    native = handler("native")(lambda ctx, payload: None)
    assert "args is given to the handler native. Allowed: a payload" in refusal(native, args=(1,))
    assert "args is given to the handler native" in refusal("native", args=(1,))


def test_a_task_without_type_checks_is_not_checked(connection: Connection) -> None:
    assert row(connection, untyped, args=(1, 2, 3)).payload["args"] == [1, 2, 3]


@pytest.mark.test_all
def test_a_producer_without_celery_loads_none() -> None:
    check = (
        "import sys\n"
        "from tasks_app import create_task, InvalidTaskError\n"
        "try:\n    create_task(None, object())\n"
        "except InvalidTaskError:\n    sys.exit('celery' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
