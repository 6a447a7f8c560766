"""``created`` and ``assert_created``: in the test's own transaction, which never commits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import Connection, Engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from tasks_app.domain.tasks.states import State
from tasks_app.runtime.api.producer import acreate_task, create_task
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.testing import aassert_created, acreated, assert_created, created
from tests.factory import count


class Points(BaseModel):
    order_id: int
    note: str = ""


@dataclass
class Mail:
    to: str


def test_what_was_created_is_seen_before_any_commit(session: Session, engine: Engine) -> None:
    task_id = create_task(session, "points.grant", {"order_id": 7})

    (task,) = created(session)

    assert (task.id, task.name, task.payload) == (task_id, "points.grant", {"order_id": 7})
    with engine.connect() as other:
        assert count(other) == 0


def test_on_a_connection(connection: Connection) -> None:
    create_task(connection, "a")

    assert [task.name for task in created(connection)] == ["a"]


def test_on_a_connection_of_psycopg(raw: psycopg.Connection) -> None:
    create_task(raw, "a", {"n": 1})

    assert assert_created(raw, "a", {"n": 1})[0].state is State.PENDING


def test_in_an_async_session(engine: Engine, database_url: str) -> None:
    async def scene() -> None:
        own = create_async_engine(make_url(database_url))
        async with own.connect() as connection:
            await acreate_task(connection, "a", {"n": 1})
            assert len(await acreated(connection, "a")) == 1
            await aassert_created(connection, "a", {"n": 1}, count=1)
            await connection.rollback()
        await own.dispose()

    asyncio.run(scene())


def test_the_oldest_comes_first(session: Session) -> None:
    for number in range(3):
        create_task(session, "a", {"n": number})

    assert [task.payload["n"] for task in created(session)] == [0, 1, 2]


def test_a_dict_need_not_be_the_whole_payload(session: Session) -> None:
    create_task(session, "a", {"order": {"id": 7, "sum": 1}, "note": "x"})

    assert created(session, "a", {"order": {"id": 7}})
    assert not created(session, "a", {"order": {"id": 8}})
    assert not created(session, "a", {"gift": None})


def test_models_and_dataclasses_are_compared_as_they_are_stored(
    session: Session, registry: Registry
) -> None:
    @handler("points.grant", registry=registry)
    def grant(ctx: object, payload: Points) -> None: ...

    create_task(session, grant, Points(order_id=7))
    create_task(session, "mail.send", Mail("a@example.org"))

    assert_created(session, grant, Points(order_id=7), count=1)
    assert_created(session, "mail.send", Mail("a@example.org"), count=1)
    assert_created(session, "points.grant", Points(order_id=8), count=0)


def test_a_payload_that_is_no_object_is_found(session: Session, registry: Registry) -> None:
    @handler("sum", registry=registry)
    def add(ctx: object, payload: list[int]) -> None: ...

    create_task(session, add, [1, 2])

    assert_created(session, add, [1, 2], count=1)


@pytest.mark.parametrize(
    ("option", "value", "other"),
    [
        ("queue", "mails", "default"),
        ("priority", 1, 5),
        ("biz_key", "order:7", None),
        ("unique_key", "u", None),
        ("order_key", "o", None),
        ("limit_key", "l", ["l", "m"]),
        ("limit_key", ["l", "m"], "l"),
        ("delay", "1h", "2h"),
        ("run_at", datetime(2040, 1, 1, tzinfo=UTC), datetime(2040, 1, 2, tzinfo=UTC)),
        ("expires_at", datetime(2040, 1, 1, tzinfo=UTC), None),
        ("max_attempts", 7, None),
        ("enabled", False, True),
        ("headers", {"tenant": "x"}, {"tenant": "y"}),
    ],
)
def test_each_option_can_be_asserted(
    session: Session, option: str, value: object, other: object
) -> None:
    create_task(session, "a", None, **{option: value})  # type: ignore[arg-type]

    assert_created(session, "a", **{option: value})  # type: ignore[arg-type]
    assert_created(session, "a", count=0, **{option: other})  # type: ignore[arg-type]


def test_a_function_may_decide(session: Session) -> None:
    create_task(session, "a", {"sum": 12})

    assert_created(session, "a", test=lambda task: task.payload["sum"] > 10)
    assert_created(session, "a", count=0, test=lambda task: task.payload["sum"] > 20)


def test_a_failing_assertion_says_what_was_created_instead(session: Session) -> None:
    create_task(session, "mail.send", {"to": "b"}, queue="mails", delay="1h", biz_key="order:7")
    create_task(session, "other")

    with pytest.raises(AssertionError) as failure:
        assert_created(session, "mail.send", {"to": "a"}, queue="mails")

    first, second, third, fourth = (
        str(failure.value).splitlines()[0].split(". ") + str(failure.value).splitlines()[1:]
    )
    assert first == (
        "0 instead of at least 1 were created of mail.send with "
        'payload {"to": "a"}, queue \'mails\''
    )
    assert second == "Created were:"
    assert third.endswith(
        "PENDING): payload {\"to\": \"b\"}, queue 'mails', biz_key 'order:7', delay 1h"
    )
    assert fourth.startswith("  other (")


def test_it_says_so_if_nothing_was_created(session: Session) -> None:
    with pytest.raises(AssertionError, match=r"of a\. Nothing was created\."):
        assert_created(session, "a")


def test_count_is_exact(session: Session) -> None:
    create_task(session, "a")
    create_task(session, "a")

    assert len(assert_created(session, "a", count=2)) == 2
    with pytest.raises(AssertionError, match="2 instead of 1 were created of a"):
        assert_created(session, "a", count=1)


def test_a_misspelt_option_is_refused(session: Session) -> None:
    with pytest.raises(TypeError, match="has no bizkey"):
        created(session, "a", bizkey="order:7")  # type: ignore[call-arg]
