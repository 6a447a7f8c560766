"""Flows that run again from a step: which steps come back, what they wait for, and who refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.errors import TasksError, UniqueKeyTakenError
from tasks_app.domain.flows import CreatedFlow, Flow, FlowState, ended, failed
from tasks_app.domain.operations import Author
from tasks_app.domain.tasks.states import Event
from tasks_app.pool import flow_rerun, flows
from tasks_app.pool.dispatch.set_aside import sweep_all
from tasks_app.pool.fragments.transition_log import LOG, Logged
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.requeue import Requeued, requeue
from tasks_app.runtime.api.flows import create_flow
from tests.factory import claimed_task, row_of, some
from tests.pool.interleave import between, blocked, two
from tests.pool.test_flows import act, flow, starts, words
from tests.pool.test_races_of_flows import consistent
from tests.pool.test_task_groups import by_group, by_one, with_effects


def again(connection: Connection, made: CreatedFlow, name: str) -> list[str]:
    found = some(flow_rerun.lock_flow(connection, made.id))
    done = flow_rerun.rerun(connection, found, name, by=Author("anna"))
    assert consistent(connection)
    return [step.name for step in done]


def state(connection: Connection, made: CreatedFlow) -> FlowState:
    return some(flows.get_flow(connection, made.id)).state


def drained(connection: Connection, made: CreatedFlow, *breaks: str) -> str:
    """Let all that can run end; return the steps in the order in which they ran."""
    ran = ""
    while True:
        sweep_all(connection, 100)
        due = [step for step, word in words(connection, made).items() if word == "due"]
        if not due:
            return ran
        for step in sorted(due):
            event = Event.FAIL if step in breaks else Event.SUCCEED
            by_group(connection, claimed_task(connection, made.task_ids[step]), event)
            ran += step


DIAMOND: dict[str, Any] = {"a": (), "b": "a", "c": "a", "d": ("b", "c"), "e": "d"}
ORDERS: dict[str, tuple[str, dict[str, Any], str, str, str, str]] = {
    "the middle of a flow that succeeded": (
        "wait", DIAMOND, "", "b", "bde", "success, due, success, waits 1, waits 1"),
    "the first step": (
        "wait", DIAMOND, "", "a", "abcde", "due, waits 1, waits 1, waits 2, waits 1"),
    "the last step": (
        "wait", DIAMOND, "", "e", "e", "success, success, success, success, due"),
    "a step that failed": (
        "wait", DIAMOND, "b", "b", "bde", "success, due, success, waits 1, waits 1"),
    "a step beside the one that failed": (
        "wait", DIAMOND, "b", "c", "cde", "success, failure, due, waits 2, waits 1"),
    "the last step, which failed": (
        "wait", DIAMOND, "e", "e", "e", "success, success, success, success, due"),
    "a step with one that was not needed": (
        "wait", {"a": (), "b": "a", "s": failed("b"), "t": "s"}, "",
        "b", "bst", "success, due, waits 1, waits 1"),
    "a step with one that ran for its failure": (
        "wait", {"a": (), "b": "a", "s": failed("b"), "t": "s"}, "b",
        "b", "bst", "success, due, waits 1, waits 1"),
    "not what can still never start": (
        "wait", {"a": (), "b": (), "s": (failed("a"), ended("b")), "t": "s"}, "",
        "b", "b", "success, due, unneeded, unneeded"),
    "nor what needs that": (
        "wait", {"a": (), "s": failed("a"), "b": (), "t": ("s", "b"), "u": ended("t")}, "",
        "b", "b", "success, unneeded, due, unneeded, success"),
    "one that is not needed itself": (
        "wait", {"a": (), "s": failed("a"), "t": "s"}, "", "s", "st", "success, due, waits 1"),
    "what a failure had cancelled": (
        "cancel", {"a": (), "b": "a", "x": "a", "y": ("x", "b"), "s": failed("x")}, "a",
        "a", "abxys", "due, waits 1, waits 1, waits 2, waits 1"),
    "not what another failure had cancelled": (
        "cancel", {"a": (), "f": (), "x": "a", "y": "f", "s": ended("f")}, "f",
        "s", "s", "success, failure, unneeded, unneeded, due"),
}  # fmt: skip
"""What failed in the first round, where the flow runs again, what comes back and how it is then."""


@pytest.mark.parametrize("case", ORDERS.values(), ids=ORDERS)
def test_a_step_and_what_hangs_on_it_come_back(connection: Connection, case) -> None:
    on_failure, needs, breaks, name, back, expected = case
    made = flow(connection, on_failure=on_failure, **needs)
    drained(connection, made, *breaks)
    assert sorted(again(connection, made, name)) == sorted(back)
    told = dict(zip(needs, expected.split(", "), strict=True))
    assert words(connection, made) == told
    for step, word in told.items():
        assert starts(connection, made.task_ids[step]) == (word == "due"), step


COUNTED = text("SELECT succeeded, failed, total, outcome FROM task_group WHERE id = :id")


@pytest.mark.parametrize("breaks", ["", "b", "e"])
@pytest.mark.parametrize("name", "abcde")
def test_a_flow_counts_what_runs_again_once(connection: Connection, name: str, breaks: str) -> None:
    made = flow(connection, **DIAMOND)
    drained(connection, made, *breaks)
    if breaks == "b" and name in "de":
        with pytest.raises(TasksError, match=r"waits for [bd]\."):
            again(connection, made, name)
        return
    again(connection, made, name)
    assert state(connection, made) in {FlowState.RUNNING, FlowState.STALLED}
    drained(connection, made)
    if state(connection, made) is FlowState.STALLED:
        assert (breaks, name) == ("b", "c")
        requeue(connection, made.task_ids["b"])
        drained(connection, made)
    counted = connection.execute(COUNTED, {"id": made.id}).one()
    assert tuple(counted) == (5, 0, 5, "SUCCEEDED")


SCRIPTS = {
    "what waits counts its needs anew": ("ends:a", "a", "due, due, waits 2, waits 1"),
    "what is held stays held": ("hold ends:a", "a", "due, due, held, waits 2, waits 1"),
    "what was released waits again": ("ends:a ends:b", "a", "due, success, waits 1, waits 1"),
    "what retries waits again": ("ends:a ends:b retry", "a", "due, success, waits 1, waits 1"),
    "a sibling goes on": ("ends:a claim:b", "a", "due, runs, waits 2, waits 1"),
    "a step that has not run": ("", "a", "due, due, waits 2, waits 1"),
    "a step that is held": ("hold:a", "a", "due, due, waits 2, waits 1"),
    "a step that retries": ("retry:a", "a", "due, due, waits 2, waits 1"),
    "a step that was cancelled": ("ends:a ends:b cancel", "d", "success, success, due, waits 1"),
}
"""What was before, where it runs again, and how all are then: d needs a and b, and e needs d."""


@pytest.mark.parametrize("case", SCRIPTS.values(), ids=SCRIPTS)
def test_what_had_not_ended_waits_again(connection: Connection, case) -> None:
    verbs, name, expected = case
    made = flow(connection, a=(), b=(), d=("a", "b"), e="d")
    for verb in verbs.split():
        act(connection, made, verb)
    again(connection, made, name)
    told = words(connection, made)
    assert ", ".join(told[step] for step in "abde") == expected
    assert row_of(connection, made.task_ids[name]).failures == int(verbs == "retry:a")


def test_a_step_that_no_scan_has_skipped_yet_comes_back(connection: Connection) -> None:
    made = flow(connection, x=(), a=(), s=failed("a"), t="s")
    act(connection, made, "ends:a")
    assert words(connection, made)["t"] == "unneeded"
    assert again(connection, made, "a") == ["a", "s", "t"]
    sweep_all(connection, 10)
    assert words(connection, made) == {"x": "due", "a": "due", "s": "waits 1", "t": "waits 1"}
    act(connection, made, "fails:a")
    assert words(connection, made)["s"] == "due"


REFUSED: dict[str, tuple[str, str, str]] = {
    "the step runs": ("claim:a", "a", r"Step a \(task \d+\) runs\. Wait"),
    "one that hangs on it runs": (
        "ends:a ends:b claim", "a", r"Step d \(task \d+\) runs\. Wait"),
    "it waits": ("", "d", r"Step d waits for a, b\. Run"),
    "it waits for a failed one": ("fails:a ends:b", "d", r"Step d waits for a\. Run"),
    "its row was pruned": (
        "ends:a ends:b ends prune", "a", r"Step a \(task \d+\) cannot run again: its row was pr"),
    "there is none": ("", "x", r"has no step 'x'\. Its steps are a, b, d, e\."),
    "another one came back after the end": (
        "ends:a ends:b ends ends:e requeue:b", "d",
        r"Step b \(task \d+\) was requeued after its flow had succeeded, and is PENDING\."),
    "another one has failed after the end": (
        "ends:a ends:b ends ends:e requeue:b fails:b", "d", r"and is FAILED\."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_rerun_is_refused_and_writes_nothing(connection: Connection, case) -> None:
    verbs, name, told = case
    made = flow(connection, a=(), b=(), d=("a", "b"), e="d")
    for verb in verbs.split():
        if verb == "prune":
            connection.execute(text("DELETE FROM task_completed"))
        else:
            act(connection, made, verb)
    before = words(connection, made), state(connection, made)
    with pytest.raises(TasksError, match=told):
        again(connection, made, name)
    assert (words(connection, made), state(connection, made)) == before


@pytest.mark.parametrize("verbs", ["requeue:d", "requeue:d fails", "requeue:d cancel:d"])
def test_what_came_back_after_the_end_may_run_again(connection: Connection, verbs: str) -> None:
    made = flow(connection, **DIAMOND)
    drained(connection, made)
    for verb in verbs.split():
        act(connection, made, verb)
    assert again(connection, made, "d") == ["d", "e"]
    assert tuple(connection.execute(COUNTED, {"id": made.id}).one()) == (3, 0, 5, None)
    assert drained(connection, made) == "de"
    assert tuple(connection.execute(COUNTED, {"id": made.id}).one()) == (5, 0, 5, "SUCCEEDED")


def test_a_step_that_was_skipped_and_ran_after_the_end_has_succeeded(
    connection: Connection,
) -> None:
    made = flow(connection, a=(), s=failed("a"), b=())
    drained(connection, made)
    act(connection, made, "requeue:s")
    act(connection, made, "ends:s")
    assert again(connection, made, "b") == ["b"]
    assert words(connection, made) == {"a": "success", "s": "success", "b": "due"}
    assert tuple(connection.execute(COUNTED, {"id": made.id}).one()) == (2, 0, 3, None)


def test_who_runs_again_and_who_wanted_it_is_kept(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOG, "level", Logged.ALL)
    made = flow(connection, **DIAMOND)
    drained(connection, made)
    key = row_of(connection, made.task_ids["b"], "task_completed").idempotency_key
    again(connection, made, "b")
    row = row_of(connection, made.task_ids["b"])
    assert (row.idempotency_key, row.attempt, row.failures) == (key, 1, 0)
    lines = connection.execute(
        text("SELECT task_id FROM task_transition WHERE event = 'requeue' AND who = 'anna'")
    ).scalars()
    assert sorted(lines) == sorted(made.task_ids[step] for step in "bde")


def keyed(connection: Connection) -> CreatedFlow:
    made = Flow("f")
    made.step("b", "t", needs=made.step("a", "t"))
    return create_flow(connection, made, key="k")


def test_the_key_of_a_flow_may_belong_to_a_newer_one(connection: Connection) -> None:
    older = keyed(connection)
    drained(connection, older)
    newer = keyed(connection)
    assert newer.created
    with pytest.raises(UniqueKeyTakenError, match=f"key 'k' of f is taken by flow {newer.id}"):
        again(connection, older, "b")
    drained(connection, newer)
    assert again(connection, older, "b") == ["b"]
    assert keyed(connection).id == older.id


def test_a_requeue_is_refused_while_a_newer_flow_has_the_key(connection: Connection) -> None:
    older = keyed(connection)
    act(connection, older, "fails:a")
    cancel(connection, older.task_ids["b"])
    assert state(connection, older) is FlowState.FAILED
    newer = keyed(connection)
    with pytest.raises(UniqueKeyTakenError, match=f"key 'k' of f is taken by flow {newer.id}"):
        requeue(connection, older.task_ids["a"])
    drained(connection, newer)
    assert requeue(connection, older.task_ids["a"]) is Requeued.REQUEUED
    assert state(connection, older) is FlowState.RUNNING


def test_a_rerun_waits_for_who_takes_its_key(engine: Engine) -> None:
    with engine.begin() as connection:
        older = keyed(connection)
        drained(connection, older)
    with two(engine) as (a, b):
        newer = keyed(a)

        def refused(connection: Connection) -> None:
            with pytest.raises(TasksError, match=f"by flow {newer.id}"):
                again(connection, older, "b")

        waiting = blocked(engine, b, a, refused)
        a.commit()
        waiting.result()


# -- races
def prepared(engine: Engine, *verbs: str) -> tuple[CreatedFlow, dict[str, Any]]:
    with engine.begin() as connection:
        made = flow(connection, a=(), b=(), d=("a", "b"), e="d")
        for verb in verbs:
            act(connection, made, verb)
        due = [step for step, word in words(connection, made).items() if word == "due"]
        return made, {s: claimed_task(connection, made.task_ids[s]) for s in due if s == "b"}


def ends(by: Any, step: str = "b") -> Callable[..., Any]:
    return lambda connection, made, tasks: by(connection, tasks[step])


def reruns(step: str) -> Callable[..., Any]:
    return lambda connection, made, tasks: again(connection, made, step)


def acts(verb: str) -> Callable[..., Any]:
    return lambda connection, made, tasks: act(connection, made, verb)


def requeues_a(connection: Connection, made: CreatedFlow, tasks: Any) -> None:
    requeue(connection, made.task_ids["a"])


OVER = ["ends:a", "ends:b", "ends", "ends:e"]
MEETINGS: dict[str, tuple[list[str], Any, Any, str, str]] = {
    **{
        f"a rerun and the end of a sibling, {by.__name__}": (
            ["ends:a"], reruns("a"), ends(by),
            "due, success, waits 1, waits 1", "success, success, due, waits 1")
        for by in (by_one, with_effects)
    },
    **{
        f"the end of a sibling, {by.__name__}, and a rerun": (
            ["ends:a"], ends(by), reruns("a"),
            "due, success, waits 1, waits 1", "due, runs, waits 2, waits 1")
        for by in (by_group, by_one, with_effects)
    },
    "a rerun and a requeue": (
        OVER, reruns("b"), acts("requeue:a"),
        "due, due, waits 2, waits 1", "success, success, success, success"),
    "a rerun and a requeue of the same step": (
        ["fails:a", "ends:b"], reruns("a"), requeues_a,
        "due, success, waits 1, waits 1", "due, success, waits 1, waits 1"),
    "a requeue and a rerun of the same step": (
        ["fails:a", "ends:b"], requeues_a, reruns("a"),
        "due, success, waits 1, waits 1", "due, success, waits 1, waits 1"),
}  # fmt: skip
"""What was before, what the first does, what the second does, and how all are after both; if the
first rolls back."""


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("case", MEETINGS.values(), ids=MEETINGS)
def test_a_rerun_and_others_act_in_turn(engine: Engine, case, end: str) -> None:
    before, first, second, *expected = case
    made, tasks = prepared(engine, *before)
    with two(engine) as (a, b):
        first(a, made, tasks)
        waiting = blocked(engine, b, a, lambda connection: second(connection, made, tasks))
        getattr(a, end)()
        waiting.result()
        b.commit()
    with engine.connect() as connection:
        told = words(connection, made)
        assert ", ".join(told[step] for step in "abde") == expected[end == "rollback"]
        assert consistent(connection)


LATE: dict[str, tuple[list[str], str, str, str]] = {
    "a claim": (["ends:a", "ends:b"], "claim", "a", r"Step d .* runs"),
    "a requeue after the end": (OVER, "requeue:a", "b", r"Step a .* is PENDING"),
    "a requeue after the end, and a failure": (
        OVER, "requeue:a fails:a", "b", r"Step a .* is FAILED"),
}  # fmt: skip


@pytest.mark.parametrize("case", LATE.values(), ids=LATE)
def test_a_rerun_waits_for_who_came_first_and_is_refused(engine: Engine, case) -> None:
    before, verbs, name, told = case
    made, _ = prepared(engine, *before)

    def refused(connection: Connection) -> None:
        with pytest.raises(TasksError, match=told):
            again(connection, made, name)

    with two(engine) as (a, b):
        for verb in verbs.split():
            act(a, made, verb)
        waiting = blocked(engine, b, a, refused)
        a.commit()
        waiting.result()


def test_a_task_that_moves_while_a_rerun_looks_is_found(engine: Engine) -> None:
    made, _ = prepared(engine, *OVER)
    with two(engine) as (a, b):
        found = some(flows.get_flow(b, made.id))

        def requeues() -> None:
            act(a, made, "requeue:a")
            a.commit()

        with (
            between(b, requeues, before="FROM task_completed t"),
            pytest.raises(TasksError, match=r"Step a .* is PENDING"),
        ):
            flow_rerun.lock_rows(b, found, {})
