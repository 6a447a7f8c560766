"""Flows as producers and handlers meet them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy.orm import Session

from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import InvalidSelectionError, InvalidTaskError, TasksError
from tasks_app.domain.flows import After, Flow, FlowState, Need, StepEnd, ended, failed
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.runtime.api.flows import (
    acreate_flow,
    aextend_flow,
    cancel_flow,
    create_flow,
    extend_flow,
    get_flow,
    graft,
    list_flows,
    rerun_flow,
)
from tasks_app.runtime.api.groups import create_group
from tasks_app.runtime.api.tasks import cancel_task, requeue_task
from tests.runtime.bench import Bench, effect


@pytest.fixture
def ran(bench: Bench) -> list[str]:
    """Register ``t``, which fails while its payload's word is among ``broken``."""
    told: list[str] = []

    @bench.handler("t", max_attempts=1)
    def t(ctx: Any, payload: Any) -> str:
        if payload["n"] in BROKEN:
            raise Fail("no")
        effect(ctx)
        told.append(payload["n"])
        return payload["n"].upper()

    BROKEN.clear()
    return told


BROKEN: set[str] = set()


def flow_of(**needs: Any) -> Flow:
    """Return a flow of steps with these names, each of which needs those."""
    flow = Flow("f")
    for name, of in needs.items():
        flow.step(name, "t", {"n": name}, needs=of)
    return flow


def diamond() -> Flow:
    return flow_of(a=(), b="a", c="a", d=("b", "c"))


def made(bench: Bench, flow: Flow, **options: Any):
    return bench.do(create_flow, flow, **options)


def state(bench: Bench, created: Any) -> FlowState:
    return bench.do(get_flow, created.id).state


def ends(bench: Bench, created: Any) -> dict[str, StepEnd | None]:
    return {step.name: step.end for step in bench.do(get_flow, created.id).steps}


def test_steps_run_in_the_order_of_their_needs(bench: Bench, ran) -> None:
    created = made(bench, diamond())
    bench.drain()
    assert ran[0] == "a"
    assert sorted(ran[1:3]) == ["b", "c"]
    assert ran[3:] == ["d"]
    assert state(bench, created) is FlowState.SUCCEEDED


def test_effect_outcome_and_release_are_one_commit(bench: Bench, ran) -> None:
    flow = Flow("f")
    first = flow.step("a", "t", {"n": "a"})
    flow.step("b", "t", {"n": "b"}, needs=first, delay="1h")
    ids = {name: int(each) for name, each in made(bench, flow).task_ids.items()}
    bench.drain()
    written_by = bench.sql(
        """SELECT array_agg(DISTINCT xmin) FROM (
            SELECT xmin::text FROM effect WHERE task_id = :a
            UNION ALL SELECT xmin::text FROM task_completed WHERE id = :a
            UNION ALL SELECT xmin::text FROM task_flow_step WHERE task_id = :a
            UNION ALL SELECT xmin::text FROM task_pending WHERE id = :b AND waits_for IS NULL
        ) AS row_of (xmin) HAVING count(*) = 4""",
        **ids,
    )
    assert len(written_by) == 1


def test_a_flow_goes_on_from_the_step_that_was_mended(bench: Bench, ran) -> None:
    BROKEN.add("b")
    created = made(bench, diamond())
    bench.drain()
    assert ran == ["a", "c"]
    assert state(bench, created) is FlowState.STALLED

    BROKEN.clear()
    bench.do(requeue_task, created.task_ids["b"])
    assert state(bench, created) is FlowState.RUNNING
    bench.drain()
    assert ran == ["a", "c", "b", "d"]
    assert state(bench, created) is FlowState.SUCCEEDED


