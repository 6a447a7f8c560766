"""ctx.step: what it did and returned is one commit, and no later attempt calls it again."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel
from sqlalchemy import Connection, text

from tasks_app.domain.errors import InvalidTaskError, LeaseLostError
from tasks_app.domain.handlers.outcomes import Retry
from tasks_app.pool.tasks.run_records import read_steps, step_names
from tasks_app.runtime.api.tasks import requeue_task
from tasks_app.runtime.handlers import steps
from tests.runtime.api.test_checkpoints import rescued
from tests.runtime.bench import EFFECT, NOW_DUE, Bench, due_in_s
from tests.runtime.encryption.conftest import OLD, configure  # noqa: F401  a fixture

pytestmark = pytest.mark.parametrize("kind", ["plain", "async"])
CANARY = "canary-4711"
CONFLICT = text("DO $$ BEGIN RAISE serialization_failure; END $$")


class _AtOnce:
    """A plain context of which all has to be awaited, so that one body serves both kinds."""

    def __init__(self, ctx: Any) -> None:
        vars(self)["_ctx"] = ctx

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._ctx, name, value)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ctx, name)
        if name not in {"step", "sleep", "commit"}:
            return found

        async def awaited(*arguments: Any, **options: Any) -> Any:
            return found(*arguments, **options)

        return awaited


def handler(bench: Bench, kind: str, **options: Any) -> Callable[[Any], None]:
    """Declare a coroutine function; as a plain handler it never has to wait."""

    def declare(body: Any) -> None:
        def plain(ctx: Any) -> Any:
            try:
                body(_AtOnce(ctx)).send(None)
            except StopIteration as end:
                return end.value

        bench.handler(**{"retry": "0s,0s", **options})(body if kind == "async" else plain)

    return declare


def function(bench: Bench, kind: str, ctx: Any, note: str, value: Any = None) -> Any:
    """Return one that writes an effect, notes its call and returns the value."""
    statement, values = text(EFFECT), {"id": ctx.task_id, "note": note}

    def plain(**_: Any) -> Any:
        ctx.session.execute(statement, values)
        bench.runs.append(note)
        return value

    async def awaited(**_: Any) -> Any:
        await ctx.session.execute(statement, values)
        bench.runs.append(note)
        return value

    return awaited if kind == "async" else plain


async def done(value: Any) -> Any:
    return await value if isawaitable(value) else value


def notes(bench: Bench) -> list[str]:
    return [note for (note,) in bench.rows("SELECT note FROM effect ORDER BY note")]


def kept(bench: Bench) -> list[Any]:
    return bench.rows("SELECT name, result FROM task_step ORDER BY name")


class Parcel(BaseModel):
    id: int
    to: tuple[str, ...] = ("Berlin",)


def test_a_kept_step_is_not_called_again_and_returns_the_same(bench: Bench, kind: str) -> None:
    found = []

    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        parcel = function(bench, kind, ctx, "parcel", Parcel(id=7))
        found.append(await ctx.step("parcel", parcel, key=ctx.step_key("parcel")))
        found.append(await ctx.step("none", function(bench, kind, ctx, "none")))
        if ctx.attempt == 1:
            raise Retry
        await ctx.step("more", function(bench, kind, ctx, "more"))

    task_id = bench.run_one()

    assert found == [{"id": 7, "to": ["Berlin"]}, None] * 2
    assert bench.runs == ["parcel", "none", "more"]
    assert notes(bench) == ["more", "none", "parcel"]
    assert (bench.state(task_id), bench.task(task_id).attempt) == ("SUCCEEDED", 2)
    assert list(bench.do(step_names, task_id)) == ["parcel", "none", "more"]


def test_it_commits_what_was_done_before_it_and_nothing_behind_it(bench: Bench, kind: str) -> None:
    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        if ctx.attempt == 1:
            await done(function(bench, kind, ctx, "before")())
        ctx.progress(0.5)
        await ctx.step("a", function(bench, kind, ctx, "in it"))
        if ctx.attempt == 1:
            await done(function(bench, kind, ctx, "behind")())
            raise Retry

    bench.run_one()

    assert notes(bench) == ["before", "in it"]
    assert bench.sql("SELECT count(DISTINCT xmin::text) FROM effect") == 1
    assert bench.rows("SELECT fraction, checkpoint FROM task_progress") == [(0.5, None)]
    mine = bench.sql("SELECT xmin::text FROM effect LIMIT 1")
    assert mine == bench.sql("SELECT xmin::text FROM task_step")


def test_a_function_that_raises_keeps_nothing(bench: Bench, kind: str) -> None:
    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        def fails() -> None:
            bench.runs.append(ctx.attempt)
            if ctx.attempt == 1:
                raise ValueError

        await ctx.step("a", fails)

    task_id = bench.run_one()
    assert bench.runs == [1, 2]
    assert bench.task(task_id).failures == 1


def test_who_lost_the_lease_keeps_nothing(bench: Bench, kind: str) -> None:
    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        if ctx.attempt > 1:
            return
        await ctx.step("first", function(bench, kind, ctx, "first"))
        rescued(bench, ctx.fence)
        with pytest.raises(LeaseLostError):
            await ctx.step("late", function(bench, kind, ctx, "late"))
        bench.runs.append("refused")

    bench.execute_one()

    assert bench.runs == ["first", "late", "refused"]
    assert (notes(bench), kept(bench)) == (["first"], [("first", None)])


def test_the_first_attempt_reads_nothing_and_a_later_one_once(
    bench: Bench, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(connection: Connection, task_id: int) -> Any:
        read.append(task_id)
        return read_steps(connection, task_id)

    monkeypatch.setattr(steps, "read_steps", counted)

    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        await ctx.step("a", int)
        await ctx.step("b", int)
        bench.runs.append(len(read))
        if ctx.attempt < 3:
            raise Retry

    bench.run_one()
    assert bench.runs == [0, 1, 2]


def test_a_call_after_a_conflict_finds_what_the_one_before_it_kept(bench: Bench, kind: str) -> None:
    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        await ctx.step("a", function(bench, kind, ctx, "a"))
        bench.runs.append(ctx.attempt)
        if bench.runs.count(1) == 1:
            await done(ctx.session.execute(CONFLICT))

    bench.run_one()
    assert bench.runs == ["a", 1, 1]
    assert notes(bench) == ["a"]


@pytest.mark.parametrize("ends", ["fails", "succeeds"])
def test_a_requeued_task_goes_on_unless_it_had_succeeded(
    bench: Bench, kind: str, ends: str
) -> None:
    @handler(bench, kind, max_attempts=1)
    async def h(ctx: Any) -> None:
        await ctx.step("a", function(bench, kind, ctx, "a"))
        if ends == "fails" and ctx.attempt == 1:
            raise ValueError

    task_id = bench.run_one()
    bench.do(requeue_task, task_id)
    bench.drain()

    assert bench.state(task_id) == "SUCCEEDED"
    assert bench.runs == ["a"] * (1 if ends == "fails" else 2)


def test_a_step_and_a_checkpoint_are_kept_beside_each_other(bench: Bench, kind: str) -> None:
    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        ctx.checkpoint = {"n": ctx.attempt}
        await ctx.step("a", function(bench, kind, ctx, "a"))
        bench.runs.append(await done(ctx.checkpoint))
        if ctx.attempt == 1:
            raise Retry
        await ctx.commit()

    bench.run_one()
    assert bench.runs == ["a", {"n": 1}, {"n": 2}]
    assert bench.rows("SELECT checkpoint FROM task_progress") == [({"n": 2},)]
    assert kept(bench) == [("a", None)]


def test_its_key_is_the_same_in_all_attempts_and_of_its_name(bench: Bench, kind: str) -> None:
    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        bench.runs.append((ctx.step_key("a"), ctx.step_key("b")))
        if ctx.attempt == 1:
            raise Retry

    bench.run_one()
    (first, second) = bench.runs
    assert first == second
    assert len({*first}) == 2
    assert all(isinstance(key, UUID) for key in first)


@pytest.mark.parametrize(
    ("name", "problem"),
    [("", "step is ''"), ("x" * 101, "up to 100 characters"), (7, "step is 7"), ("\0", "NUL")],
)
def test_a_name_that_cannot_be_kept_is_refused(
    bench: Bench, kind: str, name: Any, problem: str
) -> None:
    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        with pytest.raises(InvalidTaskError, match=problem):
            await ctx.step(name, function(bench, kind, ctx, "called"))

    bench.run_one()
    assert bench.runs == []


def test_a_name_is_used_once_in_a_run(bench: Bench, kind: str) -> None:
    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        await ctx.step("a", int)
        with pytest.raises(ValueError, match=r"a step named 'a' already\. Give each its own name"):
            await ctx.step("a", int)
        with pytest.raises(ValueError, match="a step named 'a' already"):
            await ctx.sleep("1h", name="a")
        bench.runs.append("refused")

    bench.run_one()
    assert bench.runs == ["refused"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), r"steps\.a is nan"),
        ({"x": object()}, r"steps\.a\.x is of type object"),
        ("x" * 70_000, r"steps\.a has 70002 bytes as JSON\. Allowed: at most 65536"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_the_commit(
    bench: Bench, kind: str, value: Any, problem: str
) -> None:
    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        with pytest.raises(InvalidTaskError, match=problem):
            await ctx.step("a", function(bench, kind, ctx, "a", value))
        bench.runs.append(notes(bench))
        raise Retry(max_attempts=1)

    bench.run_one()
    assert bench.runs == ["a", []]
    assert (notes(bench), kept(bench)) == ([], [])


@pytest.mark.parametrize("what", ["step", "sleep", "commit"])
def test_nothing_commits_while_a_function_runs(bench: Bench, kind: str, what: str) -> None:
    @handler(bench, kind, max_attempts=1)
    async def h(ctx: Any) -> None:
        async def awaited() -> None:
            await {
                "step": lambda: ctx.step("b", int),
                "sleep": lambda: ctx.sleep("1h", name="b"),
                "commit": ctx.commit,
            }[what]()

        def plain() -> None:
            awaited().send(None)

        await ctx.step("a", awaited if kind == "async" else plain)

    task_id = bench.run_one()
    assert (bench.state(task_id), kept(bench)) == ("FAILED", [])
    assert "The step 'a' runs, and what it does commits at its end" in bench.error(task_id)


def test_not_in_a_savepoint(bench: Bench, kind: str) -> None:
    @handler(bench, kind, max_attempts=1)
    async def h(ctx: Any) -> None:
        if kind == "async":
            async with ctx.session.begin_nested():
                await ctx.step("a", int)
        else:
            with ctx.session.begin_nested():
                await ctx.step("a", int)

    task_id = bench.run_one()
    assert (bench.state(task_id), kept(bench)) == ("FAILED", [])
    assert "savepoint" in bench.error(task_id)


def test_without_a_history_it_is_kept_while_it_runs(bench: Bench, kind: str) -> None:
    @handler(bench, kind, history="none")
    async def h(ctx: Any) -> None:
        bench.runs.append(await ctx.step("a", function(bench, kind, ctx, "a", 7)))
        if ctx.attempt == 1:
            raise Retry

    bench.run_one()
    assert bench.runs == ["a", 7, 7]


def test_results_of_encrypted_tasks_are_encrypted(
    bench: Bench,
    kind: str,
    configure: Any,  # noqa: F811  the fixture
) -> None:
    configure(encrypted_tasks="t")

    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        bench.runs.append(await ctx.step("a", lambda: {"card": CANARY}))
        if ctx.attempt == 1:
            raise Retry

    task_id = bench.create()
    bench.drain(encryption_keys=OLD)

    assert bench.runs == [{"card": CANARY}] * 2
    ((_, result),) = kept(bench)
    assert list(result) == ["$encrypted"]
    assert bench.state(task_id) == "SUCCEEDED"


HOUR = 3600.0
NIGHT = "a-night"


def asleep(bench: Bench, kind: str) -> int:
    """Run a task up to a sleep of an hour between two steps."""

    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        await ctx.step("evening", function(bench, kind, ctx, "evening"))
        await ctx.sleep("1h", name=NIGHT)
        await ctx.step("morning", function(bench, kind, ctx, "morning"))

    return int(bench.run_one())


def test_a_sleep_gives_the_task_back_until_it_is_over(bench: Bench, kind: str) -> None:
    task_id = asleep(bench, kind)
    task = bench.task(task_id)
    assert (task.state, task.attempt, task.failures) == ("PENDING", 1, 0)
    assert HOUR - 60 < due_in_s(bench, task_id) <= HOUR
    assert kept(bench) == [(NIGHT, HOUR), ("evening", None)]

    bench.sql("UPDATE task_step SET at = at - interval '1h'")
    bench.sql(NOW_DUE)
    bench.drain()

    assert bench.runs == notes(bench) == ["evening", "morning"]
    assert (bench.state(task_id), bench.task(task_id).attempt) == ("SUCCEEDED", 2)


def test_who_is_woken_early_sleeps_on_until_the_same_instant(bench: Bench, kind: str) -> None:
    task_id = asleep(bench, kind)
    bench.sql("UPDATE task_step SET at = at - interval '20min'")
    bench.sql(NOW_DUE)
    bench.drain()

    task = bench.task(task_id)
    assert (task.state, task.attempt, task.failures) == ("PENDING", 2, 0)
    assert HOUR * 2 / 3 - 60 < due_in_s(bench, task_id) <= HOUR * 2 / 3
    assert bench.runs == ["evening"]


def test_what_was_done_before_a_sleep_stands(bench: Bench, kind: str) -> None:
    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        await done(function(bench, kind, ctx, "before")())
        await ctx.sleep("1h", name=NIGHT)

    bench.run_one()
    assert notes(bench) == ["before"]


def test_who_lost_the_lease_does_not_sleep(bench: Bench, kind: str) -> None:
    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        rescued(bench, ctx.fence)
        with pytest.raises(LeaseLostError):
            await ctx.sleep("1h", name=NIGHT)
        bench.runs.append("refused")

    bench.execute_one()
    assert (bench.runs, kept(bench)) == (["refused"], [])


def test_a_sleep_of_no_duration_is_refused(bench: Bench, kind: str) -> None:
    @handler(bench, kind)
    async def h(ctx: Any) -> None:
        with pytest.raises(ValueError, match="duration is 'tomorrow', which is not a duration"):
            await ctx.sleep("tomorrow", name=NIGHT)
        bench.runs.append("refused")

    bench.run_one()
    assert (bench.runs, kept(bench)) == (["refused"], [])
