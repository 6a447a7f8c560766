"""Celery's canvas given to ``create_task``: the flow that it becomes, and how that runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, Task, chain, chord, group, signature
from celery.exceptions import Ignore
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import create_async_engine

from tasks_app import (
    Flow,
    InvalidTaskError,
    NewTask,
    Settings,
    acreate_task,
    create_flow,
    create_group,
    create_task,
    create_tasks,
    requeue_task,
)
from tasks_app.broker.canvas import flow_of
from tasks_app.celery_tasks import run_from_pool
from tasks_app.domain.flows import FlowProgress, FlowState, StepEnd
from tasks_app.domain.tasks.records import TaskId
from tasks_app.pool import flows
from tasks_app.runtime.handlers.registry import HANDLERS, handler
from tasks_app.testing import drain

app = Celery("canvas", broker="redis://nowhere", set_as_current=False)
calls: list[str] = []
broken: set[str] = set()


def told(name: str, *args: Any) -> str:
    """Note the call, and return it as text: each result says how it came about."""
    said = f"{name}({', '.join(str(arg).replace(chr(39), '') for arg in args)})"
    calls.append(said)
    if name in broken:
        raise ZeroDivisionError(name)
    return said


@app.task(name="a")
def a(*args: Any) -> str:
    return told("a", *args)


@app.task(name="b")
def b(*args: Any) -> str:
    return told("b", *args)


@app.task(name="c")
def c(*args: Any) -> str:
    return told("c", *args)


@app.task(name="one")
def one(value: Any) -> str:
    return told("one", value)


@app.task(name="when")
def when() -> datetime:
    return datetime(2026, 7, 1, tzinfo=UTC)


@app.task(name="kind")
def kind(value: Any) -> str:
    return type(value).__name__


@app.task(name="ignored")
def ignored() -> None:
    raise Ignore


@app.task(name="again", bind=True)
def again(self: Task, *args: Any) -> str:
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    return told("again", *args)


@app.task(name="counting", bind=True)
def counting(self: Task, before: str, n: int) -> str:
    if n < 3:
        raise self.retry(args=(before, n + 1), countdown=0)
    return told("counting", before, n)


@app.task(name="errback")
def errback(task_id: str, *, word: str = "sorry") -> str:
    return told(f"errback {word}", task_id)


@app.task(name="new_errback")
def new_errback(request: Any, exc: Any, traceback: Any) -> None: ...


@app.task(name="bound_errback", bind=True)
def bound_errback(self: Task, task_id: str) -> str:
    return told("bound", task_id)


TASKS = (a, b, c, one, when, kind, ignored, again, counting, errback, bound_errback)


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HANDLERS, "specs", {})
    calls.clear()
    broken.clear()
    run_from_pool(*TASKS)


class Pool:
    def __init__(self, engine: Engine, url: str) -> None:
        self.engine = engine
        self._settings = Settings(database_url=url)

    def create(self, canvas: Any, **options: Any) -> TaskId:
        with self.engine.begin() as connection:
            return create_task(connection, canvas, **options)

    def drain(self) -> None:
        drain(self._settings)

    def requeue(self, task_id: int) -> None:
        with self.engine.begin() as connection:
            requeue_task(connection, task_id)

    def flow(self, task_id: int) -> FlowProgress:
        with self.engine.connect() as connection:
            step = flows.step_of(connection, task_id)
            assert step is not None
            found = flows.get_flow(connection, step.flow.id)
        assert found is not None
        return found

    def result(self, task_id: int) -> Any:
        return next(step.result for step in self.flow(task_id).steps if step.task_id == task_id)


@pytest.fixture
def pool(engine: Engine, database_url: str) -> Pool:
    return Pool(engine, database_url)


def planned(canvas: Any) -> dict[str, tuple[str, ...]]:
    """Return the steps of the flow that it would be, each with what it needs."""
    found = flow_of(NewTask(canvas))
    assert found is not None
    return {name: tuple(step.needs) for name, step in found[0].steps.items()}


# -- what it becomes


def test_a_chain_needs_the_one_before() -> None:
    assert planned(chain(a.s(1), b.s(2), c.si(3))) == {
        "1 a": (),
        "2 b": ("1 a",),
        "3 c": ("2 b",),
    }


LAST: list[tuple[Any, str]] = [
    (a.s(1) | b.s(2) | c.s(), "c(b(a(1), 2))"),
    (chain(a.s(1), b.si(2), c.s(3)), "c(b(2), 3)"),
    (chain(a.s(1)), "a(1)"),
    (chain(a.s(1), chain(b.s(), c.s(2))), "c(b(a(1)), 2)"),
    (chord([a.s(1), b.s(2)], c.s(3)), "c([a(1), b(2)], 3)"),
    (chord([a.s(1), b.s(2)], c.si(3)), "c(3)"),
    (chord([a.s(1)], b.s()), "b([a(1)])"),
    (group(a.s(1)) | b.s(), "b([a(1)])"),
    (chain(group(a.s(1)), b.s()), "b(a(1))"),
    (chain(a.s(1), group(b.s(2)), c.s()), "c(b(a(1), 2))"),
    (chain(a.s(0), group(b.s(1), c.si(2)), a.s()), "a([b(a(0), 1), c(2)])"),
    (chain(group(a.s(1), b.s(2)), group(b.s(3), c.s(4)), one.s()),
     "one([b([a(1), b(2)], 3), c([a(1), b(2)], 4)])"),
    (chord([chain(a.s(1), b.s()), c.s(2)], one.s()), "one([b(a(1)), c(2)])"),
    (chord([chord([a.s(1), b.s(2)], c.s()), a.s(3)], one.s()),
     "one([c([a(1), b(2)]), a(3)])"),
    (chord([group(a.s(1), b.s(2)), c.s(3)], one.s()), "one([a(1), b(2), c(3)])"),
    (chord([chain(a.s(1), group(b.s(), c.s())), a.s(2)], one.s()),
     "one([[b(a(1)), c(a(1))], a(2)])"),
    (chord([a.s(1), b.s(2)], chain(b.s(), c.s(3))), "c(b([a(1), b(2)]), 3)"),
    (chord([a.s(1)], chord([b.s(2), c.s(3)], one.s())), "one([b([a(1)], 2), c([a(1)], 3)])"),
    (chord([], a.s(1)), "a([], 1)"),
    (chain(a.s(1), chord([], b.s(2))), "b([], 2)"),
    (chain(a.s(1), group(), b.s(), app=app), "b(a(1))"),
    (a.s(1).set(link=[b.s(2), c.si(3)]), "a(1)"),
    (signature(json.loads(json.dumps(chain(a.s(1), group(b.s(), c.s()), one.s()))), app=app),
     "one([b(a(1)), c(a(1))])"),
]  # fmt: skip


def test_the_last_gets_what_it_gets_in_celery(pool: Pool) -> None:
    made = [(pool.create(canvas), result) for canvas, result in LAST]
    pool.drain()
    assert [pool.result(last) for last, _ in made] == [result for _, result in made]
    ended = [pool.flow(last) for last, _ in made]
    assert {flow.state for flow in ended} == {FlowState.SUCCEEDED}
    assert len(calls) == sum(flow.total for flow in ended)


def test_the_flow_has_the_name_of_the_task_whose_id_is_returned(pool: Pool) -> None:
    last = pool.create(chain(a.s(1), b.s().set(link=c.s())), biz_key="order:7")
    found = pool.flow(last)
    assert (found.name, found.key, found.total) == ("b", None, 3)
    assert [step.task for step in found.steps if step.task_id == last] == ["b"]
    with pool.engine.connect() as connection:
        keys = connection.exec_driver_sql("SELECT DISTINCT biz_key FROM task_all").scalars().all()
    assert keys == ["order:7"]


def test_a_payload_says_what_comes_before_the_arguments(pool: Pool) -> None:
    pool.create(chord([a.s(1), b.s(2)], c.s(3).on_error(errback.s())))
    with pool.engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT name, payload FROM task_all ORDER BY id")
        found = [(row.name, row.payload) for row in rows]
    none: dict[str, Any] = {"args": [], "kwargs": {}}
    assert found == [
        ("a", {**none, "args": [1]}),
        ("errback", {**none, "first": {"task_id": "1 a"}}),
        ("b", {**none, "args": [2]}),
        ("errback", {**none, "first": {"task_id": "3 b"}}),
        ("c", {**none, "args": [3], "first": ["1 a", "3 b"]}),
        ("errback", {**none, "first": {"task_id": "5 c"}}),
    ]


def test_options_are_those_that_celery_would_use(pool: Pool) -> None:
    pool.create(chain(a.s(1).set(priority=1), b.s().set(countdown=9)).set(queue="first"))
    pool.create(group(a.s().set(queue="own"), b.s()).set(queue="mails"))
    pool.create(chord([a.s()], b.s().set(countdown=5)).set(countdown=60, priority=2))
    with pool.engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT name, queue, priority FROM task_all ORDER BY id")
        waits = connection.exec_driver_sql(
            "SELECT due_at - created_at FROM task_all WHERE waits_for IS NULL ORDER BY id"
        )
        found, waited = [tuple(row) for row in rows], waits.scalars().all()
        delays = connection.exec_driver_sql("SELECT delay FROM task_flow_step WHERE delay > '0'")
        later = sorted(delays.scalars())
    assert found == [
        *[("a", "first", 1), ("b", "default", 5)],
        *[("a", "mails", 5), ("b", "mails", 5)],
        *[("a", "default", 2), ("b", "default", 2)],
    ]
    assert waited == [timedelta(0), timedelta(0), timedelta(0), timedelta(minutes=1)]
    assert later == [timedelta(seconds=5), timedelta(seconds=9)]


def test_dates_go_through_a_chain_as_they_are(pool: Pool) -> None:
    last = pool.create(when.s() | kind.s())
    pool.drain()
    assert pool.result(last) == "datetime"


def test_one_is_created_in_an_async_transaction(pool: Pool, database_url: str) -> None:
    async def created() -> TaskId:
        async_engine = create_async_engine(database_url)
        async with async_engine.begin() as connection:
            task_id = await acreate_task(connection, a.s(1) | b.s())
        await async_engine.dispose()
        return task_id

    last = asyncio.run(created())
    pool.drain()
    assert pool.result(last) == "b(a(1))"


def test_it_is_nothing_if_the_transaction_is_rolled_back(pool: Pool) -> None:
    with pool.engine.connect() as connection:
        create_task(connection, a.s(1) | b.s())
        connection.rollback()
    pool.drain()
    assert calls == []


def test_a_task_whose_code_is_elsewhere_takes_the_result_too(pool: Pool) -> None:
    pool.create(a.s(1) | signature("far.away", args=(2,), app=app))
    with pool.engine.connect() as connection:
        payload = connection.exec_driver_sql(
            "SELECT payload FROM task_all WHERE name = 'far.away'"
        ).scalar_one()
    assert payload == {"args": [2], "kwargs": {}, "first": "1 a"}


# -- how it runs


def test_the_rest_of_a_chain_survives_a_retry(pool: Pool) -> None:
    """Where Celery loses it: issue 6631."""
    last = pool.create(a.s(1) | again.s(2) | b.s())
    pool.drain()
    assert pool.result(last) == "b(again(a(1), 2))"
    assert calls == ["a(1)", "again(a(1), 2)", "b(again(a(1), 2))"]


def test_a_retry_with_other_arguments_gives_all_of_them(pool: Pool) -> None:
    last = pool.create(a.s(0) | counting.s(1) | b.s())
    pool.drain()
    assert pool.result(last) == "b(counting(a(0), 3))"


def test_a_member_that_is_mended_goes_on(pool: Pool) -> None:
    broken.add("b")
    last = pool.create(chord([a.s(1), b.s(2)], c.s()))
    pool.drain()
    stalled = pool.flow(last)
    assert (stalled.state, calls) == (FlowState.STALLED, ["a(1)", "b(2)"])
    broken.clear()
    pool.requeue(next(step.task_id for step in stalled.steps if step.task == "b"))
    pool.drain()
    assert calls == ["a(1)", "b(2)", "b(2)", "c([a(1), b(2)])"]
    assert pool.flow(last).state is FlowState.SUCCEEDED


def test_after_ignore_the_rest_goes_on_without_a_result(pool: Pool) -> None:
    last = pool.create(ignored.s() | b.s(2))
    pool.drain()
    assert pool.result(last) == "b(None, 2)"


def test_a_step_of_a_forgotten_flow_fails_with_the_reason(pool: Pool) -> None:
    broken.add("b")
    last = pool.create(a.s(1) | b.s())
    pool.drain()
    with pool.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM task_flow_step")
    pool.requeue(last)
    pool.drain()
    with pool.engine.connect() as connection:
        error = connection.exec_driver_sql("SELECT error FROM task_error").scalar_one()
    assert "It needs no '1 a'. A flow that was over for long is forgotten, with its" in error


# -- callbacks


def test_callbacks_get_the_result_and_errbacks_wait_for_a_failure(pool: Pool) -> None:
    task = a.s(1).set(link=[b.s(2), chain(c.s(), b.si(3))], link_error=[errback.s()])
    last = pool.create(task)
    pool.drain()
    assert calls[0] == "a(1)"
    assert sorted(calls[1:]) == ["b(3)", "b(a(1), 2)", "c(a(1))"]
    ends = {step.name: step.end for step in pool.flow(last).steps}
    assert (ends["1 a"], ends["2 errback"]) == (StepEnd.SUCCESS, StepEnd.UNNEEDED)


@pytest.mark.parametrize(
    ("handler_of_errors", "said"),
    [
        (errback.s(), "errback sorry({id})"),
        (errback.s(word="oh"), "errback oh({id})"),
        (bound_errback.s(), "bound({id})"),
        (a.si(5), "a(5)"),
        (a.si(1, 2, 3), "a(1, 2, 3)"),
    ],
)
def test_an_errback_gets_what_celery_gives(pool: Pool, handler_of_errors: Any, said: str) -> None:
    broken.add("b")
    failing = pool.create(b.s(1).on_error(handler_of_errors))
    pool.drain()
    assert calls == ["b(1)", said.format(id=int(failing))]


def test_an_errback_of_a_chain_is_that_of_each_task() -> None:
    canvas = chain(a.s(1), b.s(), group(a.s(), c.s()))
    canvas.link_error(errback.s())
    found = flow_of(NewTask(canvas))
    assert found is not None
    errbacks = {
        need: after.value
        for name, step in found[0].steps.items()
        if name.endswith("errback")
        for need, after in step.needs.items()
    }
    assert set(errbacks.values()) == {"failure"}
    assert [need.partition(" ")[2] for need in errbacks] == ["a", "b", "a", "c"]


def test_an_errback_of_a_chord_hears_of_its_header(pool: Pool) -> None:
    """Celery fails the body for it, and tells its errback."""
    broken.add("b")
    canvas = chord([a.s(1), chain(b.s(2), c.s())], one.s().on_error(errback.s()))
    last = pool.create(canvas)
    pool.drain()
    failed_id = next(step.task_id for step in pool.flow(last).steps if step.task == "b")
    assert calls == ["a(1)", "b(2)", f"errback sorry({failed_id})"]


def test_where_the_header_has_errbacks_of_its_own_it_gets_no_more() -> None:
    app.conf.task_allow_error_cb_on_chord_header = True
    canvas = chord([a.s(1), b.s(2)], one.s())
    canvas.link_error(errback.s())
    steps = list(planned(canvas))
    app.conf.task_allow_error_cb_on_chord_header = False
    assert steps == ["1 a", "2 errback", "3 b", "4 errback", "5 one", "6 errback"]


# -- what is refused


def refusal(task: Any, **options: Any) -> str:
    with pytest.raises(InvalidTaskError) as refused:
        create_task(None, task, **options)  # type: ignore[arg-type]
    return str(refused.value)


def stamped() -> Any:
    canvas = a.s(1) | b.s()
    canvas.stamp(stamp="x")
    return canvas


def linked_group() -> Any:
    return chain(a.s(1), group(b.s(), c.s())).set(link=[a.s()])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: refusal(chain()), "task is a chain without tasks. Allowed: one at least"),
        (lambda: refusal(group()), "task is a group without tasks"),
        (lambda: refusal(chain(group([]))), "without tasks"),
        (lambda: refusal(chord([a.s(1)])), "task is a chord without a body"),
        (lambda: refusal(a.s(1) | b.s(), unique_key="k"), "unique_key is given to a chain. Allow"),
        (lambda: refusal(a.s(1) | b.s(), delay="1h"), "delay is given to a chain. Allowed: biz_"),
        (lambda: refusal(group([a.s(1)]), args=(1,)), "args is given to a group"),
        (lambda: refusal(group([a.s(1)]), kwargs={"x": 1}), "kwargs is given to a group"),
        (lambda: refusal(a.s(1) | b.s(), payload={}), "payload is given to a chain"),
        (lambda: refusal(a.s(1).set(link=[b.s()]), queue="q"), "given to a signature with callb"),
        (lambda: refusal(chord([a.s()], b.s()).clone((2,))), "args are given to a chord. Allowed"),
        (lambda: refusal(a.s() | one.s(2)), "steps.2 one.args is wrong: one() takes 1 positional"),
        (lambda: refusal(one.s() | a.s()), "steps.1 one.args is wrong: one() missing 1 required"),
        (lambda: refusal(a.s(1) | a.map([1])), "steps.2 celery.map.task is a map, which only"),
        (lambda: refusal(a.chunks([(1, 1)], 1)), "task is a chunks, which only messages carry"),
        (lambda: refusal(group(a.s(1), b.s({2}))), "steps.2 b.payload.args[0] is of type set"),
        (lambda: refusal((a.s(1) | b.s()).set(task_id="x")), "options.task_id is given to a chain"),
        (lambda: refusal(stamped()), "steps.1 a.options.stamp is unknown to the pool"),
        (lambda: refusal(linked_group()), "options.link is given to a group. Allowed: a chord"),
        (lambda: refusal(a.s(1).on_error(new_errback.s())), "options.link_error calls new_errback"),
        (lambda: refusal(a.s(1).on_error(a.s() | b.s())), "options.link_error is a chain. Allowed"),
        (lambda: refusal(chord([a.s(n) for n in range(1001)], b.s())), "steps are more than 1000"),
        (lambda: refusal(a.s(1) | b.s(), then=NewTask("t")), "task is a chain. Allowed: a single"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_by_name(call: Callable[[], str], said: str) -> None:
    assert said in call()


def test_it_is_no_member_and_no_step(pool: Pool) -> None:
    canvas = a.s(1) | b.s()
    said = r"task is a chain\. Allowed: a single task; only create_task takes a canvas"
    flow = Flow("f")
    flow.step("s", canvas)
    with pool.engine.begin() as connection:
        with pytest.raises(InvalidTaskError, match=said):
            create_tasks(connection, [NewTask(canvas)])
        with pytest.raises(InvalidTaskError, match=said):
            create_group(connection, [NewTask(canvas)], then=NewTask("t"))
        with pytest.raises(InvalidTaskError, match=said):
            create_flow(connection, flow)


def test_a_handler_of_ours_takes_no_result(pool: Pool) -> None:
    handler("native")(lambda ctx, payload: None)
    canvas = a.s(1) | signature("native", app=app)
    assert "steps.2 native.args is given to the handler native" in refusal(canvas)
