"""Schedules in code: brought in at the start, and operators' changes left alone."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import make_url

from tasks_app.domain.errors import HandlerError
from tasks_app.domain.schedules.days_off import DaysOff
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.pool import scheduling
from tasks_app.runtime.api.queues import set_calendar
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.runtime.schedules import declared
from tasks_app.runtime.schedules.declared import bring_in_schedules, schedule, synchronise
from tasks_app.runtime.schedules.schedules import change_schedule, create_schedule
from tests.pool.interleave import blocked, two
from tests.runtime.bench import Bench
from tests.runtime.declared_here import declare
from tests.runtime.timetable import standing
from tests.servers import named

HERE = declare.__module__


def said_by(**options: Any) -> Registry:
    registry = Registry()
    declare(registry, **options)
    return registry


def start(bench: Bench, registry: Registry, loaded: tuple[str, ...] = (HERE,)) -> None:
    """What a worker does."""
    bench.do(synchronise, registry, loaded=loaded)


def change(bench: Bench, **changes: Any) -> None:
    """What an operator does."""
    assert bench.do(scheduling.change, "night", changes)


def all_of(bench: Bench) -> list[Schedule]:
    return bench.do(scheduling.find)


def test_what_is_declared_is_there_after_the_start(bench: Bench) -> None:
    start(bench, said_by(cron="30 2 * * *", timezone="Europe/Berlin", priority=2, overlap="skip"))
    (made,) = all_of(bench)
    assert (made.name, made.task, made.expression) == ("night", "t", "30 2 * * *")
    assert (made.zone, made.priority, made.overlap) == ("Europe/Berlin", 2, "skip")
    assert (made.declared_in, made.enabled) == (HERE, True)
    assert made.next_run_at is not None


def test_a_handler_declares_a_schedule_of_its_own_name(bench: Bench) -> None:
    registry = Registry()

    @handler("report", registry=registry, queue="slow", every="1h", overlap="skip")
    def report(ctx: Any) -> None: ...

    start(bench, registry)
    (made,) = all_of(bench)
    assert (made.name, made.task, made.queue) == ("report", "report", "slow")
    assert (made.kind, made.expression, made.overlap) == ("every", "1h", "skip")
    assert made.declared_in == __name__


def test_a_second_start_writes_nothing(bench: Bench) -> None:
    start(bench, said_by())
    before = bench.sql("SELECT xmin::text FROM task_schedule".replace("::", r"\:\:"))
    start(bench, said_by())
    assert bench.sql("SELECT xmin::text FROM task_schedule".replace("::", r"\:\:")) == before


def test_code_that_changes_changes_the_schedule_and_when_it_is_next(bench: Bench) -> None:
    start(bench, said_by(every="1h"))
    before = standing(bench, "night")
    start(bench, said_by(every="2h", priority=1))
    after = standing(bench, "night")
    assert (after.expression, after.priority) == ("2h", 1)
    assert after.next_run_at != before.next_run_at
    assert after.id == before.id


def test_what_an_operator_changed_stays_and_the_rest_follows_the_code(bench: Bench) -> None:
    start(bench, said_by(cron="30 2 * * *", priority=3))
    change(bench, priority=9, enabled=False)
    start(bench, said_by(cron="0 4 * * *", priority=1, overlap="skip"))
    after = standing(bench, "night")
    assert (after.priority, after.enabled) == (9, False)
    assert (after.expression, after.overlap) == ("0 4 * * *", "skip")
    start(bench, said_by(cron="0 4 * * *", priority=5, overlap="skip"))
    assert standing(bench, "night").priority == 9


def test_an_operators_expression_is_not_torn_apart_by_a_new_kind(bench: Bench) -> None:
    start(bench, said_by(cron="30 2 * * *"))
    change(bench, expression="45 3 * * *")
    start(bench, said_by(every="1h"))
    after = standing(bench, "night")
    assert (after.kind, after.expression) == ("cron", "45 3 * * *")


def test_what_is_declared_no_more_is_switched_off_and_back_on_when_it_returns(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    start(bench, said_by())
    with caplog.at_level(logging.INFO):
        start(bench, Registry())
    gone = standing(bench, "night")
    assert (gone.enabled, gone.retired, gone.next_run_at) == (False, True, None)
    assert "night of the code: switched off, as its module does not declare it" in caplog.text
    start(bench, said_by())
    back = standing(bench, "night")
    assert (back.enabled, back.retired) == (True, False)


def test_one_that_an_operator_had_disabled_does_not_return_enabled(bench: Bench) -> None:
    start(bench, said_by())
    change(bench, enabled=False)
    start(bench, Registry())
    start(bench, said_by())
    assert not standing(bench, "night").enabled


def test_of_a_module_that_is_not_loaded_here_nothing_is_known(bench: Bench) -> None:
    """Another service's worker on the same database."""
    start(bench, said_by())
    start(bench, Registry(), loaded=("another.module",))
    assert standing(bench, "night").enabled