def test_a_flow_that_failed_at_its_last_step_is_mended_too(bench: Bench, ran) -> None:
    BROKEN.add("d")
    created = made(bench, diamond())
    bench.drain()
    assert state(bench, created) is FlowState.FAILED
    BROKEN.clear()
    bench.do(requeue_task, created.task_ids["d"])
    bench.drain()
    assert state(bench, created) is FlowState.SUCCEEDED


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_may_need_a_failure_or_an_end(bench: Bench, ran, fails: bool) -> None:
    BROKEN.update({"a"} if fails else ())
    created = made(bench, flow_of(a=(), sorry=failed("a"), after_sorry="sorry", any=ended("a")))
    bench.drain()
    assert set(ran) == ({"sorry", "after_sorry", "any"} if fails else {"a", "any"})
    unneeded = StepEnd.SUCCESS if fails else StepEnd.UNNEEDED
    assert ends(bench, created) == {
        "a": StepEnd.FAILURE if fails else StepEnd.SUCCESS,
        "sorry": unneeded,
        "after_sorry": unneeded,
        "any": StepEnd.SUCCESS,
    }
    assert state(bench, created) is (FlowState.FAILED if fails else FlowState.SUCCEEDED)


def test_a_step_that_was_skipped_runs_if_it_is_requeued(bench: Bench, ran) -> None:
    created = made(bench, flow_of(a=(), sorry=failed("a"), b="a"))
    bench.do(cancel_task, created.task_ids["sorry"])
    bench.drain()
    bench.do(requeue_task, created.task_ids["sorry"])
    bench.drain()
    assert ran[-1] == "sorry"
    assert state(bench, created) is FlowState.SUCCEEDED


def test_with_cancel_the_rest_of_the_flow_is_skipped(bench: Bench, ran) -> None:
    BROKEN.add("b")
    flow = flow_of(a=(), b="a", c="a", d=("b", "c"), sorry=failed("b"), other=failed("d"))
    created = made(bench, flow, on_failure="cancel")
    bench.drain()
    found = ends(bench, created)
    assert (found["b"], found["d"], found["other"]) == ("failure", "unneeded", "unneeded")
    assert found["sorry"] is StepEnd.SUCCESS
    assert state(bench, created) is FlowState.FAILED


@dataclass
class Parcel:
    """What a step hands on."""

    number: int


@pytest.mark.parametrize("is_async", [False, True])
def test_results_are_handed_on(bench: Bench, is_async: bool) -> None:
    found: list[Any] = []

    @bench.handler("pack")
    def pack(ctx: Any) -> dict:
        return {"number": 7}

    def ship(ctx: Any) -> None:
        found.extend((ctx.need("pack"), ctx.need("pack", Parcel), ctx.needs()["pack"].end))

    async def aship(ctx: Any) -> None:
        found.extend((await ctx.need("pack"), await ctx.need("pack", Parcel)))
        found.append((await ctx.needs())["pack"].end)

    bench.handler("ship")(aship if is_async else ship)
    flow = Flow("f")
    packed = flow.step("pack", "pack")
    flow.step("ship", "ship", needs=packed)
    created = made(bench, flow)
    bench.drain()
    assert found == [{"number": 7}, Parcel(7), StepEnd.SUCCESS]
    assert [step.result for step in bench.do(get_flow, created.id).steps] == [{"number": 7}, None]


def test_a_step_that_is_not_needed_has_no_result(bench: Bench) -> None:
    bench.handler("a")(lambda ctx: None)
    bench.handler("b", max_attempts=1)(lambda ctx: ctx.need("x"))
    flow = Flow("f")
    flow.step("first", "a")
    flow.step("second", "b", needs="first")
    created = made(bench, flow)
    bench.drain()
    assert "This task needs first, and not 'x'" in bench.error(created.task_ids["second"])


def test_at_most_one_open_flow_has_a_key(bench: Bench, ran) -> None:
    first, again = (made(bench, flow_of(a=()), key="order:7") for _ in range(2))
    assert (again.id, again.created, again.task_ids) == (first.id, False, first.task_ids)
    bench.drain()
    assert made(bench, flow_of(a=()), key="order:7").created
    found = bench.do(list_flows, name="f", key="order:7")
    assert [flow.state for flow in found] == [FlowState.RUNNING, FlowState.SUCCEEDED]
    assert bench.do(list_flows, state=FlowState.SUCCEEDED)[0].id == first.id


