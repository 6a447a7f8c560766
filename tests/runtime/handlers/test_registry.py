"""Declarations: what is accepted and what is refused; and middleware around handlers."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tasks_app import TaskContext, middleware
from tasks_app.domain.errors import ConfigurationError, HandlerError, HandlerTimeoutError
from tasks_app.runtime.handlers.middleware import MIDDLEWARE, load_middleware
from tasks_app.runtime.handlers.registry import Handler, Registry, handler, load_handlers
from tasks_app.runtime.worker.standalone import run_work
from tests.factory import some
from tests.runtime.bench import Bench


class Order(BaseModel):
    order_id: int


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_a_handler_stays_a_function(registry: Registry) -> None:
    @handler("t", registry=registry)
    def double(ctx: Any, payload: dict) -> int:
        """Say it twice."""
        return payload["n"] * 2

    assert double(None, {"n": 2}) == 4
    assert (double.__name__, double.__doc__) == ("double", "Say it twice.")
    assert isinstance(double, Handler)


def test_what_is_declared_is_what_is_known(registry: Registry) -> None:
    @handler("points.grant", queue="points", retry="5s,30s", timeout="30s", registry=registry)
    async def grant(ctx: Any, payload: Order) -> None: ...

    spec = some(registry.get("points.grant"))
    assert (spec.queue, spec.max_attempts, spec.is_async) == ("points", 3, True)
    assert spec.takes_payload
    assert spec.payload('{"order_id": "1"}') == Order(order_id=1)
    assert spec.timeout is not None
    assert spec.timeout.total_seconds() == 30
    assert registry.queues == ("default", "points")


def test_two_functions_with_one_name_are_refused(registry: Registry) -> None:
    @handler("t", registry=registry)
    def first(ctx: Any) -> None: ...

    with pytest.raises(HandlerError, match=r"t is handled by .*first already. Give .*second"):

        @handler("t", registry=registry)
        def second(ctx: Any) -> None: ...


def test_importing_a_module_again_is_harmless(registry: Registry) -> None:
    for n in (1, 2):

        @handler("t", retry=f"{n}s", registry=registry)
        def same(ctx: Any) -> None: ...

    assert registry.names == ("t",)
    assert registry.get("t").retry.waits[0].total_seconds() == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("no spaces", {}),
        ("1st", {}),
        ("", {}),
        ("t", {"queue": "a queue"}),
        ("t", {"retry": "soon"}),
        ("t", {"retry": "-5s"}),
        ("t", {"max_attempts": 0}),
        ("t", {"max_attempts": -1}),
        ("t", {"max_attempts": 100_000}),
        ("t", {"timeout": "never"}),
        ("t", {"timeout": 0}),
        ("t", {"hard_timeout": 0}),
        ("t", {"on_error": {ValueError: "ignore"}}),
        ("t", {"on_error": {"ValueError": "fail"}}),
        ("t", {"commit": "sometimes"}),
    ],
)
def test_a_wrong_declaration_is_refused(registry: Registry, name: str, options: dict) -> None:
    """A wrong max_attempts, say, would stop every claim of the worker, not only this task's."""
    with pytest.raises(HandlerError):

        @handler(name, registry=registry, **options)
        def h(ctx: Any) -> None: ...

    assert registry.names == ()


def test_a_handler_takes_one_or_two_arguments(registry: Registry) -> None:
    for bad in (lambda: None, lambda a, b, c: None):
        with pytest.raises(HandlerError, match=r"Declare it as \(ctx\) or \(ctx, payload\)"):
            handler("t", registry=registry)(bad)


