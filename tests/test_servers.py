"""The servers of the suite, and connections that lead nowhere."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import tasks_app
from tasks_app import BatchJob, Flow, Step, Table, TaskBuffer, TasksError
from tasks_app.celery_tasks import outbox
from tasks_app.locks import LockedRow, RowLock, hold, hold_row
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.testing import drain
from tests.cases import in_one_test
from tests.servers import PREFIX, Databases

KILLED, LIVING = f"{PREFIX}{0:08x}", f"{PREFIX}{1:08x}"
THERE = text(f"SELECT datname FROM pg_database WHERE datname ~ '^{PREFIX}0000000' ORDER BY 1")


def test_databases_of_a_killed_session_are_dropped_and_no_others(database_url: str) -> None:
    engine = create_engine(database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as living:
        living.exec_driver_sql(f"SET application_name = '{LIVING}'")
        for owner in (KILLED, LIVING):
            living.exec_driver_sql(f"CREATE DATABASE {owner}_x")
        with Databases(database_url).guarded():
            assert list(living.execute(THERE).scalars()) == [f"{LIVING}_x"]
    engine.dispose()

    with Databases(database_url).guarded() as databases:
        url = databases.create("mine")
    engine = create_engine(database_url)
    with engine.connect() as connection:
        there = set(connection.execute(text("SELECT datname FROM pg_database")).scalars())
    engine.dispose()
    assert not there & {f"{KILLED}_x", f"{LIVING}_x", make_url(url).database}


NOWHERE = "postgresql+psycopg://nobody@127.0.0.1:1/nothing"
"""Nothing here connects."""
ENGINE = create_engine(NOWHERE)
YESTERDAY, TODAY = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


def work(ctx: Any, rows: Any) -> None:
    """Never called."""


JOB = BatchJob("wrong.connections", [Step("all", Table("person"), chunk=work)], registry=Registry())
PLAIN = (
    "fill_fingerprints list_errors list_calendars list_events list_flows list_jobs list_limits "
    "list_queues list_schedules"
)
OF_A_SCHEDULE = (
    "run_schedule disable_schedule enable_schedule get_schedule preview_schedule remove_schedule"
)
BY_ID = (
    "abandon_job cancel_flow cancel_group cancel_task explain_task get_flow get_group get_job "
    "get_task group_results "
    "requeue_task disable_task enable_task hold_task release_task run_task_now restart_job "
    "stop_job unblock_task undo_flow"
)
SYNC: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(PLAIN.split(), ()),
    "mark_error_known": ("0123456789abcdef", {"by": "ann"}),
    "mark_error_unknown": ("0123456789abcdef",),
    **dict.fromkeys(OF_A_SCHEDULE.split(), ("night",)),
    **dict.fromkeys(BY_ID.split(), (1,)),
    "backfill_schedule": ("night", YESTERDAY, TODAY),
    "cancel_tasks": ({"name": "t"},),
    "change_queue": ("mail", {"running_below": 5}),
    "change_schedule": ("night", {"queue": "mail"}),
    **dict.fromkeys(("create_group", "create_tasks"), ([],)),
    "create_flow": (Flow("order"),),
    "extend_flow": (1, Flow("order")),
    "extend_group": (1, []),
    "create_schedule": ("night", "t", {"cron": "0 2 * * *"}),
    "create_task": ("t",),
    "drop_limit": ("name", "t"),
    **dict.fromkeys(("get_event", "send_event"), ("order:7/paid",)),
    **dict.fromkeys(("get_queue", "pause_queue", "reset_queue", "resume_queue"), ("mail",)),
    "load_large_values": (None,),
    "preview": ({"cron": "0 2 * * *"},),
    "remove_calendar": ("holidays",),
    "replan_job": (1, "all", {"divide": 2}),
    "move_task": (1, "slow"),
    "reprioritise_task": (1, 0),
    "rerun_flow": (1, "a"),
    "reschedule_task": (1, {"delay": "1h"}),
    "set_calendar": ("holidays", [TODAY.date()]),
    "set_limit": ("name", "t", {"most": 3}),
    "start_job": (JOB,),
}
ASYNC = {f"a{name}": more for name, more in SYNC.items()}
ENGINES: dict[str, tuple[Any, ...]] = {
    "requeue_errors": ("0123456789abcdef",),
    "foresee_bulk": ("cancel", {"name": "t"}),
    "foresee_rest": (1,),
    "run_bulk": (1,),
    "start_bulk": ("cancel", {"name": "t"}),
}
"""By function, what it takes beside: a dict at the end is by keyword."""
WAITS = {"wait_task": "An AsyncSession", "await_task": "A Session"}
"""They take an engine, too; and what is none for them."""


class Base(DeclarativeBase):
    """Of a user."""


class Account(LockedRow, Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)


def call(name: str, given: Any, more: tuple[Any, ...]) -> Any:
    by_keyword = more[-1] if more and isinstance(more[-1], dict) else {}
    answer = getattr(tasks_app, name)(given, *more[: len(more) - bool(by_keyword)], **by_keyword)
    lazy = inspect.isasyncgen(answer)
    return asyncio.run(_awaited(anext(answer) if lazy else answer)) if name in ASYNC else answer


async def _awaited(answer: Any) -> Any:
    return await answer


def assert_refused(act: Callable[[], object], said: str) -> None:
    with pytest.raises(TasksError) as refused:
        act()
    assert re.match(rf"{said}\b[^.]*\. Pass ", str(refused.value)), refused.value


def test_every_public_function_is_in_a_table() -> None:
    first = {
        name: next(iter(inspect.signature(each).parameters), "")
        for name in tasks_app.__all__
        if inspect.isfunction(each := getattr(tasks_app, name))
    }
    assert {name for name in first if first[name] == "session"} == {*SYNC, *ASYNC}
    assert {name for name in first if first[name] == "engine"} == set(ENGINES)
    assert {name for name in first if first[name] == "engine_or_session"} == set(WAITS)


WRONG: list[tuple[Any, str]] = [
    (None, "None isn't an?"),
    (NOWHERE, "A str isn't an?"),
    (sessionmaker(ENGINE), "A sessionmaker isn't an?"),
]
NO_SESSION: list[tuple[Any, str]] = [*WRONG, (ENGINE, "An Engine isn't an?")]


@in_one_test("given, said", [*NO_SESSION, (AsyncSession(), "An AsyncSession isn't an?")])
@in_one_test("name", SYNC)
def test_no_session(name: str, given: Any, said: str) -> None:
    assert_refused(lambda: call(name, given, SYNC[name]), f"{said} Session or Connection")


@in_one_test("given, said", [*NO_SESSION, (Session(), "A Session isn't an?")])
@in_one_test("name", ASYNC)
def test_no_async_session(name: str, given: Any, said: str) -> None:
    assert_refused(
        lambda: call(name, given, ASYNC[name]), f"{said} AsyncSession or AsyncConnection"
    )


@in_one_test(
    "given, said",
    [
        *WRONG,
        (Session(), "A Session isn't an?"),
        (create_async_engine(NOWHERE), "An AsyncEngine isn't an?"),
    ],
)
@in_one_test("name", ENGINES)
def test_no_engine(name: str, given: Any, said: str) -> None:
    assert_refused(lambda: call(name, given, ENGINES[name]), f"{said} Engine")


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_takes_both_but_not_those_of_its_twin(name: str) -> None:
    for given in (None, NOWHERE, Session() if name == "await_task" else AsyncSession()):
        kind = {None: "None", NOWHERE: "A str"}.get(given, WAITS[name])
        assert_refused(lambda given=given: waited(name, given), f"{kind} isn't an? (Async)?Engine")


def waited(name: str, given: Any) -> Any:
    answer = getattr(tasks_app, name)(given, 1, "0s")
    return asyncio.run(_awaited(answer)) if name == "await_task" else answer


async def block(given: Any) -> None:
    async with outbox(given):
        """Nothing."""


@pytest.mark.parametrize(
    "act",
    [
        lambda: TaskBuffer(None),  # type: ignore[arg-type]
        lambda: hold(None, exclusive="a"),  # type: ignore[arg-type]
        lambda: hold_row(None, Account, 1),  # type: ignore[arg-type]
        lambda: RowLock(None, Account, 1, 1),  # type: ignore[arg-type]
        lambda: RowLock(ENGINE, Account, 1, 1).check(None),  # type: ignore[arg-type]
        lambda: outbox(None).__enter__(),  # type: ignore[arg-type]
        lambda: asyncio.run(block(None)),
    ],
    ids=range(7),
)
def test_nor_do_locks_buffers_and_outboxes_take_none(act: Callable[[], object]) -> None:
    assert_refused(act, "None isn't an?")


@pytest.mark.parametrize(("given", "kind"), [(ENGINE, "An Engine"), (NOWHERE, "A str")])
def test_a_drain_takes_settings(given: Any, kind: str) -> None:
    assert_refused(lambda: drain(given), f"{kind} is neither Settings")


def test_it_is_a_type_error_as_in_0_1_0() -> None:
    with pytest.raises(TypeError):
        tasks_app.create_task(ENGINE, "t")  # type: ignore[arg-type]