def test_nothing_exists_unless_the_transaction_commits(bench: Bench) -> None:
    with Session(bench.engine) as session:
        create_flow(session, diamond())
        session.rollback()
    assert bench.sql("SELECT count(*) FROM task_flow_step") == 0
    assert bench.sql("SELECT count(*) FROM task_pending") == 0


@pytest.mark.parametrize("caller", ["session", "psycopg", "async"])
def test_every_kind_of_caller_creates_flows(bench: Bench, ran, caller: str) -> None:
    async def create() -> Any:
        async with bench.async_session() as session:
            created = await acreate_flow(session, diamond())
            await aextend_flow(session, created.id, needing(e="d"))
            return created

    if caller == "async":
        created = asyncio.run(create())
    elif caller == "psycopg":
        with psycopg.connect(bench.plain_url, autocommit=True) as raw, raw.transaction():
            created = create_flow(raw, diamond())
            extend_flow(raw, created.id, needing(e="d"))
    else:
        with Session(bench.engine) as session, session.begin():
            created = create_flow(session, diamond())
            extend_flow(session, created.id, needing(e="d"))
    bench.drain()
    assert ran[-1] == "e"
    assert state(bench, created) is FlowState.SUCCEEDED


def test_a_flow_is_cancelled(bench: Bench, ran) -> None:
    created = made(bench, diamond())
    assert bench.do(cancel_flow, created.id, by="ann").cancelled == 4
    assert state(bench, created) is FlowState.FAILED
    for task_id in created.task_ids.values():
        bench.do(requeue_task, task_id)
    bench.drain()
    assert (ran[0], ran[3]) == ("a", "d")
    assert state(bench, created) is FlowState.SUCCEEDED


def test_a_flow_runs_again_from_a_step_and_ends_again(bench: Bench, ran) -> None:
    created = made(bench, diamond())
    bench.drain()
    ran.clear()
    assert bench.do(rerun_flow, created.id, from_="b", by="ann", why="wrong price") == ["b", "d"]
    assert state(bench, created) is FlowState.RUNNING
    bench.drain()
    assert ran == ["b", "d"]
    assert state(bench, created) is FlowState.SUCCEEDED
    line = bench.rows("SELECT action, who, what, ids, answers FROM task_audit")
    ids = [created.task_ids[step] for step in "bd"]
    what = {"flow": created.id, "step": "b", "why": "wrong price"}
    assert line == [("requeue", "ann", what, ids, {"requeued": 2})]


def test_a_flow_that_gave_up_is_mended_from_the_step_that_failed(bench: Bench, ran) -> None:
    BROKEN.add("b")
    created = made(bench, diamond(), on_failure="cancel")
    bench.drain()
    assert state(bench, created) is FlowState.FAILED
    BROKEN.clear()
    bench.do(rerun_flow, created.id, from_="b")
    bench.drain()
    assert state(bench, created) is FlowState.SUCCEEDED
    assert sorted(ran) == ["a", "b", "c", "d"]


def test_a_step_runs_again_with_another_payload(bench: Bench, ran) -> None:
    created = made(bench, diamond())
    bench.drain()
    bench.do(rerun_flow, created.id, "b", {"n": "new"}, by="ann", registry=bench.registry)
    bench.drain()
    assert ran[-2:] == ["new", "d"]
    assert bench.rows("SELECT action, number FROM task_audit ORDER BY id") == [
        ("edit", 1), ("requeue", 2)]  # fmt: skip