class TestNames:
    """A handler without a name has that of its module and function, as a task of Celery has."""

    def test_parentheses_may_be_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        known = Registry()
        monkeypatch.setattr(handler, "__kwdefaults__", {"registry": known})

        @handler
        def bare(ctx: Any) -> int:
            return 5

        @handler
        async def with_payload(ctx: Any, payload: Order) -> None: ...

        assert known.names == (f"{__name__}.bare", f"{__name__}.with_payload")
        assert isinstance(bare, Handler)
        assert bare(None) == 5

    def test_the_name_may_be_left_out_where_there_are_options(self, registry: Registry) -> None:
        @handler(queue="mail", registry=registry)
        def send(ctx: Any) -> None: ...

        spec = some(registry.get(f"{__name__}.send"))
        assert spec.queue == "mail"

    def test_what_cannot_have_a_name_is_refused(self, registry: Registry) -> None:
        with pytest.raises(HandlerError, match=r"A lambda has no name for its tasks\. Declare"):
            handler(registry=registry)(lambda ctx: None)
        with pytest.raises(HandlerError, match="this is of type int"):
            handler(5)  # type: ignore[call-overload]

    SCRIPT = """
from tasks_app import handler

@handler
def say(ctx): ...

if __name__ == "__main__":
    print(say.spec.name)
"""

    def run(self, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    @pytest.mark.test_all
    def test_a_script_has_the_name_by_which_a_worker_imports_it(self, tmp_path: Path) -> None:
        package = tmp_path / "shop"
        package.mkdir()
        for file in (package / "__init__.py", package / "mails.py", tmp_path / "hello.py"):
            file.write_text("" if file.name == "__init__.py" else self.SCRIPT)
        assert self.run("hello.py", folder=tmp_path).stdout == "hello.say\n"
        assert self.run("-m", "shop.mails", folder=tmp_path).stdout == "shop.mails.say\n"
        assert (
            "HandlerError: Handler say has no name, and no file that would give it one. "
            'Write @handler("say").'
        ) in self.run("-c", self.SCRIPT, folder=tmp_path).stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": "5 seconds"}, "timeout is '5 seconds', which is not a duration. Allowed: sec"),
        ({"hard_timeout": "x"}, "hard_timeout is 'x', which is not a duration. Allowed: seconds"),
        ({"retry": "5s,soon"}, "retry is 'soon', which is not a duration. Allowed: such as '5s,3"),
        ({"dependency_retry": "x"}, "dependency_retry is 'x', which is not a retry policy."),
        ({"retry": "exponential 5s"}, "retry is 'exponential 5s', which is not a retry policy. A"),
        ({"dependency_limit": "x"}, "dependency_limit is 'x', which is not a duration."),
        ({"timeout": 0}, "timeout of handler 't' is 0 s. Leave it out."),
        ({"timeout": "2h", "hard_timeout": "1h"}, "timeout of handler 't' is 2h, and its process"),
        ({"on_interrupt": "x"}, "on_interrupt is 'x'. Allowed: retry, fail, retry_free, outage."),
        ({"on_error": {ValueError: "x"}}, "on_error of ValueError is 'x'. Allowed: retry, fail"),
        ({"every": "x"}, "every is 'x', which is not a duration. Allowed: such as '5m'"),
    ],
    ids=str,
)
def test_a_refusal_names_the_option(registry: Registry, options: dict, said: str) -> None:
    with pytest.raises(HandlerError) as refused:
        handler("t", registry=registry, **options)(lambda ctx: None)
    assert said in str(refused.value)


def test_an_unknown_option_is_answered_with_all_that_there_are(registry: Registry) -> None:
    with pytest.raises(HandlerError) as refused:
        handler("x", registry=registry, retri="5s")  # type: ignore[call-overload]
    said, _, allowed = str(refused.value).partition(" Allowed: ")
    assert said == "Handler 'x' has no option retri; perhaps retry is meant."
    assert {"retry", "queue", "cron", "on_error"} <= set(allowed.rstrip(".").split(", "))


def test_annotations_that_cannot_be_resolved_are_named(registry: Registry) -> None:
    def h(ctx: Any, payload: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(HandlerError, match="cannot be resolved"):
        handler("t", registry=registry)(h)


class TestLoading:
    def test_a_module_that_does_not_exist_is_named_with_what_to_do(self) -> None:
        with pytest.raises(ConfigurationError, match=r"names no\.such\.module.*PYTHONPATH"):
            load_handlers(["no.such.module"])

    def test_an_error_inside_a_module_comes_out_as_it_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "needs_something.py").write_text("import not_installed_at_all\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ModuleNotFoundError, match="not_installed_at_all"):
            load_handlers(["needs_something"])
        sys.modules.pop("needs_something", None)


def test_on_interrupt_knows_three_words_and_at_most_once_none(registry: Registry) -> None:
    with pytest.raises(HandlerError, match="'charged'"):
        handler("t", on_interrupt="charged", registry=registry)(lambda ctx: None)
    with pytest.raises(HandlerError, match="Leave on_interrupt out"):
        handler("t", on_interrupt="retry", at_most_once=True, registry=registry)


@pytest.mark.parametrize("said", ["each", "batch"])
def test_no_task_commits_with_others(registry: Registry, said: str) -> None:
    with pytest.raises(HandlerError, match=r"'t' has commit=.*write with ctx\.write"):
        handler("t", commit=said, registry=registry)  # type: ignore[call-overload]


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
def test_the_first_layer_is_outermost_around_the_handler(bench: Bench, is_async: bool) -> None:
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

    bench.writing()
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


def test_layers_of_the_settings_go_around_the_declared_ones(bench: Bench) -> None:
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
def test_a_layers_name_that_leads_nowhere_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="TASKS_APP_MIDDLEWARE names"):
        load_middleware([name])


def test_a_coroutine_function_is_no_layer() -> None:
    with pytest.raises(HandlerError, match="Write a plain one"):
        middleware(coroutine)
    with pytest.raises(HandlerError, match="Write a plain one"):
        load_middleware([f"{HERE}:coroutine"])
