"""``travel``: what waits for a time comes due, as if the time had passed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import database_now
from tasks_app.runtime.api.producer import acreate_task, create_task
from tasks_app.runtime.api.queues import pause_queue
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.runtime.schedules.schedules import create_schedule
from tasks_app.testing import adrain, assert_created, atravel, drain, travel
from tests.factory import claimed_task


@pytest.fixture
def name(registry: Registry) -> str:
    @handler("a", registry=registry)
    def ok(ctx: TaskContext) -> None: ...

    return ok.spec.name


def test_a_delay_passes(session: Session, registry: Registry, name: str) -> None:
    create_task(session, name, delay="2h")

    travel("119m", session)
    assert len(drain(session, registry=registry)) == 0
    travel("1m", session)
    assert len(drain(session, registry=registry).succeeded) == 1


def test_each_retry_comes_in_its_turn(session: Session, registry: Registry) -> None:
    @handler("bad", registry=registry, retry="1m,1h")
    def bad(ctx: TaskContext) -> None:
        raise ValueError

    create_task(session, bad)
    waits = []
    for span in ("0s", "1m", "1h"):
        travel(span, session)
        (run,) = drain(session, registry=registry)
        waits.append((run.attempt, run.state, run.wait))

    assert waits == [
        (1, State.PENDING, timedelta(minutes=1)),
        (2, State.PENDING, timedelta(hours=1)),
        (3, State.FAILED, None),
    ]


def test_a_task_expires(session: Session, registry: Registry, name: str) -> None:
    now = database_now(session.connection())
    create_task(session, name, delay="2h", expires_at=now + timedelta(hours=1))

    travel("2h", session)

    assert drain(session, registry=registry).set_aside[0].state is State.EXPIRED


def test_a_lease_ends(session: Session, registry: Registry, name: str) -> None:
    task_id = create_task(session, name)
    claimed_task(session.connection(), task_id, name=name)

    travel("1m", session)
    rescued = drain(session, registry=registry)
    travel("1m", session)

    first, *more = rescued
    assert first.state is State.PENDING
    assert [*more, *drain(session, registry=registry)]  # it is due within seconds


def test_a_unique_period_ends(session: Session) -> None:
    options: Any = {"unique_key": "u", "unique_scope": "for_period 1h"}
    create_task(session, "a", None, **options)

    assert not create_task(session, "a", None, **options).created
    travel("1h", session)
    assert create_task(session, "a", None, **options).created


def test_a_pause_ends(session: Session, registry: Registry, name: str) -> None:
    create_task(session, name)
    pause_queue(session, "default", resume_in="1h")

    assert len(drain(session, registry=registry)) == 0
    travel("1h", session)
    assert drain(session, registry=registry).succeeded


def test_a_schedule_fires_once_for_each_instant(
    session: Session, registry: Registry, name: str
) -> None:
    create_schedule(session, "s", name, every="1h", overlap="allow")

    travel("3h", session)

    assert len(drain(session, registry=registry).succeeded) == 3


@pytest.mark.test_all
def test_travels_add_up_for_schedules(session: Session, registry: Registry, name: str) -> None:
    """Twice two hours in front of a daily instant: it comes once, not twice."""
    soon = database_now(session.connection()) + timedelta(hours=1)
    create_schedule(session, "s", name, cron=f"{soon.minute} {soon.hour} * * *", timezone="UTC")
    numbers = []
    for _ in range(13):
        travel("2h", session)
        numbers.append(len(drain(session, registry=registry).succeeded))

    assert numbers == [1, *[0] * 11, 1]


def test_a_schedule_that_a_handler_declares_fires(session: Session, registry: Registry) -> None:
    @handler("nightly", registry=registry, cron="0 3 * * *")
    def nightly(ctx: TaskContext) -> None: ...

    travel("1d", session, registry=registry)

    assert [run.name for run in drain(session, registry=registry)] == ["nightly"]


def test_a_schedule_that_fires_too_often_is_said(session: Session, name: str) -> None:
    create_schedule(session, "s", name, every="1s", overlap="allow", missed="skip")

    with pytest.raises(ValueError, match="more than 10 instants"):
        travel("1h", session, most_instants=10)


def test_what_is_committed_travels_too(
    engine: Engine, database_url: str, registry: Registry, name: str
) -> None:
    settings = Settings(database_url=database_url)
    with engine.begin() as connection:
        create_task(connection, name, delay="2h")

    assert len(drain(settings, registry=registry)) == 0
    travel("2h", settings=settings)
    assert len(drain(settings, registry=registry).succeeded) == 1


def test_in_an_async_test(database_url: str, registry: Registry, engine: Engine, name: str) -> None:
    async def scene() -> None:
        own = create_async_engine(make_url(database_url))
        async with AsyncSession(own) as session:
            await acreate_task(session, name, delay="1h")
            await atravel("1h", session)
            assert len((await adrain(session, registry=registry)).succeeded) == 1
        await own.dispose()

    asyncio.run(scene())


def test_what_was_delayed_can_still_be_asserted(session: Session) -> None:
    create_task(session, "a", delay="2h")

    travel("1h", session)

    assert_created(session, "a", delay="2h")


def test_a_wrong_span_is_refused(session: Session) -> None:
    with pytest.raises(ValueError, match="span is 'soon'"):
        travel("soon", session)
