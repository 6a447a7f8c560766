"""What create_task adds to the INSERT: counted, for times differ from run to run."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tasks_app import (
    InvalidTaskError,
    NewTask,
    TaskOptions,
    acreate_task,
    create_task,
    create_tasks,
)
from tasks_app.runtime.api import producer
from tasks_app.runtime.handlers.registry import Registry
from tasks_app.runtime.hints import HINTS, as_configured
from tasks_app.runtime.startup import uncollected
from tests.runtime.bench import Bench
from tests.statements import once_after

BARE = text("INSERT INTO task_pending (name, payload) VALUES (:name, :payload) RETURNING id")


@pytest.fixture(autouse=True)
def without_broker_and_traces(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever tests before this one have connected to, loaded, or listened to."""
    engine = create_engine(bench.url, isolation_level="READ COMMITTED")
    monkeypatch.setattr(bench, "engine", engine)
    monkeypatch.delenv("TASKS_APP_BROKER_URL", raising=False)
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    monkeypatch.setattr(Registry, "any_encrypts", False)
    HINTS.provide(as_configured)
    yield
    engine.dispose()


class Order(BaseModel):
    order_id: int


def calls(act: Callable[[], object]) -> int:
    """How many functions of Python are called, when what is made once is made."""
    for _ in range(9):  # psycopg prepares at the fifth
        act()
    count = 0

    def note(_frame: Any, kind: str, _arg: Any) -> None:
        nonlocal count
        count += kind == "call"

    before = sys.getprofile()
    gc.disable()  # others may be called when it collects
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def files_entered(act: Callable[[], object]) -> list[str]:
    """The files of tasks_app whose functions are called, in order of the first call."""
    act()  # what is made once is made: templates, statements
    entered: dict[str, None] = {}

    def note(frame: FrameType, kind: str, _arg: Any) -> None:
        _, found, path = frame.f_code.co_filename.rpartition("/tasks_app/")
        if kind == "call" and found and frame.f_code.co_name != "<module>":
            entered[path.removesuffix(".py")] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return list(entered)


def in_a_session(bench: Bench, insert: Callable[[Session], object]) -> Callable[[], None]:
    def act() -> None:
        with Session(bench.engine) as session:
            insert(session)
            session.commit()

    return act


def test_a_task_takes_fewer_calls_than_the_bare_insert_of_its_row(bench: Bench) -> None:
    values = {"name": "t", "payload": '{"order_id":1}'}
    bare = calls(in_a_session(bench, lambda s: s.execute(BARE, values).scalar_one()))
    ours = calls(in_a_session(bench, lambda s: create_task(s, "t", {"order_id": 1})))
    assert ours <= 0.9 * bare


WAY = [
    "runtime/api/producer",
    "domain/creation",
    "domain/tasks/payload",
    "runtime/db/connections",
    "pool/tasks/create",
    "pool/connection/execute",
    "pool/connection/psycopg_connection",
    "runtime/hints",
]
"""From ``create_task()`` to its INSERT; see docs/architecture.md, where it is told."""


def test_an_insert_passes_eight_files(bench: Bench) -> None:
    with Session(bench.engine) as session:
        entered = files_entered(lambda: create_task(session, "t", {"order_id": 1}))
    assert entered == WAY
    assert len(entered) <= 8


def test_an_insert_on_psycopg_itself_passes_seven(bench: Bench) -> None:
    with psycopg.connect(bench.url.replace("+psycopg", "")) as raw:
        entered = files_entered(lambda: create_task(raw, "t", {"order_id": 1}))
    assert entered == [path for path in WAY if path != "runtime/hints"]


@pytest.mark.parametrize("options", [{}, {"queue": "q", "priority": 3, "biz_key": "order:1"}])
def test_options_and_models_cost_few_calls(bench: Bench, options: dict) -> None:
    plain = calls(in_a_session(bench, lambda s: create_task(s, "t", {"order_id": 1})))
    ours = calls(in_a_session(bench, lambda s: create_task(s, "t", Order(order_id=1), **options)))
    assert ours <= plain + 25  # a model is read back and compared


@pytest.mark.parametrize(("options", "most"), [({"queue": "q"}, 11), (None, 5)])
def test_many_tasks_cost_few_calls(bench: Bench, options: TaskOptions | None, most: int) -> None:
    tasks = [NewTask("t", {"n": n}, options) for n in range(900)]
    few = calls(in_a_session(bench, lambda s: create_tasks(s, tasks[:10])))
    many = calls(in_a_session(bench, lambda s: create_tasks(s, tasks)))
    assert many - few <= most * 890


def test_many_tasks_are_created_without_a_collection(bench: Bench) -> None:
    collects: list[bool] = []
    tasks = [NewTask("t", {"n": n}) for n in range(producer.MANY)]

    engine = bench.engine.execution_options()
    with Session(engine) as session:
        for some in (tasks, tasks[1:]):
            with once_after(engine, "nextval", lambda: collects.append(gc.isenabled())):
                create_tasks(session, some)
        assert gc.isenabled()
        with pytest.raises(InvalidTaskError):
            create_tasks(session, [*tasks, NewTask("t", {"n": object()})])

    assert collects == [False, True]
    assert gc.isenabled()


def test_of_two_that_keep_the_collector_out_the_first_end_lets_it_in() -> None:
    first, second = uncollected(), uncollected()
    first.__enter__()
    second.__enter__()
    assert not gc.isenabled()
    first.__exit__(None, None, None)
    assert gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_who_switched_the_collector_off_finds_it_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_only_what_differs_from_a_default_is_written(bench: Bench) -> None:
    seen: list[str] = []
    with Session(bench.engine) as session:
        event.listen(session.connection(), "before_cursor_execute", lambda *a: seen.append(a[2]))
        create_task(session, "t", {"n": 1})
        create_task(session, "t", priority=5, queue="default", delay=0)
        create_task(session, "t", queue="q", biz_key="b")
    columns = [statement.partition("(")[2].partition(")")[0] for statement in seen]
    assert columns == ["name, payload", "name, payload", "name, queue, payload, biz_key"]
    assert not any("CONFLICT" in statement for statement in seen)


def test_an_async_task_changes_greenlets_once(bench: Bench) -> None:
    """Each change costs as much as checking the task."""

    async def run() -> int:
        engine = create_async_engine(bench.url)
        changes = 0
        async with AsyncSession(engine) as session:
            original = session.run_sync

            async def counted(*args: Any) -> Any:
                nonlocal changes
                changes += 1
                return await original(*args)

            session.run_sync = session.connection = counted  # type: ignore[method-assign,assignment]
            await acreate_task(session, "t")
        await engine.dispose()
        return changes

    assert asyncio.run(run()) == 1
