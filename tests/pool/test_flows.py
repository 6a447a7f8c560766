"""Flows: an end of a step releases what waits for it, whichever way and whoever it meets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from psycopg.pq import ExecStatus
from sqlalchemy import Connection, text

from tasks_app.domain.flows import CreatedFlow, Flow, Need, ended, failed
from tasks_app.domain.groups import StartedTask
from tasks_app.domain.operations import Amendment, BulkAction
from tasks_app.domain.tasks.run import Cause, ClaimedTask
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool import events, flows
from tasks_app.pool.dispatch.set_aside import sweep, sweep_all
from tasks_app.pool.runs import settle
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import rescue_expired
from tasks_app.pool.runs.settle import settle_group, settle_one
from tasks_app.pool.runs.settle_success import started_by_answer, success_statement
from tasks_app.pool.task_groups import get_group
from tasks_app.pool.tasks.amend import amend, spread
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.requeue import Requeued, requeue
from tasks_app.runtime.api.flows import create_flow
from tests.factory import LEASE, claimed_task, claimer, ending, row_of, succeed
from tests.pool.database import Ask, Verb, statistics
from tests.pool.runs.racing import FILL, OVER, RUNNING, STEPS_A_ROW
from tests.pool.runs.racing import some_outcome as ending_of_plans_of_flows
from tests.pool.test_task_groups import (
    by_group,
    by_one,
    cancelled,
    cancelled_with_others,
    expired,
    member_succeeds,
    nobody_in_the_way,
    released,
    released_alone,
    rescued,
    with_effects,
)

CAUSE = Cause("ValueError", "no")
HOUR = timedelta(hours=1)


def flow(connection: Connection, *, on_failure: str = "wait", **needs: Any) -> CreatedFlow:
    """Create steps with these needs; a list has needs and options of the task."""
    made = Flow("f")
    for name, given in needs.items():
        of, options = given if isinstance(given, list) else (given, {})
        made.step(name, "t", needs=of, **options)
    return create_flow(connection, made, on_failure=on_failure)


WORDS = text("""
    SELECT s.step, CASE WHEN s.ended IS NOT NULL THEN s.ended WHEN p.state = 'RUNNING' THEN 'runs'
        WHEN p.waits_for IS NOT NULL
            THEN CASE WHEN p.waits_for < 0 THEN 'held, ' ELSE '' END || 'waits ' || abs(p.waits_for)
        WHEN p.held_due_at IS NOT NULL THEN 'held'
        WHEN greatest(p.due_at, p.scan_at) <= clock_timestamp() THEN 'due' ELSE 'later' END
    FROM task_flow_step s LEFT JOIN task_pending p ON p.id = s.task_id
    WHERE s.flow_id = :id""")


def words(connection: Connection, made: CreatedFlow) -> dict[str, str]:
    """How each step is, as its rows say."""
    return dict(connection.execute(WORDS, {"id": made.id}).all())


def starts(connection: Connection, task_id: int) -> bool:
    """Tell whether a worker may claim it now; it is not claimed."""
    with connection.begin_nested() as savepoint:
        found = claim(connection, [task_id], claimer(), uuid4())
        savepoint.rollback()
    return bool(found)


# -- ways out of the pool
def of_run(by: Callable[..., None], event: Event = Event.SUCCEED) -> Callable[..., None]:
    return lambda connection, task_id: by(connection, claimed_task(connection, task_id), event)


def skipped(connection: Connection, task_id: int) -> None:
    amend(connection, BulkAction.DISABLE, [task_id])
    assert sweep(connection, [task_id]) == {task_id: State.SKIPPED}


def test_a_step_that_is_not_needed_was_disabled_by_nobody(connection: Connection) -> None:
    made = flow(connection, a=(), bad=failed("a"))
    of_run(by_one)(connection, made.task_ids["a"])
    bad = made.task_ids["bad"]
    assert sweep(connection, [bad]) == {bad: State.SKIPPED}
    row = row_of(connection, bad, "task_completed")
    assert (row.sub_status, row.error) == ("not needed any more", None)


def rescued_from_an_old_lease(connection: Connection, task_id: int) -> None:
    claimed_task(connection, task_id, lease=OVER)
    assert rescue_expired(connection, lease=LEASE, max_crashes=1) == {task_id: State.FAILED}


WAYS_OUT: dict[str, tuple[Callable[..., None], str]] = {
    "success of many": (of_run(by_group), "success"),
    "success of one": (of_run(by_one), "success"),
    "success with effects": (of_run(with_effects), "success"),
    "skip of a run": (of_run(by_group, Event.SKIP), "success"),
    "skip of one run": (of_run(by_one, Event.SKIP), "success"),
    "sweep of a disabled one": (skipped, "success"),
    "failure of many": (of_run(by_group, Event.FAIL), "failure"),
    "failure of one": (of_run(by_one, Event.FAIL), "failure"),
    "end of a cancelled run": (of_run(by_group, Event.CANCEL), "failure"),
    "cancel": (cancelled, "failure"),
    "cancel of many": (cancelled_with_others, "failure"),
    "sweep of an expired one": (expired, "failure"),
    "release of a cancelled run": (released, "failure"),
    "release of one cancelled run": (released_alone, "failure"),
    "rescue of claims": (rescued, "failure"),
    "rescue of a lease that is over": (rescued_from_an_old_lease, "failure"),
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_each_way_out_of_the_pool_releases_what_waits(connection: Connection, way: str) -> None:
    end, how = WAYS_OUT[way]
    made = flow(connection, a=(), x=(), good="a", bad=failed("a"), any=ended("a"), both=("a", "x"))
    end(connection, made.task_ids["a"])
    expected = {
        "success": {"good": "due", "bad": "unneeded", "both": "waits 1"},
        "failure": {"good": "waits 1", "bad": "due", "both": "waits 2"},
    }
    assert words(connection, made) == {"a": how, "x": "due", "any": "due", **expected[how]}
    for step, word in words(connection, made).items():
        assert starts(connection, made.task_ids[step]) == (word == "due"), step


@pytest.mark.parametrize("event", [Event.RETRY, Event.SNOOZE])
def test_what_comes_back_releases_nothing(connection: Connection, event: Event) -> None:
    made = flow(connection, a=(), b=ended("a"))
    by_group(connection, claimed_task(connection, made.task_ids["a"]), event)
    assert words(connection, made) == {"a": "due", "b": "waits 1"}


def test_steps_of_many_flows_end_in_one_statement(connection: Connection) -> None:
    all_of_them = [flow(connection, a=(), b=(), c=("a", "b"), d="c") for _ in range(4)]
    plain = claimed_task(connection)
    tasks = [claimed_task(connection, f.task_ids[s]) for f in all_of_them for s in "ab"]
    left = tasks.pop()
    started: list[StartedTask] = []
    done = settle_group(connection, [ending(t) for t in (plain, *tasks)], started=started)
    assert len(done) == 8
    assert [words(connection, f)["c"] for f in all_of_them] == ["due"] * 3 + ["waits 1"]
    assert {s.id for s in started} == {f.task_ids["c"] for f in all_of_them[:3]}
    assert words(connection, all_of_them[3])["b"] == "runs"
    assert left.task_id == all_of_them[3].task_ids["b"]


def answered(connection: Connection, settlement: Any) -> list[StartedTask]:
    statement = success_statement(settlement)
    driver = connection.connection.driver_connection
    answer = driver.pgconn.exec_params(statement.sql, statement.values, statement.types)
    assert answer.status == ExecStatus.TUPLES_OK
    return started_by_answer(answer.get_value(0, 0))


@pytest.mark.parametrize("way", ["many", "one", "with effects"])
def test_whoever_ends_a_step_is_told_what_starts(connection: Connection, way: str) -> None:
    made = flow(
        connection, a=(), x=(), now=["a", {"queue": "q"}], later=["a", {"delay": "1h"}],
        open=("a", "x"), off=["a", {"enabled": False}], fair=["a", {"fair_key": "k"}], hold="a",
    )  # fmt: skip
    amend(connection, BulkAction.HOLD, [made.task_ids["hold"]])
    task, started = claimed_task(connection, made.task_ids["a"]), []
    if way == "many":
        settle_group(connection, [ending(task)], started=started)
    elif way == "one":
        settle_one(connection, ending(task), started=started)
    else:
        started = answered(connection, ending(task))
    ids = made.task_ids
    expected = [(ids["now"], "q", 0.0), (ids["later"], "default", HOUR.total_seconds())]
    assert sorted(map(tuple, started)) == expected


@pytest.mark.parametrize("way", [by_group, by_one, succeed])
def test_a_result_is_kept_as_long_as_the_flow(connection: Connection, way: Any) -> None:
    made = flow(connection, a=(), b="a")
    settlement = ending(claimed_task(connection, made.task_ids["a"]), result='{"n": 7}')
    if way is succeed:
        assert succeed(connection, settlement)
    elif way is by_one:
        settle_one(connection, settlement)
    else:
        settle_group(connection, [settlement])
    connection.execute(text("DELETE FROM task_completed"))
    (needed,) = flows.needed_steps(connection, made.task_ids["b"]).values()
    assert (needed.step, needed.end, needed.result) == ("a", "success", {"n": 7})
    assert flows.get_flow(connection, made.id).steps[0].result == {"n": 7}


# -- runs that go back until needs are met that they have entered
def awaits(connection: Connection, task: ClaimedTask, by: str, **more: Any) -> State | None:
    """End a run so that it waits for its needs, in one of the two ways."""
    back = ending(task, Event.SNOOZE, awaits_needs=True, wait=timedelta(0), cause=CAUSE)
    if by == "one":
        return settle_one(connection, back, **more)
    return settle_group(connection, [back], **more).get(task.task_id)


def entered(connection: Connection, *needs: Need) -> tuple[CreatedFlow, Any]:
    """Let m run, and enter needs of its own; a step d needs m."""
    made = flow(connection, a=(), b=(), m=(), d="m")
    task = claimed_task(connection, made.task_ids["m"])
    flows.add_needs(connection, task.task_id, needs)
    return made, task


AWAITING = {
    "needs that are open": ("m -> waits 2; ends:b -> waits 1; ends:a -> due"),
    "a need that ended before": ("ends:a -> runs; m -> waits 1; ends:b -> due"),
    "all needs ended before": ("ends:a -> runs; ends:b -> runs; m -> due"),
    "a need that failed before":
        "fails:a -> runs; ends:b -> runs; m -> waits 1; requeue:a -> waits 1; ends:a -> due",
    "a need that was requeued meanwhile":
        "ends:a -> runs; requeue:a -> runs; m -> waits 2; ends:b -> waits 1; ends:a -> due",
    "a hold": "m -> waits 2; hold:m -> held, waits 2; ends:a -> held, waits 1; ends:b -> held",
    "a cancellation": "cancel:m -> runs; m -> failure; requeue:m -> waits 2",
}  # fmt: skip


@pytest.mark.parametrize("by", ["one", "many"])
@pytest.mark.parametrize("script", AWAITING.values(), ids=AWAITING)
def test_a_run_goes_back_until_its_needs_are_met(
    connection: Connection, script: str, by: str
) -> None:
    made, task = entered(connection, Need("a"), Need("b"))
    for verb, word in (each.split(" -> ") for each in script.split("; ")):
        if verb == "m":
            assert awaits(connection, task, by) is not None
        else:
            act(connection, made, verb)
        assert (verb, words(connection, made)["m"]) == (verb, word)
        assert starts(connection, made.task_ids["m"]) == (word == "due"), verb
    assert words(connection, made)["d"] == "waits 1"


@pytest.mark.parametrize("by", ["one", "many"])
def test_who_ends_the_last_need_is_told_that_the_run_starts_again(
    connection: Connection, by: str
) -> None:
    made, task = entered(connection, Need("a"))
    connection.execute(text("UPDATE task_flow_step SET delay = '1h' WHERE step = 'm'"))
    assert awaits(connection, task, by) is State.PENDING
    row = row_of(connection, task.task_id)
    assert (row.failures, row.crashes, row.attempt, row.owner) == (0, 0, 1, None)
    started: list[StartedTask] = []
    settle_one(connection, ending(claimed_task(connection, made.task_ids["a"])), started=started)
    assert [s.id for s in started] == [task.task_id]
    assert starts(connection, task.task_id)  # its delay was over before its first run


def test_runs_that_wait_and_others_end_in_one_call(connection: Connection) -> None:
    made, task = entered(connection, Need("a"))
    other, a = (claimed_task(connection, made.task_ids[step]) for step in "ba")
    back = ending(task, Event.SNOOZE, awaits_needs=True, wait=timedelta(0), cause=CAUSE)
    soon = ending(other, Event.RETRY, failures=1, cause=CAUSE, wait=HOUR)
    assert len(settle_group(connection, [back, soon, ending(a)])) == 3
    expected = {"a": "success", "b": "later", "m": "due", "d": "waits 1"}
    assert words(connection, made) == expected


def test_a_run_of_no_flow_that_waits_for_needs_is_due(connection: Connection) -> None:
    task = claimed_task(connection)
    assert awaits(connection, task, "many") is State.PENDING
    assert starts(connection, task.task_id)


# -- operators and requeues
def act(connection: Connection, made: CreatedFlow, verb: str) -> None:
    """Do what the verb says with its step, which is d if it names none."""
    what, _, name = verb.partition(":")
    task_id = made.task_ids.get(name or "d")
    later = datetime.now(UTC) + HOUR
    match what:
        case "ends" | "fails":
            event = Event.SUCCEED if what == "ends" else Event.FAIL
            by_group(connection, claimed_task(connection, task_id), event)
        case "claim":
            claimed_task(connection, task_id)
        case "retry":
            task = claimed_task(connection, task_id)
            retry = ending(task, Event.RETRY, failures=1, cause=CAUSE, wait=HOUR)
            assert settle_group(connection, [retry])
        case "cancel":
            cancel(connection, task_id)
        case "requeue":
            assert requeue(connection, task_id) is Requeued.REQUEUED
        case "sweep":
            sweep_all(connection, 10)
        case "later":
            amend(connection, BulkAction.RESCHEDULE, [task_id], Amendment(at=later))
        case "move":
            amend(connection, BulkAction.MOVE, [task_id], Amendment(to_queue="slow"))
        case "spread run now" | "spread release":
            action = BulkAction(what.removeprefix("spread ").replace(" ", "-"))
            spread(connection, action, [task_id], timedelta(minutes=1), None)
        case _:
            amend(connection, BulkAction(what.replace(" ", "-")), [task_id])


SCRIPTS = {
    "a hold survives":
        "hold -> held, waits 2; ends:a -> held, waits 1; ends:b -> held; release -> due",
    "a release is no need":
        "hold -> held, waits 2; release -> waits 2; ends:a -> waits 1; ends:b -> due",
    "a hold between two ends":
        "ends:a -> waits 1; hold -> held, waits 1; release -> waits 1; ends:b -> due",
    "held twice, released twice":
        "hold -> held, waits 2; hold -> held, waits 2; release -> waits 2; release -> waits 2; "
        "ends:a -> waits 1; ends:b -> due",
    "a rated release is no need":
        "hold -> held, waits 2; spread release -> waits 2; ends:a -> waits 1; ends:b -> due",
    "a rated release of what is held alone":
        "hold -> held, waits 2; ends:a -> held, waits 1; ends:b -> held; spread release -> due",
    "run now does nothing":
        "run now -> waits 2; spread run now -> waits 2; ends:a -> waits 1; run now -> waits 1; "
        "ends:b -> due",
    "run now does nothing while it is held": "hold -> held, waits 2; run now -> held, waits 2",
    "run now once its needs are met":
        "hold -> held, waits 2; ends:a -> held, waits 1; ends:b -> held; run now -> due",
    "another date": "later -> waits 2; ends:a -> waits 1; ends:b -> later; run now -> due",
    "another date while it is held":
        "hold -> held, waits 2; later -> held, waits 2; ends:a -> held, waits 1; "
        "release -> waits 1; ends:b -> later",
    "another queue": "move -> waits 2; ends:a -> waits 1; ends:b -> due",
    "disabled": "disable -> waits 2; ends:a -> waits 1; ends:b -> due; sweep -> success",
    "disabled and enabled":
        "disable -> waits 2; sweep -> waits 2; enable -> waits 2; ends:a -> waits 1; "
        "ends:b -> due; sweep -> due",
    "cancelled and requeued":
        "cancel -> failure; ends:a -> failure; requeue -> waits 1; ends:b -> due",
    "a need fails and is mended":
        "fails:a -> waits 2; ends:b -> waits 1; requeue:a -> waits 1; ends:a -> due",
    "a need fails twice":
        "fails:a -> waits 2; requeue:a -> waits 2; fails:a -> waits 2; ends:b -> waits 1; "
        "requeue:a -> waits 1; ends:a -> due",
    "a need that was met is open again":
        "ends:a -> waits 1; requeue:a -> waits 2; ends:a -> waits 1; ends:b -> due",
    "a need that was met is open again while it is held":
        "hold -> held, waits 2; ends:a -> held, waits 1; requeue:a -> held, waits 2; "
        "release -> waits 2; ends:a -> waits 1; ends:b -> due",
    "what was released and has not started waits again":
        "ends:a -> waits 1; ends:b -> due; requeue:a -> waits 1; requeue:b -> waits 2; "
        "ends:a -> waits 1; ends:b -> due",
    "what was released and is held waits again":
        "ends:a -> waits 1; ends:b -> due; hold -> held; requeue:a -> held, waits 1; "
        "ends:a -> held; release -> due",
    "what waits to be tried again waits for a need, too":
        "ends:a -> waits 1; ends:b -> due; retry -> later; requeue:a -> waits 1; "
        "ends:a -> later",
    "what runs goes on":
        "ends:a -> waits 1; ends:b -> due; claim -> runs; requeue:a -> runs; ends:a -> runs",
    "what has ended stays":
        "ends:a -> waits 1; ends:b -> due; fails -> failure; requeue:a -> failure; "
        "requeue -> waits 1; ends:a -> due",
    "requeued in the other order":
        "ends:a -> waits 1; ends:b -> due; fails -> failure; requeue -> due; "
        "requeue:a -> waits 1; ends:a -> due",
}  # fmt: skip
"""What is done, and how d, which needs a and b, is then."""


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_step_with_open_needs_waits_whatever_else_is_done(
    connection: Connection, script: str
) -> None:
    made = flow(connection, a=(), b=(), d=("a", "b"), e="d")
    for verb, word in (each.split(" -> ") for each in script.split("; ")):
        act(connection, made, verb)
        assert (verb, words(connection, made)["d"]) == (verb, word)
        able = word == "due" and row_of(connection, made.task_ids["d"]).enabled
        assert starts(connection, made.task_ids["d"]) == able, verb


OTHER_ENDS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "unneeded steps of unneeded steps": (
        "wait", {"a": (), "b": failed("a"), "c": "b", "d": failed("c"), "e": ended("d")},
        "ends:a",
        "success, unneeded, unneeded, unneeded, due",
    ),
    "an unneeded step that is requeued runs, as its need can never be met": (
        "wait", {"x": (), "a": (), "b": failed("a"), "c": ended("b")},
        "ends:a sweep requeue:b",
        "due, success, due, waits 1",
    ),
    "an unneeded step whose need is requeued is not needed again": (
        "wait", {"x": (), "a": (), "b": failed("a")}, "ends:a requeue:a fails:a",
        "due, failure, unneeded",
    ),
    "a step for a failure that has not started waits for the next one": (
        "wait", {"a": (), "b": failed("a")}, "fails:a requeue:a",
        "due, waits 1",
    ),
    "a step for a failure that was mended is not needed": (
        "wait", {"a": (), "b": failed("a")}, "fails:a requeue:a ends:a",
        "success, unneeded",
    ),
    "a step that needs two ends of which one is unneeded": (
        "wait", {"a": (), "b": failed("a"), "c": (ended("b"), "a")}, "ends:a",
        "success, unneeded, due",
    ),
    "a step that is held and not needed": (
        "wait", {"a": (), "b": failed("a")}, "hold:b ends:a sweep",
        "success, unneeded",
    ),
    "a cancelled step whose need is requeued is not needed again": (
        "cancel", {"x": (), "a": (), "b": "x", "y": ended("b")},
        "ends:x fails:a requeue:x",
        "due, failure, unneeded, due",
    ),
    "cancel reaches what waits to be tried again": (
        "cancel", {"a": (), "b": (), "c": "b"}, "retry:b fails:a",
        "failure, unneeded, unneeded",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER_ENDS.values(), ids=OTHER_ENDS)
def test_what_an_end_means_for_all_others(connection: Connection, case) -> None:
    on_failure, needs, verbs, expected = case
    made = flow(connection, on_failure=on_failure, **needs)
    for verb in verbs.split():
        act(connection, made, verb)
    told = dict(zip(needs, expected.split(", "), strict=True))
    assert words(connection, made) == told
    sweep_all(connection, 10)
    assert words(connection, made) == told
    left = connection.execute(text("SELECT count(*) FROM task_pending WHERE NOT enabled")).scalar()
    assert left == 0  # what is not needed has left the pool


def asked(connection: Connection, made: CreatedFlow, *steps: str) -> list[bool]:
    rows = [row_of(connection, made.task_ids[step]) for step in steps]
    return [row.cancel_requested_at is not None for row in rows]


def test_cancel_asks_what_runs_to_stop_unless_it_needs_a_failure(connection: Connection) -> None:
    made = flow(connection, on_failure="cancel", a=(), b=(), c=(), s=failed("b"))
    tasks = {step: claimed_task(connection, made.task_ids[step]) for step in "abc"}
    by_group(connection, tasks["b"], Event.FAIL)
    assert asked(connection, made, "a", "c") == [True, True]
    assert words(connection, made)["s"] == "due"
    act(connection, made, "claim:s")
    by_group(connection, tasks["a"], Event.FAIL)
    assert asked(connection, made, "c", "s") == [True, False]


@pytest.mark.parametrize("first", [True, False])
def test_what_ends_and_comes_back_in_one_statement(connection: Connection, first: bool) -> None:
    """A sibling that comes back in the statement of the failure is cancelled, one that ends not."""
    order = "abcde" if first else "edcba"
    made = flow(connection, on_failure="cancel", **dict.fromkeys(order, ()), z=("b", "c"))
    tasks = {step: claimed_task(connection, made.task_ids[step]) for step in order}
    soon = ending(tasks["c"], Event.RETRY, failures=1, cause=CAUSE, wait=HOUR)
    others = [
        ending(tasks["a"], Event.FAIL, cause=CAUSE),
        ending(tasks["d"], Event.FAIL, cause=CAUSE),
    ]
    with nobody_in_the_way(connection):
        done = settle_group(connection, [*others, ending(tasks["b"]), soon])
    assert len(done) == 4
    expected = ("failure", "success", "unneeded", "failure", "runs", "unneeded")
    assert words(connection, made) == dict(zip("abcdez", expected, strict=True))
    assert asked(connection, made, "e") == [True]
    sweep_all(connection, 10)
    by_group(connection, tasks["e"])
    group = get_group(connection, made.id)
    assert (group.succeeded, group.failed) == (4, 2)


# -- dates
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "date"),
    [
        ({}, NOON),
        ({"delay": "1h"}, NOON + HOUR),
        ({"run_at": NOON + 2 * HOUR}, NOON + 2 * HOUR),
        ({"expires_at": NOON + HOUR}, NOON),
        ({"delay": "1h", "expires_at": NOON + 2 * HOUR}, NOON + HOUR),
    ],
)
def test_a_delay_counts_from_the_release(connection: Connection, options, date) -> None:
    made = flow(connection, a=(), b=["a", options])
    settle_group(connection, [ending(claimed_task(connection, made.task_ids["a"]))], now=NOON)
    row = row_of(connection, made.task_ids["b"])
    assert (row.due_at, row.scan_at, row.held_due_at, row.waits_for) == (date, date, None, None)


@pytest.mark.parametrize("held", [False, True])
def test_a_step_that_waits_for_too_long_expires(connection: Connection, held: bool) -> None:
    made = flow(connection, a=(), b=["a", {"expires_at": NOON}], c=failed("b"), d="b")
    if held:
        act(connection, made, "hold:b")
    late, ids = NOON + HOUR, [made.task_ids["b"]]
    assert sweep_all(connection, 10, now=NOON - HOUR) == {}
    assert claim(connection, ids, claimer(), uuid4(), now=late) == []
    assert sweep_all(connection, 10, now=late) == {ids[0]: State.EXPIRED}
    found = words(connection, made)
    assert (found["b"], found["c"], found["d"]) == ("failure", "later", "waits 1")


# -- plans
ENDED = 7_997  # the first step of the last flow
MANY = 2_000  # flows of 4 steps, in which the first and the second need nothing
FULL = (
    FILL
    + f"""
