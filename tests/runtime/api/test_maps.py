"""Maps: a step for each item of a list that is known when the flow runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tasks_app.domain.errors import InvalidTaskError, TasksError
from tasks_app.domain.flows import (
    MOST_ITEMS,
    CreatedFlow,
    Flow,
    FlowProgress,
    FlowState,
    FlowStep,
    MapItems,
    StepEnd,
    ended,
    failed,
)
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.tasks.states import State
from tasks_app.runtime.api import maps
from tasks_app.runtime.api.amend_waiting import run_task_now
from tasks_app.runtime.api.flows import create_flow, extend_flow, get_flow, rerun_flow
from tasks_app.runtime.api.tasks import cancel_task, requeue_task
from tests.runtime.bench import Bench

LISTED: list[Any] = []
BROKEN: set[Any] = set()


@pytest.fixture
def told(bench: Bench) -> list[Any]:
    """Register what lists items, doubles one, and sums up; what was doubled is told."""
    told: list[Any] = []
    LISTED[:], _ = [1, 2, 3], BROKEN.clear()

    @bench.handler("list")
    def list_(ctx: Any) -> Any:
        return LISTED[0] if len(LISTED) == 1 and not isinstance(LISTED[0], int) else LISTED

    @bench.handler("double", max_attempts=1)
    def double(ctx: Any, payload: int) -> int:
        if payload in BROKEN:
            raise Fail("no")
        told.append(payload)
        return 2 * payload

    @bench.handler("sum")
    def sum_(ctx: Any) -> None:
        told.append(ctx.need("doubled"))

    return told


def mapped(**options: Any) -> Flow:
    flow = Flow("f")
    flow.map("doubled", "double", over=flow.step("list", "list"), **options)
    flow.step("sum", "sum", needs="doubled")
    return flow


def made(bench: Bench, flow: Flow | None = None, **options: Any) -> CreatedFlow:
    return bench.do(create_flow, flow or mapped(), **options)


def flow_of(bench: Bench, created: CreatedFlow) -> FlowProgress:
    found = bench.do(get_flow, created.id)
    assert found is not None
    return found


def steps_of(bench: Bench, created: CreatedFlow) -> dict[str, FlowStep]:
    return {step.name: step for step in flow_of(bench, created).steps}


def test_a_step_runs_for_each_item_and_their_results_are_one_list(bench: Bench, told) -> None:
    created = made(bench)
    bench.drain()
    assert (sorted(told[:3]), told[3]) == ([1, 2, 3], [2, 4, 6])
    flow = flow_of(bench, created)
    assert (flow.state, flow.total, flow.succeeded) == (FlowState.SUCCEEDED, 6, 6)
    names = ["list", "doubled", "sum", "doubled[0]", "doubled[1]", "doubled[2]"]
    assert [step.name for step in flow.steps] == names
    assert [step.items for step in flow.steps[:3]] == [None, MapItems(3, 3, 0), None]
    assert bench.do(create_flow, mapped(), key="k").task_ids.keys() == {"list", "doubled", "sum"}


@pytest.mark.parametrize("empty", [[], [[]]])
def test_a_map_of_nothing_succeeds_at_once(bench: Bench, told, empty: list[Any]) -> None:
    LISTED[:] = empty
    created = made(bench)
    bench.drain()
    assert told == [[]]
    assert flow_of(bench, created).state is FlowState.SUCCEEDED


def test_a_map_waits_for_an_item_that_failed_and_goes_on(bench: Bench, told) -> None:
    BROKEN.add(2)
    created = made(bench)
    bench.drain()
    steps = steps_of(bench, created)
    assert flow_of(bench, created).state is FlowState.STALLED
    assert list(steps)[3:] == ["doubled[1]", "doubled[0]", "doubled[2]"]
    stands = steps["doubled"]
    assert (stands.items, stands.state, stands.due_at) == (MapItems(3, 2, 1), State.PENDING, None)
    assert stands.open_needs == ()

    BROKEN.clear()
    bench.do(requeue_task, steps["doubled[1]"].task_id)
    bench.drain()
    assert told == [1, 3, 2, [2, 4, 6]]
    assert flow_of(bench, created).state is FlowState.SUCCEEDED


def test_an_item_that_was_cancelled_is_a_failure(bench: Bench, told) -> None:
    created = made(bench, mapped(delay="1h"))
    bench.drain()
    assert told == []
    first = steps_of(bench, created)["doubled[0]"].task_id
    bench.do(cancel_task, first)
    assert steps_of(bench, created)["doubled"].items == MapItems(3, 0, 1)


def test_with_cancel_an_item_that_failed_ends_the_map(bench: Bench, told) -> None:
    BROKEN.add(1)
    flow = mapped()
    flow.step("sorry", "list", needs=ended("doubled"))
    created = made(bench, flow, on_failure="cancel")
    bench.drain()
    ends = {name: step.end for name, step in steps_of(bench, created).items()}
    assert (ends["doubled"], ends["sum"]) == (StepEnd.UNNEEDED, StepEnd.UNNEEDED)
    assert ends["sorry"] is StepEnd.SUCCESS
    assert flow_of(bench, created).state is FlowState.FAILED


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"a": 1}, "returned an object, and not a list"),
        (None, "returned nothing, and not a list"),
        (["x" * 7], None),
        ("text", "returned a text, and not a list"),
        (7.5, "returned a number, and not a list"),
        ([0] * (MOST_ITEMS + 1), "returned 10,001 items, and a map has 10,000 at most"),
    ],
)
def test_what_is_no_list_fails_the_map_for_good(bench: Bench, told, result, words) -> None:
    LISTED[:] = [result]
    created = made(bench)
    bench.drain()
    if words is None:  # a list whose items the handler refuses
        step = steps_of(bench, created)["doubled[0]"]
        assert (step.end, "payload" in step.error) == (StepEnd.FAILURE, True)
        return
    step = steps_of(bench, created)["doubled"]
    assert (step.end, words in step.error) == (StepEnd.FAILURE, True)
    assert flow_of(bench, created).state is FlowState.STALLED
    LISTED[:] = [4]
    bench.do(requeue_task, created.task_ids["list"])
    bench.do(requeue_task, created.task_ids["doubled"])
    bench.drain()
    assert told == [4, [8]]


def test_a_map_that_is_requeued_creates_no_items_again(bench: Bench, told) -> None:
    flow = mapped()
    flow.step("late", "list", delay="1h")
    created = made(bench, flow)
    bench.drain()
    bench.do(requeue_task, created.task_ids["doubled"])
    bench.drain()
    assert sorted(told[:3]) == [1, 2, 3]
    assert told[3:] == [[2, 4, 6]]
    assert flow_of(bench, created).total == 7


@pytest.mark.parametrize(("place", "there"), [("add_needs", 0), ("WaitForNeeds", 3)])
def test_items_exist_once_if_the_run_dies(
    bench: Bench, told, monkeypatch: pytest.MonkeyPatch, place: str, there: int
) -> None:
    def dies(*arguments: Any) -> None:
        raise ConnectionResetError

    created = made(bench)
    with monkeypatch.context() as patch:
        patch.setattr(maps, place, dies)
        bench.drain()
    assert flow_of(bench, created).total == 3 + there
    bench.do(run_task_now, created.task_ids["doubled"])
    bench.drain()
    assert (sorted(told[:3]), told[3:]) == ([1, 2, 3], [[2, 4, 6]])
    assert flow_of(bench, created).state is FlowState.SUCCEEDED


def test_items_have_the_options_of_the_map(bench: Bench, told) -> None:
    later = datetime(2100, 1, 1, tzinfo=UTC)
    options: dict[str, Any] = {
        "queue": "q", "priority": 2, "biz_key": "b", "limit_key": ["l", "m"], "timeout": "3s",
        "retry": "1m,2m", "max_attempts": 3, "headers": {"h": 1}, "expires_at": later,
        "delay": timedelta(hours=1), "order_key": "o", "weight": 7,
    }  # fmt: skip
    created = made(bench, mapped(**options))
    task_id = created.task_ids["doubled"]
    assert bench.rows("SELECT queue, priority FROM task_pending WHERE id = :id", id=task_id) == [
        ("q", 2)
    ]
    bench.sql("UPDATE task_pending SET queue = 'default' WHERE id = :id", id=task_id)
    bench.drain()
    found = bench.rows(
        "SELECT DISTINCT queue, priority, biz_key, order_key, limit_key, more_limit_keys, headers, "
        "retry, max_attempts, timeout_ms, expires_at, due_at - created_at, weight "
        "FROM task_pending WHERE name = 'double'"
    )
    hour = timedelta(hours=1)
    assert found == [("q", 2, "b", "o", "l", ["m"], {"h": 1}, "1m,2m", 3, 3000, later, hour, 7)]


def test_maps_of_maps_and_of_added_steps(bench: Bench, told) -> None:
    flow = Flow("f")
    flow.map("once", "double", over=flow.step("list", "list"))
    flow.map("doubled", "double", over="once")
    flow.step("sum", "sum", needs="doubled")
    flow.step("late", "list", delay="1h")
    created = made(bench, flow)
    bench.drain()
    assert told[-1] == [4, 8, 12]
    more = Flow("more")
    more.map("again", "double", over="doubled")
    bench.do(extend_flow, created.id, more)
    bench.drain()
    assert sorted(told[-3:]) == [4, 8, 12]
    assert steps_of(bench, created)["again"].items == MapItems(3, 3, 0)


@pytest.mark.parametrize(
    ("arguments", "path", "words"),
    [
        ({"over": failed("list")}, "steps.m.over", "step"),
        ({"over": 7}, "steps.m.over", "is 7"),
        ({"task": 7}, "steps.m.task", "is of type int"),
        ({"name": "m[0]"}, "step", "a name that ends without ]"),
        ({"name": "m" * 95}, "step", "94 characters"),
        ({"unique_key": "k"}, "steps.m.options.unique_key", "the items would share it"),
        ({"prioritty": 3}, "steps.m.options.prioritty", "is unknown"),
        ({"over": "x"}, "steps.m.needs", "'x', which is no step"),
    ],
)
def test_a_map_that_cannot_be_meant_is_refused(bench: Bench, arguments, path, words) -> None:
    flow = Flow("f")
    flow.step("list", "list")

    def make() -> None:
        flow.map(**{"name": "m", "task": "double", "over": "list", **arguments})
        bench.do(create_flow, flow)

    with pytest.raises(InvalidTaskError) as refused:
        make()
    assert refused.value.path == path
    assert words in str(refused.value)
    assert bench.sql("SELECT count(*) FROM task_group") == 0


@pytest.mark.parametrize("broken", [[], [2]])
@pytest.mark.parametrize("name", ["list", "doubled"])
def test_a_map_that_runs_again_has_other_items(
    bench: Bench, told, name: str, broken: list[int]
) -> None:
    BROKEN.update(broken)
    created = made(bench)
    bench.drain()
    older = bench.sql("SELECT task_id FROM task_flow_step WHERE step = 'doubled[0]'")
    told.clear()
    BROKEN.clear()
    LISTED[:] = [5, 6]
    if broken and name == "doubled":
        bench.do(cancel_task, created.task_ids["doubled"])  # it waited for the item
    assert bench.do(rerun_flow, created.id, name)[-2:] == ["doubled", "sum"]
    bench.drain()
    expected = [5, 6, [10, 12]] if name == "list" else [1, 2, 3, [2, 4, 6]]
    assert sorted(told[:-1]) == expected[:-1]
    assert told[-1] == expected[-1]
    bench.do(requeue_task, older)  # it is no part of the flow any more
    flow = flow_of(bench, created)
    number = 3 + len(expected) - 1
    assert (flow.state, flow.total, flow.succeeded) == ("succeeded", number, number)


def test_items_do_not_run_again_alone_and_a_map_waits_for_them(bench: Bench, told) -> None:
    BROKEN.add(2)
    created = made(bench)
    bench.drain()
    with bench.engine.begin() as connection, pytest.raises(TasksError, match="an item of a map"):
        rerun_flow(connection, created.id, "doubled[1]")
    failed = bench.sql("SELECT task_id FROM task_flow_step WHERE step = 'doubled[1]'")
    bench.do(requeue_task, failed)
    with bench.engine.begin() as connection, pytest.raises(TasksError, match="has not ended"):
        rerun_flow(connection, created.id, "list")


def test_an_item_that_was_cancelled_unneeded_is_counted_back(bench: Bench, told) -> None:
    created = made(bench, mapped(delay="1h"), on_failure="cancel")
    bench.drain()
    steps = steps_of(bench, created)
    for item in ("doubled[0]", "doubled[1]"):  # the first end lets nobody need the second
        bench.do(cancel_task, steps[item].task_id)
    bench.drain()
    bench.do(rerun_flow, created.id, "list")
    flow = flow_of(bench, created)
    assert (flow.total, flow.succeeded, flow.failed) == (3, 0, 0)
