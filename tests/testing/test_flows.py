"""The kit and flows: what is asserted of one, and how time and drains move it on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tasks_app.domain.events import event
from tasks_app.domain.flows import CreatedFlow, Flow, FlowState, failed
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.runtime.api.events import send_event
from tasks_app.runtime.api.flows import create_flow, get_flow
from tasks_app.runtime.api.producer import create_task
from tasks_app.runtime.api.tasks import get_task, requeue_task
from tasks_app.testing import TasksTestMixin, aassert_flow, assert_flow, drain, travel
from tests.testing.conftest import Kit, in_async_session

BROKEN: set[str] = set()


def made(kit: Kit, *, more: Any = None, **of_ship: Any) -> CreatedFlow:
    """Create the flow of an order, with a handler for its steps."""
    BROKEN.clear()

    @kit.handler("step")
    def step(ctx: Any, payload: Any) -> None:
        if payload["n"] in BROKEN:
            raise Fail("no money")

    flow = Flow("order")
    pay = flow.step("pay", "step", {"n": "pay"})
    ship = flow.step("ship", "step", {"n": "ship"}, needs=[pay, more] if more else pay, **of_ship)
    flow.step("thank", "step", {"n": "thank"}, needs=[pay, ship])
    return create_flow(kit.session, flow)


def test_a_flow_is_asserted_before_and_after_a_drain(kit: Kit) -> None:
    created = made(kit)
    waiting = {"ship": ["pay"], "thank": ["ship", "pay"]}
    assert_flow(kit.session, created.id, done=[], waiting=waiting, failed=[])

    BROKEN.add("ship")
    drained = kit.drain()
    assert [run.task_id for run in drained.failed] == [created.task_ids["ship"]]
    found = assert_flow(
        kit.session, created.id, done=["pay"], waiting={"thank": ["ship"]}, failed=["ship"]
    )
    assert found.state is FlowState.STALLED

    BROKEN.clear()
    requeue_task(kit.session, created.task_ids["ship"])
    kit.drain().assert_succeeded()
    assert_flow(kit.session, created.id, done=["pay", "ship", "thank"], waiting={}, failed=[])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"done": []}, "  done: not expected: pay\n"),
        ({"done": ["thank", "order"]}, "  done: missing thank, order; not expected: pay\n"),
        ({"done": ["pay"], "waiting": {}}, "  waiting: not expected: thank for ship\n"),
        (
            {"waiting": {"thank": ["ship", "pay"]}},
            "  waiting: missing thank for pay, ship; not expected: thank for ship\n",
        ),
        ({"waiting": {"thank": ["ship"], "pay": []}}, "  waiting: missing pay for nothing\n"),
        ({"failed": ["ship", "pay"]}, "  failed: missing pay\n"),
        ({"done": [], "failed": []}, "  done: not expected: pay\n  failed: not expected: ship\n"),
    ],
)
def test_what_is_otherwise_is_told(kit: Kit, wrong: Any, told: str) -> None:
    created = made(kit)
    BROKEN.add("ship")
    kit.drain()
    with pytest.raises(AssertionError) as raised:
        assert_flow(kit.session, created.id, **wrong)
    pay, ship, thank = created.task_ids.values()
    assert str(raised.value) == (
        f"Flow {created.id} (order) stands otherwise:\n{told}Its steps:\n  pay ({pay}) succeeded\n"
        f"  ship ({ship}) failed: Fail: no money\n  thank ({thank}) waits for ship"
    )


def test_there_is_no_such_flow(kit: Kit) -> None:
    with pytest.raises(AssertionError, match="no flow 7"):
        assert_flow(kit.session, 7)


def test_a_delay_counts_from_when_the_needs_are_met(kit: Kit) -> None:
    created = made(kit, delay="2h")
    travel("3h", kit.session)
    kit.drain()
    assert_flow(kit.session, created.id, done=["pay"], waiting={"thank": ["ship"]})
    travel("1h", kit.session)
    kit.drain()
    assert_flow(kit.session, created.id, done=["pay"])
    travel("1h", kit.session)
    kit.drain()
    assert_flow(kit.session, created.id, done=["pay", "ship", "thank"])


def test_a_step_that_waits_for_years_still_waits(kit: Kit) -> None:
    created = made(kit)
    travel(timedelta(days=3650), kit.session)
    ship = get_task(kit.session, created.task_ids["ship"])
    assert ship is not None
    assert (ship.waits_for, ship.held) == (1, False)
    drain(kit.session, registry=kit.registry).assert_succeeded()
    found = get_flow(kit.session, created.id)
    assert found is not None
    assert found.state is FlowState.SUCCEEDED


def test_a_step_that_expires_while_it_waits_is_a_failure(kit: Kit) -> None:
    created = made(kit, expires_at=datetime.now(UTC) + timedelta(hours=1))
    travel("2h", kit.session)
    kit.drain()
    assert_flow(kit.session, created.id, done=["pay"], failed=["ship"])


def test_the_mixin_and_async_tests_assert_flows(kit: Kit, database_url: str) -> None:
    created = made(kit)
    test = TasksTestMixin()
    test.tasks_session = kit.session
    test.assert_flow(created.id, waiting={"ship": ["pay"], "thank": ["pay", "ship"]})

    async def scene(session: Any) -> None:
        with pytest.raises(AssertionError, match="no flow 7"):
            await aassert_flow(session, 7)

    in_async_session(database_url, scene)


def test_a_step_that_waits_for_an_event_is_asserted_sent_and_timed_out(kit: Kit) -> None:
    created = made(kit, more=event("order:7/ok", timeout="2d"))
    kit.drain()
    waiting = {"ship": ["event order:7/ok"], "thank": ["ship"]}
    assert_flow(kit.session, created.id, done=["pay"], waiting=waiting, failed=[])
    with pytest.raises(AssertionError, match=r"for event order:7/ok until [\d-]+ [\d:]+Z \(in"):
        assert_flow(kit.session, created.id, waiting={})
    travel("47h", kit.session)
    kit.drain()
    assert_flow(kit.session, created.id, waiting=waiting)
    travel("1h", kit.session)
    kit.drain().assert_succeeded()

    created = made(kit, more=event("order:8/ok", timeout="2d"))
    kit.drain()
    assert send_event(kit.session, "order:8/ok")
    kit.drain().assert_succeeded()
    assert_flow(kit.session, created.id, done=["pay", "ship", "thank"], waiting={}, failed=[])


def test_a_run_that_waits_for_an_event_goes_on_in_a_drain(kit: Kit) -> None:
    got: list[Any] = []

    @kit.handler("pickup")
    def pickup(ctx: Any, payload: Any) -> None:
        got.append(ctx.wait_event("pickup:7", timeout="5d"))
        got.append(ctx.wait_event("pickup:8", timeout="5d"))

    task_id = create_task(kit.session, "pickup")
    kit.drain()
    assert got == []
    assert send_event(kit.session, "pickup:7", {"at": "noon"})
    kit.drain()
    assert got == [{"at": "noon"}]
    travel("5d", kit.session)
    kit.drain()
    assert got == [{"at": "noon"}, {"at": "noon"}, None]
    task = get_task(kit.session, task_id)
    assert (task.state, task.failures, task.attempt) == ("SUCCEEDED", 0, 3)


def test_a_drain_runs_the_items_of_a_map(kit: Kit) -> None:
    kit.handler("list")(lambda ctx: [1, 2])
    kit.handler("double")(lambda ctx, payload: 2 * payload["value"])
    kit.handler("read")(lambda ctx: ctx.need("doubled"))
    flow = Flow("f")
    flow.map("doubled", "double", over=flow.step("list", "list"))
    flow.step("read", "read", needs="doubled")
    created = create_flow(kit.session, flow)
    assert kit.drain().of("read").succeeded[0].result == [2, 4]
    assert_flow(kit.session, created.id, done=["list", "doubled", "read"], waiting={}, failed=[])
    for wrong in ({"done": ["doubled[0]"]}, {"waiting": {"doubled[0]": ["list"]}}):
        with pytest.raises(ValueError, match=r"name the map. Given was doubled\[0\]"):
            assert_flow(kit.session, created.id, **wrong)


def test_a_branch_that_is_not_needed_is_no_failure_of_a_drain(kit: Kit) -> None:
    kit.handler("pay")(lambda ctx: None)
    flow = Flow("order")
    sorry = flow.step("sorry", "pay", needs=failed(flow.step("pay", "pay")))
    flow.step("more", "pay", needs=sorry)
    create_flow(kit.session, flow)
    drained = kit.drain().assert_succeeded()
    assert [run.error for run in drained.set_aside] == [None, None]

    create_task(kit.session, "pay", enabled=False)
    with pytest.raises(AssertionError, match="disabled: The task was disabled"):
        kit.drain().assert_succeeded()