INSERT INTO task_group (id, total, flow, when_failed) VALUES (0, 2, 'small', 'cancel');
INSERT INTO task_flow_step (flow_id, step, task_id, task_name)
    VALUES (0, 'a', 0, 't'), (0, 'b', -1, 't');
INSERT INTO task_flow_need (flow_id, step, needs, after) VALUES (0, 'b', 'a', 'success');
DO $$ BEGIN  -- plans that were made while there was hardly a flow
    FOR n IN 1..10 LOOP
        PERFORM task_flow_step_ended(0, 'FAILED', NULL, now());
        PERFORM task_flow_step_reopened(0);
        PERFORM task_send_event('small ' || n);
    END LOOP;
END $$;
INSERT INTO task_group (id, total, flow, when_failed)
    SELECT n, 4, 'f' || n % 7, CASE n % 3 WHEN 0 THEN 'cancel' ELSE 'wait' END
    FROM generate_series(1, {MANY}) AS n;
INSERT INTO task_flow_step (flow_id, step, task_id, task_name)
    SELECT (n - 1) / 4 + 1, (ARRAY['a', 'b', 'c', 'd'])[(n - 1) % 4 + 1], n, 't'
    FROM generate_series(1, {4 * MANY}) AS n;
UPDATE task_flow_step SET task_id = {RUNNING.start} + flow_id - 1
    WHERE step = 'a' AND flow_id <= {len(RUNNING)};
