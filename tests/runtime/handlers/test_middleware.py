"""Middleware: in which order, around what, and what passes through it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tasks_app import TaskContext, middleware
from tasks_app.domain.errors import ConfigurationError, HandlerError, HandlerTimeoutError
from tasks_app.runtime.handlers.middleware import MIDDLEWARE, load_middleware
from tasks_app.runtime.worker.standalone import run_work
from tests.runtime.bench import Bench, effect

BOUND: contextvars.ContextVar[str] = contextvars.ContextVar("BOUND", default="nothing")
HERE = __name__
CALLS: list[str] = []


def outer(ctx: TaskContext, call: Callable[[], Any]) -> Any:
    CALLS.append(f"outer before {ctx.name}")
    try:
        return call()
    finally:
        CALLS.append("outer after")


def inner(ctx: TaskContext, call: Callable[[], Any]) -> Any:
    CALLS.append("inner before")
    token = BOUND.set(f"task {ctx.task_id}")
    try:
        return call()
    except ValueError as error:
        CALLS.append(f"inner saw {error}")
        raise
    finally:
        BOUND.reset(token)
        CALLS.append("inner after")


async def coroutine(ctx: TaskContext, call: Callable[[], Any]) -> Any:
    return call()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    CALLS.clear()
    kept = list(MIDDLEWARE)
    yield
    MIDDLEWARE[:] = kept


def work(bench: Bench, *layers: Any) -> None:
    run_work(bench.settings(), registry=bench.registry, drain=True, middleware=layers)


def declare(bench: Bench, is_async: bool, run: Callable[[Any], Any]) -> None:
    if is_async:

        @bench.handler()
        async def waits(ctx: Any) -> Any:
            await asyncio.sleep(0)
            return run(ctx)
    else:
        bench.handler()(run)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_first_is_outermost_and_surrounds_the_whole_handler(
    bench: Bench, is_async: bool
) -> None:
    def run(ctx: Any) -> str:
        CALLS.append("handler")
        return BOUND.get()

    declare(bench, is_async, run)
    task_id = bench.create()

    work(bench, outer, inner)

    assert CALLS == ["outer before t", "inner before", "handler", "inner after", "outer after"]
    assert bench.task(task_id).result == f"task {task_id}"


@pytest.mark.parametrize("is_async", [False, True])
def test_what_the_handler_raises_passes_through_all_layers(bench: Bench, is_async: bool) -> None:
    def run(ctx: Any) -> None:
        raise ValueError("broken")

    declare(bench, is_async, run)
    task_id = bench.create(max_attempts=1)
    work(bench, outer, inner)
    assert "inner saw broken" in CALLS
    assert bench.task(task_id).error == "ValueError: broken"


def test_a_layer_may_replace_what_is_returned_or_raised(bench: Bench) -> None:
    def rescue(ctx: TaskContext, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except ValueError:
            return "rescued"

    bench.raising(ValueError("broken"))
    task_id = bench.create()
    work(bench, rescue)
    assert (bench.state(task_id), bench.task(task_id).result) == ("SUCCEEDED", "rescued")


def test_what_a_layer_raises_is_the_outcome_and_effects_roll_back(bench: Bench) -> None:
    def strict(ctx: TaskContext, call: Callable[[], Any]) -> Any:
        call()
        raise LookupError("not today")

    @bench.handler()
    def h(ctx: Any) -> None:
        effect(ctx)

    task_id = bench.create(max_attempts=1)
    work(bench, strict)
    assert bench.task(task_id).error == "LookupError: not today"
    assert bench.effects(task_id) == 0


def test_a_layer_that_does_not_call_the_rest_ends_the_run(bench: Bench) -> None:
    bench.succeeding()
    task_id = bench.create()
    work(bench, lambda ctx, call: "instead")
    assert (bench.runs, bench.task(task_id).result) == ([], "instead")


@pytest.mark.test_all
def test_the_timeout_of_a_handler_passes_through_its_layers(bench: Bench) -> None:
    seen: list[type] = []

    def watch(ctx: TaskContext, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BaseException as error:
            seen.append(type(error))
            raise

    @bench.handler(timeout=0.05)
    async def h(ctx: Any) -> None:
        await asyncio.sleep(30)

    bench.create(max_attempts=1)

    work(bench, watch)

    assert seen == [HandlerTimeoutError]


def test_those_of_the_settings_go_around_the_declared_ones(bench: Bench) -> None:
    middleware(inner)
    middleware(inner)
    bench.succeeding()
    bench.create()
    settings = bench.settings(middleware=f"{HERE}:outer, {HERE}:inner")
    assert load_middleware(settings.layers) == (outer, inner)
    assert load_middleware(()) == (inner,)
    run_work(settings, registry=bench.registry, drain=True)
    assert CALLS == ["outer before t", "inner before", "inner after", "outer after"]


@pytest.mark.parametrize("name", ["nowhere:f", f"{HERE}:nothing", f"{HERE}:HERE", HERE, "a.b:c"])
def test_a_name_that_leads_nowhere_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="TASKS_APP_MIDDLEWARE names"):
        load_middleware([name])


def test_a_coroutine_function_is_refused() -> None:
    with pytest.raises(HandlerError, match="Write a plain one"):
        middleware(coroutine)
    with pytest.raises(HandlerError, match="Write a plain one"):
        load_middleware([f"{HERE}:coroutine"])
