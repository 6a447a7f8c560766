"""``fail_next`` and ``crash_next``: a handler under the faults that it will meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.tasks.states import State
from tasks_app.runtime.api.producer import create_task
from tasks_app.runtime.api.tasks import get_task
from tasks_app.runtime.handlers.context import AsyncTaskContext, TaskContext
from tasks_app.runtime.handlers.registry import Registry, handler
from tasks_app.testing import crash_next, drain, fail_next
from tasks_app.testing.draining import FAULTS
from tasks_app.testing.results import Drained, name_of
from tests.testing.conftest import Kit

NOTE = text("INSERT INTO note (text) VALUES ('x')")


@pytest.fixture(autouse=True)
def no_faults_left() -> Iterator[None]:
    yield
    FAULTS.clear()


@pytest.fixture
def calls(registry: Registry) -> list[Any]:
    """What a handler did outside of its transaction: the keys that it sent along."""
    sent: list[Any] = []

    @handler("a", registry=registry, retry="0s,0s")
    def pay(ctx: TaskContext) -> None:
        ctx.session.execute(NOTE)
        sent.append(ctx.idempotency_key)

    @handler("async", registry=registry, retry="0s,0s")
    async def pay_soon(ctx: AsyncTaskContext) -> None:
        await ctx.session.execute(NOTE)
        sent.append(ctx.idempotency_key)

    return sent


@pytest.fixture(params=["in the transaction", "committed"])
def place(
    request: pytest.FixtureRequest, registry: Registry, engine: Engine, database_url: str
) -> Iterator[tuple[Any, Callable[[], Drained]]]:
    """Where a test creates its task, and how that is drained."""
    make = text("CREATE TABLE note (text text)")
    if request.param == "in the transaction":
        session = request.getfixturevalue("session")
        session.execute(make)
        yield session, lambda: drain(session, registry=registry)
        return
    with engine.begin() as connection:
        connection.execute(make)
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as connection:
        settings = Settings(database_url=database_url)
        yield connection, lambda: drain(settings, registry=registry)
        connection.execute(text("DROP TABLE note"))


Place = tuple[Any, Callable[[], Drained]]


def notes(where: Any) -> int:
    return int(where.execute(text("SELECT count(*) FROM note")).scalar_one())


@pytest.mark.parametrize("name", ["a", "async"])
def test_a_run_fails_after_its_handler_and_again(place: Place, calls: list[Any], name: str) -> None:
    where, act = place
    create_task(where, name)
    fail_next(name, ValueError("no"))
    drained = act()
    assert [(run.attempt, run.state, run.error) for run in drained] == [
        (1, State.PENDING, "ValueError: no"), (2, State.SUCCEEDED, None)
    ]  # fmt: skip
    assert len(calls) == 2
    assert len(set(calls)) == 1
    assert notes(where) == 1


def test_or_instead_of_its_handler(place: Place, calls: list[Any]) -> None:
    where, act = place
    create_task(where, "a")
    fail_next("a", ConnectionResetError, times=2, when="before")
    drained = act()
    assert [run.state for run in drained] == [State.PENDING, State.PENDING, State.SUCCEEDED]
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["a", "async"])
def test_a_task_whose_process_died_runs_again(place: Place, calls: list[Any], name: str) -> None:
    where, act = place
    task_id = create_task(where, name)

    crash_next(name)
    drained = act()

    assert [run.state for run in drained] == [State.PENDING, State.SUCCEEDED]
    assert str(drained.runs[0].error).startswith("worker vanished: ")
    assert len(calls) == 2
    assert len(set(calls)) == 1
    assert notes(where) == 1
    task = get_task(where, task_id)
    assert task is not None
    assert (task.attempt, task.failures, task.crashes) == (2, 0, 1)


def test_a_task_that_kills_its_process_each_time_fails(place: Place, calls: list[Any]) -> None:
    where, act = place
    create_task(where, "a")
    crash_next("a", times=9, when="before")
    drained = act()
    assert [run.state for run in drained] == [*[State.PENDING] * 4, State.FAILED]
    assert not calls


def test_what_must_not_run_twice_fails_with_an_unknown_outcome(kit: Kit) -> None:
    @kit.handler("once", at_most_once=True)
    def once(ctx: TaskContext) -> None: ...

    crash_next(once)
    (failed,) = kit.drain(once).failed
    assert str(failed.error).startswith("outcome unknown: ")


def test_other_names_are_spared(kit: Kit, calls: list[Any]) -> None:
    @kit.handler("other")
    def other(ctx: TaskContext) -> None: ...

    crash_next("a")
    kit.drain(other).assert_succeeded()


def test_a_wrong_when_is_refused() -> None:
    with pytest.raises(ValueError, match="when is 'during'"):
        fail_next("a", ValueError(), when="during")  # type: ignore[arg-type]


def test_a_handler_a_name_and_a_task_of_django() -> None:
    @handler("mail.send", registry=Registry())
    def send(ctx: object) -> None: ...

    assert name_of(send) == name_of("mail.send") == "mail.send"
    assert name_of(SimpleNamespace(module_path="mails.tasks.send")) == "mails.tasks.send"


@pytest.mark.parametrize("order", [lambda task: fail_next(task, KeyError("x")), crash_next])
def test_a_fault_of_anything_else_is_refused(order) -> None:
    """It would hit nothing, and the test of a failure would pass."""
    with pytest.raises(TypeError, match="is no handler"):
        order(object())