INSERT INTO task_flow_need (flow_id, step, needs, after)
    SELECT n, 'c', 'a', 'success' FROM generate_series(1, {MANY}) AS n UNION ALL
    SELECT n, 'c', 'b', 'success' FROM generate_series(1, {MANY}) AS n UNION ALL
    SELECT n, 'd', 'a', 'failure' FROM generate_series(1, {MANY}) AS n;
UPDATE task_pending p SET batch_id = s.flow_id,
        waits_for = CASE s.step WHEN 'c' THEN 2 WHEN 'd' THEN 1 END,
        held_due_at = CASE WHEN s.step IN ('c', 'd') THEN p.due_at END,
        due_at = CASE WHEN s.step IN ('c', 'd') THEN '9899-01-01Z' ELSE p.due_at END,
        scan_at = CASE WHEN s.step IN ('c', 'd') THEN '9899-01-01Z' ELSE p.scan_at END
    FROM task_flow_step s WHERE s.task_id = p.id;
UPDATE task_flow_step SET ended = 'failure' WHERE task_id = {ENDED};
INSERT INTO task_event (key) SELECT 'event ' || n FROM generate_series(1, {MANY}) AS n;
INSERT INTO task_event_wait (task_id, key)
    SELECT task_id, 'event ' || flow_id FROM task_flow_step WHERE flow_id > 0 AND step > 'b';