def test_a_payload_that_is_refused_changes_nothing(bench: Bench, ran) -> None:
    created = made(bench, diamond())
    bench.drain()
    with bench.engine.begin() as connection, pytest.raises(InvalidSelectionError, match="known"):
        rerun_flow(connection, created.id, "b", {"n": "new"})
    assert state(bench, created) is FlowState.SUCCEEDED


@pytest.mark.parametrize("verb", [cancel_flow, partial(rerun_flow, from_="a")])
def test_a_flow_that_is_unknown(bench: Bench, verb) -> None:
    with bench.engine.connect() as connection, pytest.raises(TasksError, match="no flow 7"):
        verb(connection, 7)


def with_steps(*steps: Any) -> Flow:
    flow = Flow("f")
    for name, needs in steps:
        flow.step(name, "t", needs=needs)
    return flow


@pytest.mark.parametrize(
    ("make", "path", "words"),
    [
        (lambda: with_steps(("a", "b")), "steps.a.needs", "'b', which is no step"),
        (lambda: with_steps(("a", "b")), "steps.a.needs", "Allowed: the name of another step."),
        (lambda: with_steps(("a", ()), ("b", "x")), "steps.b.needs", "Allowed: a."),
        (lambda: with_steps(("a", "x" * 99)), "steps.a.needs", f"has '{'x' * 58}…, which"),
        (lambda: with_steps(("a", "c"), ("b", "a"), ("c", "b")), "steps", "a -> c -> b -> a"),
        (lambda: with_steps(("a", ()), ("a", ())), "steps.a", "is there twice"),
        (lambda: with_steps(("", ())), "step", "is ''"),
        (lambda: with_steps(("a", 7)), "steps.a.needs", "are 7"),
        (lambda: with_steps(("a", [f"s{n}" for n in range(1001)])), "steps.a.needs", "are 1001"),
        (lambda: Flow(""), "flow.name", "is ''"),
        (lambda: with_steps(*((f"s{n}", ()) for n in range(1001))), "steps", "more than 1000"),
    ],
)
def test_what_cannot_be_meant_is_refused(bench: Bench, make, path: str, words: str) -> None:
    with bench.engine.begin() as connection, pytest.raises(InvalidTaskError) as refused:
        create_flow(connection, make())
    assert refused.value.path == path
    assert words in str(refused.value)
    assert bench.sql("SELECT count(*) FROM task_group") == 0


def needing(**needs: Any) -> Flow:
    """Return a flow whose steps may need others that are there already."""
    return flow_of(**needs)


def test_a_handler_adds_steps_to_its_own_flow(bench: Bench, ran) -> None:
    @bench.handler("grows")
    def grows(ctx: Any) -> str:
        extend_flow(ctx.session, ctx.flow_id, needing(b="a", c=("b", "grown"), d=ended("grown")))
        return "grown"

    flow = flow_of(a=())
    flow.step("grown", grows, needs="a")
    created = made(bench, flow)
    bench.drain()
    assert sorted(ran[1:3]) == ["b", "d"]
    assert (ran[0], ran[3]) == ("a", "c")
    progress = bench.do(get_flow, created.id)
    assert (progress.state, progress.total, progress.succeeded) == (FlowState.SUCCEEDED, 5, 5)


@pytest.mark.parametrize("in_a_flow", [False, True])
def test_a_run_knows_its_flow(bench: Bench, in_a_flow: bool) -> None:
    found: list[Any] = []
    bench.handler("look")(lambda ctx: found.append(ctx.flow_id))
    flow = Flow("f")
    flow.step("a", "look")
    created = made(bench, flow) if in_a_flow else bench.create("look")
    bench.drain()
    assert found == [created.id if in_a_flow else None]


ADDED = {
    "a need that was met": ("a", "due"),
    "a need that failed, which can be mended": ("b", "waits"),
    "a failure that has been": (failed("b"), "due"),
    "an end that has been": (ended("a"), "due"),
    "a need that is open": ("d", "waits"),
    "one of each": (("a", "d"), "waits"),
}


