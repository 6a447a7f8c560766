"""What has succeeded of a flow is undone, in reversed order, whoever wants it and whatever runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from tasks_app.domain.errors import InvalidTaskError, TasksError
from tasks_app.domain.flows import Flow, FlowState, StepEnd, failed
from tasks_app.domain.handlers.outcomes import Fail, Skip
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.api.flows import cancel_flow, create_flow, get_flow, rerun_flow
from tasks_app.runtime.api.tasks import requeue_task
from tasks_app.runtime.api.undo import undo_flow
from tests.factory import claimed_task, ending, some
from tests.runtime.bench import Bench


@pytest.fixture
def ran(bench: Bench) -> list[str]:
    """Register ``t``, and ``u``, which undoes it; either fails for a word among ``broken``."""
    told: list[str] = []

    @bench.handler("t", max_attempts=1)
    def t(ctx: Any, payload: Any) -> str:
        if payload["n"] in BROKEN:
            raise Fail("no")
        if payload["n"] in SKIPPED:
            raise Skip("no")
        told.append(payload["n"])
        return payload["n"].upper()

    @bench.handler("u", max_attempts=1)
    def u(ctx: Any, payload: Any) -> None:
        word = f"{payload['payload']['n']}:{payload['result']}"
        if word in BROKEN:
            raise Fail("no")
        told.append(word)

    BROKEN.clear()
    SKIPPED.clear()
    UNDO_BY[:] = [u]
    return told


BROKEN: set[str] = set()
SKIPPED: set[str] = set()
UNDO_BY: list[Any] = []


def flow_of(plain: str = "", **needs: Any) -> Flow:
    """Return a flow of steps that need those, and can be undone but for those in ``plain``."""
    flow = Flow("f")
    for name, of in needs.items():
        flow.step(name, "t", {"n": name}, needs=of, undo=None if name in plain else UNDO_BY[0])
    return flow


DIAMOND: dict[str, Any] = {"a": (), "b": "a", "c": "a", "d": ("b", "c")}


def drained(bench: Bench, ran: list[str]) -> str:
    """Let all run that can; return what ran, sorted where the order does not matter."""
    ran.clear()
    bench.drain()
    return " ".join(ran)


def state(bench: Bench, created: Any) -> FlowState:
    return some(bench.do(get_flow, created.id)).state


def needs(bench: Bench, created: Any) -> dict[str, set[str]]:
    steps = some(bench.do(get_flow, created.id)).steps
    return {s.name: {n.step for n in s.needs} for s in steps if s.name.startswith("undo:")}


def test_a_flow_that_succeeded_is_undone_from_its_end(bench: Bench, ran) -> None:
    created = bench.do(create_flow, flow_of(**DIAMOND))
    bench.drain()
    told = bench.do(undo_flow, created.id, by="ann", why="returned")
    assert (told[0], sorted(told[1:3]), told[3]) == ("d", ["b", "c"], "a")
    assert state(bench, created) is FlowState.RUNNING
    done = drained(bench, ran).split()
    assert (done[0], sorted(done[1:3]), done[3]) == ("d:D", ["b:B", "c:C"], "a:A")
    assert state(bench, created) is FlowState.SUCCEEDED
    assert needs(bench, created) == {
        "undo:d": set(), "undo:b": {"undo:d"}, "undo:c": {"undo:d"},
        "undo:a": {"undo:b", "undo:c"}}  # fmt: skip


def test_an_undo_goes_to_the_queue_of_its_handler(bench: Bench, ran) -> None:
    undo = bench.handler("v", queue="undoing")(lambda ctx, payload: None)
    flow = Flow("f")
    flow.step("a", "t", {"n": "a"}, undo=undo)
    created = bench.do(create_flow, flow)
    bench.drain()
    bench.do(undo_flow, created.id)
    assert bench.rows("SELECT name, queue FROM task_pending") == [("tasks_app.undo", "undoing")]
    bench.execute([bench.sql("SELECT id FROM task_pending")])
    assert bench.rows("SELECT name, queue FROM task_pending") == [("v", "undoing")]


def test_what_has_no_undo_hands_its_needs_on(bench: Bench, ran) -> None:
    created = bench.do(create_flow, flow_of("bc", a=(), b="a", c="b", d="c", x="b"))
    bench.drain()
    bench.do(undo_flow, created.id)
    bench.drain()
    assert needs(bench, created) == {
        "undo:d": set(), "undo:x": set(), "undo:a": {"undo:d", "undo:x"}}  # fmt: skip


@pytest.mark.parametrize("on_failure", ["wait", "cancel", "undo"])
def test_what_has_not_ended_is_cancelled(bench: Bench, ran, on_failure: str) -> None:
    BROKEN.add("c")
    created = bench.do(create_flow, flow_of(**DIAMOND), on_failure=on_failure)
    bench.drain()
    BROKEN.clear()
    told = bench.do(undo_flow, created.id)
    assert ("a" in told) == (on_failure != "undo")  # else it was undone before
    assert "d" not in told
    bench.drain()
    assert [word for word in ran if ":" in word][-1] == "a:A"
    assert ("b:B" in ran) == ("b" in ran)
    assert "d" not in ran
    assert state(bench, created) is FlowState.FAILED


def test_a_second_call_changes_nothing(bench: Bench, ran) -> None:
    created = bench.do(create_flow, flow_of(a=(), b="a"))
    bench.drain()
    assert [bench.do(undo_flow, created.id) for _ in range(2)] == [["b", "a"], []]
    assert drained(bench, ran) == "b:B a:A"
    assert bench.do(undo_flow, created.id) == []
    assert drained(bench, ran) == ""
    assert len(noted(bench)) == 1


def noted(bench: Bench) -> list[Any]:
    return bench.rows("SELECT who, what, ids FROM task_audit WHERE action = 'undo'")


@pytest.mark.parametrize("on_failure", ["wait", "undo"])
@pytest.mark.parametrize("over", [True, False])
def test_who_undid_it_and_why_is_noted(bench: Bench, ran, over: bool, on_failure: str) -> None:
    created = bench.do(create_flow, flow_of(a=()), on_failure=on_failure)
    if over:
        bench.drain()
    bench.do(undo_flow, created.id, by="ann", why="returned")
    undo = some(bench.do(get_flow, created.id)).steps[-1].task_id
    assert noted(bench) == [("ann", {"flow": created.id, "why": "returned"}, [undo])]


def test_a_flow_that_is_undone_runs_no_step_again(bench: Bench, ran) -> None:
    BROKEN.add("b:B")
    created = bench.do(create_flow, flow_of(a=(), b="a"))
    bench.drain()
    bench.do(undo_flow, created.id)
    anew = f"^Flow {created.id} was undone. Create it anew"
    with pytest.raises(TasksError, match=rf"{anew}\.$"):
        bench.do(rerun_flow, created.id, from_="a")
    bench.drain()
    with pytest.raises(TasksError, match=rf"{anew}; or run the undoing again from undo:b\.$"):
        bench.do(rerun_flow, created.id, from_="a")
    BROKEN.clear()
    assert bench.do(rerun_flow, created.id, from_="undo:b") == ["undo:b", "undo:a"]
    assert drained(bench, ran) == "b:B a:A"


def test_a_failure_undoes_by_itself_and_what_needs_it_runs(bench: Bench, ran) -> None:
    BROKEN.add("c")
    flow = flow_of(a=(), c="a", d="c")
    flow.step("sorry", "t", {"n": "sorry"}, needs=failed("c"))
    created = bench.do(create_flow, flow, key="order:7", on_failure="undo")
    bench.drain()
    assert sorted(ran) == ["a", "a:A", "sorry"]
    assert state(bench, created) is FlowState.FAILED
    assert {step.name: step.end for step in some(bench.do(get_flow, created.id)).steps} == {
        "a": StepEnd.SUCCESS, "c": StepEnd.FAILURE, "d": StepEnd.UNNEEDED,
        "sorry": StepEnd.SUCCESS, "undo": StepEnd.SUCCESS, "undo:a": StepEnd.SUCCESS}  # fmt: skip


def test_its_key_is_taken_until_it_is_undone(bench: Bench, ran) -> None:
    BROKEN.update({"c", "b:B"})
    flow = flow_of(a=(), b="a", c="b")
    created = bench.do(create_flow, flow, key="order:7", on_failure="undo")
    bench.drain()
    assert state(bench, created) is FlowState.STALLED
    assert bench.do(create_flow, flow_of(a=()), key="order:7").id == created.id
    BROKEN.clear()
    steps = some(bench.do(get_flow, created.id)).steps
    bench.do(requeue_task, next(step.task_id for step in steps if step.name == "undo:b"))
    assert drained(bench, ran) == "b:B a:A"
    assert state(bench, created) is FlowState.FAILED
    assert bench.do(create_flow, flow_of(a=()), key="order:7").created


def test_a_flow_without_a_success_is_over_at_its_failure(bench: Bench, ran) -> None:
    BROKEN.add("a")
    created = bench.do(create_flow, flow_of("a", a=(), b="a"), on_failure="undo")
    bench.drain()
    assert state(bench, created) is FlowState.FAILED
    assert ran == []


def test_a_cancelled_flow_is_undone_if_a_failure_undoes_it(bench: Bench, ran) -> None:
    created = bench.do(create_flow, flow_of(a=(), b=["a"]), on_failure="undo")
    with bench.engine.begin() as connection:
        task = claimed_task(connection, created.task_ids["a"])
    bench.do(cancel_flow, created.id)
    settle(bench, task)
    assert drained(bench, ran) == "a:None"


def settle(bench: Bench, task: Any) -> None:
    bench.do(settle_one, ending(task))


def test_what_runs_is_undone_if_it_succeeds(bench: Bench, ran) -> None:
    created = bench.do(create_flow, flow_of(a=(), b=()))
    with bench.engine.begin() as connection:
        tasks = {s: claimed_task(connection, created.task_ids[s]) for s in "ab"}
    settle(bench, tasks["a"])
    assert sorted(bench.do(undo_flow, created.id)) == ["a", "b"]
    assert drained(bench, ran) == ""  # it waits for what runs
    settle(bench, tasks["b"])
    assert sorted(drained(bench, ran).split()) == ["a:None", "b:None"]


def test_what_was_skipped_is_not_undone(bench: Bench, ran) -> None:
    SKIPPED.add("b")
    created = bench.do(create_flow, flow_of(a=(), b="a"))
    bench.drain()
    assert bench.do(undo_flow, created.id) == ["a"]
    assert drained(bench, ran) == "a:A"


def test_what_was_skipped_and_succeeded_after_the_end_is_undone(bench: Bench, ran) -> None:
    SKIPPED.add("b")
    created = bench.do(create_flow, flow_of(a=(), b="a", c=failed("a")))
    bench.drain()
    SKIPPED.clear()
    for step in "bc":
        bench.do(requeue_task, created.task_ids[step])
    bench.drain()
    assert sorted(bench.do(undo_flow, created.id)) == ["a", "b", "c"]
    assert sorted(drained(bench, ran).split()) == ["a:A", "b:B", "c:C"]


@pytest.mark.parametrize("how", ["waits", "runs", "failed"])
def test_what_came_back_after_the_end_is_to_end_first(bench: Bench, ran, how: str) -> None:
    created = bench.do(create_flow, flow_of(a=(), b="a"))
    bench.drain()
    bench.do(requeue_task, created.task_ids["b"])
    if how == "runs":
        with bench.engine.begin() as connection:
            task = claimed_task(connection, created.task_ids["b"])
    if how == "failed":
        BROKEN.add("b")
        bench.drain()
        BROKEN.clear()
    with pytest.raises(TasksError, match=r"Step b .* was requeued after its flow had succeeded"):
        bench.do(undo_flow, created.id)
    assert state(bench, created) is FlowState.SUCCEEDED
    if how == "runs":
        settle(bench, task)
    if how == "failed":
        bench.do(requeue_task, created.task_ids["b"])
    bench.drain()
    bench.do(undo_flow, created.id)
    assert sorted(word[0] for word in drained(bench, ran).split()) == ["a", "b"]
    assert state(bench, created) is FlowState.SUCCEEDED


def test_what_was_pruned_cannot_be_undone(bench: Bench, ran) -> None:
    created = bench.do(create_flow, flow_of(a=()))
    bench.drain()
    bench.sql("DELETE FROM task_completed")
    bench.do(undo_flow, created.id)
    bench.drain()
    step = next(s for s in some(bench.do(get_flow, created.id)).steps if s.name == "undo")
    assert "Step a" in str(step.error)
    assert "was pruned" in str(step.error)


def test_a_payload_and_a_result_as_large_as_can_be_reach_the_undo(bench: Bench, ran) -> None:
    most = 64 * 1024
    bench.handler("large")(lambda ctx, payload: "r" * (most - 2))
    flow = Flow("f")
    flow.step("a", "large", {"n": "p" * (most - 9)}, undo=UNDO_BY[0])
    created = bench.do(create_flow, flow)
    bench.drain()
    bench.do(undo_flow, created.id)
    assert len(drained(bench, ran)) == 2 * most - 10


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no handler": (lambda: Flow("f").step("a", "t", undo=7), r"steps\.a\.undo is of type int"),
    "a name of ours": (lambda: Flow("f").step("undo", "t"), r"step is 'undo'\. Allowed: another"),
    "another": (lambda: Flow("f").step("undo:a", "t"), "another name"),
    "a long name": (lambda: Flow("f").step("a" * 96, "t", undo="u"), "up to 95 characters"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_meant_is_refused(case) -> None:
    make, told = case
    with pytest.raises(InvalidTaskError, match=told):
        make()


def test_a_flow_without_undo_is_not_undone(bench: Bench, ran) -> None:
    created = bench.do(create_flow, flow_of("a", a=()))
    with pytest.raises(TasksError, match=f"undo=. .*tasks-app flows cancel {created.id}, or"):
        bench.do(undo_flow, created.id)
    with pytest.raises(TasksError, match="no flow 999"):
        bench.do(undo_flow, 999)


@pytest.mark.parametrize("verb", [undo_flow, partial(rerun_flow, from_="a")])
def test_a_flow_is_changed_in_a_transaction(bench: Bench, ran, verb: Any) -> None:
    created = bench.do(create_flow, flow_of(a=()))
    bench.drain()
    with bench.engine.connect() as connection:
        own = connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(TasksError, match="needs a transaction"):
            verb(own, created.id)
    assert state(bench, created) is FlowState.SUCCEEDED


def test_what_undoes_a_step_has_its_business_key(bench: Bench, ran) -> None:
    flow = Flow("f")
    flow.step("a", "t", {"n": "a"}, undo=UNDO_BY[0], biz_key="order:7")
    created = bench.do(create_flow, flow)
    bench.drain()
    bench.do(undo_flow, created.id)
    bench.drain()
    keys = "SELECT string_agg(name, ' ' ORDER BY id) FROM task_completed WHERE biz_key = 'order:7'"
    assert bench.do(lambda s: s.execute(text(keys)).scalar_one()) == "t tasks_app.undo u"