"""
)


def settles(statement: Any) -> Verb:
    return lambda c, n: settle._moved(
        c, statement, list(map(ending_of_plans_of_flows, RUNNING[29 : 29 + n])), None
    )


VERBS: dict[str, tuple[Verb, int]] = {
    "settle": (settles(settle._GROUP), 100),
    "settle one": (settles(settle.ONE), 1),
    "put back": (settles(settle._GROUP_THAT_AWAITS), 100),
    "put back one": (settles(settle._ONE_THAT_AWAITS), 1),
    "succeed": (member_succeeds, 1),
    "reopen": (
        lambda c, _: c.execute(text("SELECT task_flow_step_reopened(:id)"), {"id": ENDED}), 1,
    ),
    "send": (lambda c, _: events.send(c, f"event {MANY}", "{}"), 1),
    "payloads": (lambda c, _: events.read_payloads(c, 4 * MANY), 1),
    "waits": (lambda c, _: events.waits_of(c, range(4 * MANY - 99, 4 * MANY + 1)), 100),
    "needed steps": (lambda c, _: flows.needed_steps(c, 4 * MANY), 1),
    "get": (lambda c, _: c.execute(flows._GET, {"id": MANY}), 1),
    "steps": (lambda c, _: c.execute(flows._STEPS, {"id": MANY, "step": None}), 1),
}  # fmt: skip


@statistics
@pytest.mark.parametrize("name", VERBS)
def test_an_end_reads_about_what_it_is_asked_for_among_many_flows(ask: Ask, name: str) -> None:
    plan = ask(name)
    assert plan.whole == ()
    assert plan.rows <= 3 * STEPS_A_ROW * VERBS[name][1] + 300
    assert plan.buffers <= 150 * VERBS[name][1] + 300  # with those of the functions in SQL