@pytest.mark.parametrize(("needs", "how"), ADDED.values(), ids=ADDED)
def test_a_step_that_is_added_waits_for_what_is_open(bench: Bench, ran, needs, how) -> None:
    BROKEN.add("b")
    created = made(bench, diamond())
    bench.drain()
    ids = bench.do(extend_flow, created.id, needing(new=needs))
    assert state(bench, created) is (FlowState.RUNNING if how == "due" else FlowState.STALLED)
    bench.drain()
    assert ("new" in ran) == (how == "due")
    BROKEN.clear()
    bench.do(requeue_task, created.task_ids["b"])
    bench.drain()
    assert "new" in ran
    assert state(bench, created) is FlowState.SUCCEEDED
    assert bench.do(get_flow, created.id).steps[-1].task_id == ids["new"]


@pytest.mark.parametrize(
    ("more", "path", "words"),
    [
        (lambda: needing(new=failed("a")), "steps.new.needs", "'a' succeeded"),
        (lambda: needing(new="sorry"), "steps.new.needs", "'sorry' is not needed"),
        (lambda: needing(new=failed("sorry")), "steps.new.needs", "'sorry' is not needed"),
        (lambda: needing(new="x"), "steps.new.needs", "'x', which is no step"),
        (lambda: needing(a=()), "steps.a", "is there already"),
        (lambda: needing(**{f"s{n}": () for n in range(998)}), "steps", "would be 1001"),
        (lambda: "a", "flow", "is of type str"),
    ],
)
def test_a_step_that_cannot_be_added_is_refused(bench: Bench, ran, more, path, words) -> None:
    created = made(bench, open_flow(sorry=failed("a")))
    bench.drain()
    with pytest.raises(InvalidTaskError) as refused:
        bench.do(extend_flow, created.id, more())
    assert refused.value.path == path
    assert words in str(refused.value)
    assert bench.do(get_flow, created.id).total == 3


def test_a_flow_that_is_over_takes_no_steps_unless_it_is_reopened(bench: Bench, ran) -> None:
    created = made(bench, flow_of(a=()))
    bench.drain()
    with pytest.raises(TasksError, match="is over or unknown, so it takes no steps"):
        bench.do(extend_flow, created.id, needing(b="a"))
    bench.do(graft, created.id, needing(b="a"), reopens=True)
    assert state(bench, created) is FlowState.RUNNING
    bench.drain()
    assert ran == ["a", "b"]
    assert state(bench, created) is FlowState.SUCCEEDED


def test_a_group_that_is_no_flow_takes_no_steps(bench: Bench) -> None:
    group = bench.do(create_group, [NewTask("t")])
    with pytest.raises(TasksError, match="unknown"):
        bench.do(extend_flow, group.id, needing(b=()))


def test_a_delay_of_an_added_step_counts_at_once_if_nothing_is_open(bench: Bench, ran) -> None:
    created = made(bench, open_flow())
    bench.drain()
    more = Flow("more")
    more.step("soon", "t", needs="a", delay="1h")
    more.step("later", "t", needs="late", delay="1h")
    ids = bench.do(extend_flow, created.id, more)
    wait = "SELECT due_at - created_at FROM task_pending WHERE id = :id"
    assert bench.sql(wait, id=ids["soon"]) == timedelta(hours=1)
    assert bench.do(get_flow, created.id).steps[-1].due_at is None


def open_flow(**needs: Any) -> Flow:
    """Return a flow that is open when all that is due has run; its first step is a."""
    flow = flow_of(a=(), **needs)
    flow.step("late", "t", {"n": "late"}, delay="1h")
    return flow


def test_what_waits_for_what_is_told(bench: Bench, ran) -> None:
    created = made(bench, flow_of(a=(), b=("a", failed("a"))))
    a, b = bench.do(get_flow, created.id).steps
    assert b.open_needs == b.needs == (Need("a", After.SUCCESS),)
    assert (a.due_at is not None, b.due_at) == (True, None)