def test_an_operators_schedule_is_left(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    start(bench, said_by(every="1h"))
    bench.sql("UPDATE task_schedule SET declared = NULL, declared_in = NULL")
    start(bench, said_by(every="2h"))
    assert standing(bench, "night").expression == "1h"
    assert "an operator has created schedule" in caplog.text


def test_two_that_start_at_once_make_it_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with two(bench.engine) as (a, b):
        synchronise(a, said_by(), loaded=(HERE,))
        waiting = blocked(bench.engine, b, a, lambda c: synchronise(c, said_by(), loaded=(HERE,)))
        a.commit()
        waiting.result()
        b.commit()
    assert len(all_of(bench)) == 1


class Order(BaseModel):
    order_id: int


def test_the_payload_is_checked_by_the_handlers_model_at_the_start(bench: Bench) -> None:
    registry = Registry()

    @handler("t", registry=registry)
    def of_order(ctx: Any, payload: Order) -> None: ...

    schedule("bad", of_order, {"order_id": "x"}, every=60, registry=registry)
    with pytest.raises(ValueError, match=r"payload\.order_id is refused"):
        start(bench, registry)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "when is not given"),
        ({"cron": "0 25 * * *"}, "bad hour"),
        ({"cron": "0 3 * * *", "timezone": "Mars"}, "timezone is 'Mars'"),
        ({"every": 60, "overlap": "maybe"}, "overlap is 'maybe'"),
        ({"every": 60, "missed": "maybe"}, "missed is 'maybe'"),
        ({"every": 60, "jitter": "2d"}, "jitter is more than a day"),
        ({"every": 60, "colour": "red"}, "options.colour is unknown"),
        ({"every": 60, "run_at": declared}, "options.run_at"),
        ({"every": 60, "enabled": 1}, "enabled is of type int"),
    ],
)
def test_a_wrong_declaration_is_refused_where_it_stands(options: dict, said: str) -> None:
    with pytest.raises(HandlerError, match=f"'s' is declared wrongly: .*{said}"):
        schedule("s", "t", registry=Registry(), **options)


def test_a_wrong_word_of_a_handler_is_refused_too() -> None:
    with pytest.raises(HandlerError, match="colour"):

        @handler("t", registry=Registry(), colour="red")  # type: ignore[call-arg]
        def t(ctx: Any) -> None: ...


def test_two_modules_cannot_declare_one_name() -> None:
    registry = said_by()
    declare(registry)  # the same module once more, as on a re-import
    with pytest.raises(HandlerError, match=f"declared in {HERE} already"):
        schedule("night", "t", every=60, registry=registry)


def test_a_worker_without_a_broker_brings_them_in(bench: Bench) -> None:
    from tasks_app.runtime.worker.standalone import run_work

    @bench.handler("t", every="1h")
    def t(ctx: Any) -> None: ...

    run_work(bench.settings(), registry=bench.registry, slots=bench.slots, drain=True)
    assert [each.name for each in all_of(bench)] == ["t"]


def test_a_worker_that_cannot_write_starts(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    role = named("of_yesterday")
    bench.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    url = make_url(bench.url).set(username=role, password="x")
    database = Database(url.render_as_string(hide_password=False))
    with caplog.at_level(logging.WARNING):
        bring_in_schedules(database, said_by(every="1h"))
    database.dispose()
    bench.sql(f"DROP ROLE {role}")
    assert "schedules of the code could not be entered now: InsufficientPrivilege" in caplog.text
    assert all_of(bench) == []


def test_an_async_session_creates_one(bench: Bench) -> None:
    async def create() -> None:
        async with bench.async_session() as session:
            await session.run_sync(create_schedule, "s", "t", every="15m")

    asyncio.run(create())
    assert [each.name for each in all_of(bench)] == ["s"]


def test_a_calendar_may_be_set_after_the_code_that_names_it(bench: Bench) -> None:
    """A new release starts before an operator has set its calendar: no worker stands still."""
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    registry = said_by(cron="0 0 * * *", calendar="de")
    start(bench, registry)
    before = standing(bench, "night")

    bench.do(set_calendar, "de", [tomorrow, tomorrow + timedelta(days=1)])
    after = standing(bench, "night")
    start(bench, registry)

    assert before.next_run_at is not None
    assert after.next_run_at is not None
    assert after.next_run_at.date() == tomorrow + timedelta(days=2)
    assert standing(bench, "night") == after


def test_days_off_that_an_operator_set_stay(bench: Bench) -> None:
    start(bench, said_by(cron="0 7 * * *"))
    with bench.engine.begin() as connection:
        set_calendar(connection, "de", [])
        change_schedule(connection, "night", calendar="de")
    start(bench, said_by(cron="0 8 * * *"))
    there = standing(bench, "night")
    assert there.expression == "0 8 * * *"
    assert there.days_off == DaysOff("de")
