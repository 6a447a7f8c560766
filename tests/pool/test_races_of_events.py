"""Who waits for an event, who sends it, and who meets them: each acts in turn, none forgotten."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.events import event
from tasks_app.domain.flows import CreatedFlow
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool import events
from tasks_app.pool.runs.settle import settle_group, settle_one
from tests.factory import claimed_task, ending
from tests.pool.interleave import blocked, two
from tests.pool.test_events import K, T, does, stands
from tests.pool.test_flows import CAUSE, flow, starts
from tests.pool.test_task_groups import by_one, with_effects

ENDS = ["commit", "rollback"]


def waits(connection: Connection) -> CreatedFlow:
    return flow(connection, x=(), d=K)


def sends(connection: Connection, payload: str = "{}") -> bool:
    return events.send(connection, "k", payload)


@pytest.fixture(params=[False, True], ids=["new", "known"])
def known(request: pytest.FixtureRequest, engine: Engine) -> bool:
    """Whether another task waits for the event already."""
    if request.param:
        with engine.begin() as connection:
            waits(connection)
    return request.param


@pytest.mark.parametrize("end", ENDS)
def test_who_sends_waits_for_who_begins_to_wait(engine: Engine, known: bool, end: str) -> None:
    with two(engine) as (waiter, sender):
        made = waits(waiter)
        sending = blocked(engine, sender, waiter, sends)
        getattr(waiter, end)()
        assert sending.result()
        sender.commit()
        if end == "rollback":
            made = waits(waiter)
        assert stands(waiter, made) == "due"


@pytest.mark.parametrize("end", ENDS)
def test_who_begins_to_wait_waits_for_who_sends(engine: Engine, known: bool, end: str) -> None:
    with two(engine) as (waiter, sender):
        assert sends(sender)
        waiting = blocked(engine, waiter, sender, waits)
        getattr(sender, end)()
        made = waiting.result()
        assert stands(waiter, made) == ("due" if end == "commit" else "waits 1")
        waiter.commit()
        assert sends(sender) == (end == "rollback")
        sender.commit()
        assert stands(waiter, made) == "due"


@pytest.mark.parametrize("end", ENDS)
def test_the_first_sender_counts_if_it_commits(engine: Engine, known: bool, end: str) -> None:
    with two(engine) as (first, second):
        assert sends(first, '{"n": 1}')
        sending = blocked(engine, second, first, lambda c: sends(c, '{"n": 2}'))
        getattr(first, end)()
        assert sending.result() == (end == "rollback")
        second.commit()
        (found,) = events.find(first)
        assert found.payload == {"n": 1 if end == "commit" else 2}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("second", [sends, waits])
def test_two_that_wait_for_a_sender(engine: Engine, known: bool, second: Any, end: str) -> None:
    """Another sender and one who begins to wait: whoever goes first, one sender counts."""

    def commits(act: Any) -> Any:
        def call(connection: Connection) -> Any:
            done = act(connection)
            connection.commit()
            return done

        return call

    third = waits if second is sends else sends
    with two(engine) as (a, b), engine.connect() as c:
        assert sends(a)
        one = blocked(engine, b, a, commits(second))
        other = blocked(engine, c, a, commits(third))
        getattr(a, end)()
        made, counted = one.result(), other.result()
        if second is sends:
            made, counted = counted, made
        assert counted == (end == "rollback")
        assert stands(c, made) == "due"
        c.rollback()


def test_those_who_begin_to_wait_for_a_known_event_do_not_meet(engine: Engine) -> None:
    with engine.begin() as connection:
        waits(connection)
    with two(engine) as (a, b):
        waits(a)
        b.execute(text("SET LOCAL lock_timeout = '100ms'"))
        waits(b)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_cannot_send(engine: Engine, level: Any) -> None:
    with engine.connect() as connection:
        connection.execution_options(isolation_level=level)
        with pytest.raises(DBAPIError, match="READ COMMITTED"):
            sends(connection)
        connection.rollback()


Act = Callable[[Connection, CreatedFlow, dict[str, Any]], Any]


def verb(what: str) -> Act:
    return lambda connection, made, tasks: does(connection, made, what)


def ends(by: Any) -> Act:
    return lambda connection, made, tasks: by(connection, tasks["a"])


SEND_K, SEND_T = verb("send:k"), verb("send:t")
MEETINGS: dict[str, tuple[Any, list[str], Act, Act, dict[str, str]]] = {
    **{
        f"the event and the last end, {by.__name__}": (
            ("a", K), [], SEND_K, ends(by), {"commit": "due", "rollback": "waits 1"})
        for by in (by_one, with_effects)
    },
    **{
        f"the last end and the event, {by.__name__}": (
            ("a", K), [], ends(by), SEND_K, {"commit": "due", "rollback": "waits 1"})
        for by in (by_one, with_effects)
    },
    "the event and the end that begins its time-out": (
        ("a", T), [], SEND_T, ends(by_one), {"commit": "due", "rollback": "in 48h"}),
    "the end that begins its time-out and the event": (
        ("a", T), [], ends(by_one), SEND_T, {"commit": "due", "rollback": "waits 1"}),
    "the last two events": (
        (K, event("l")), [], SEND_K, verb("send:l"), {"commit": "due", "rollback": "waits 1"}),
    "two time-outs": (
        (T, event("u", timeout="24h")), [], SEND_T, verb("send:u"),
        {"commit": "due", "rollback": "in 48h"}),
    "the event and a requeue of what was cancelled": (
        K, ["cancel"], SEND_K, verb("requeue"), {"commit": "due", "rollback": "waits 1"}),
    "a requeue of what was cancelled and the event": (
        K, ["cancel"], verb("requeue"), SEND_K, {"commit": "due", "rollback": "failure"}),
    "the event and a requeue of what has a time-out": (
        T, ["cancel"], SEND_T, verb("requeue"), {"commit": "due", "rollback": "in 48h"}),
    "a requeue of what has a time-out and the event": (
        T, ["cancel"], verb("requeue"), SEND_T, {"commit": "due", "rollback": "failure"}),
    "the event and a requeue of a need": (
        ("a", T), ["ends:a"], SEND_T, verb("requeue:a"),
        {"commit": "waits 1", "rollback": "waits 1"}),
    "a requeue of a need and the event": (
        ("a", T), ["ends:a"], verb("requeue:a"), SEND_T, {"commit": "waits 1", "rollback": "due"}),
    "the event and a hold": (
        K, [], SEND_K, verb("hold"), {"commit": "held, in 0h", "rollback": "held, waits 1"}),
    "a hold and the event": (
        K, [], verb("hold"), SEND_K, {"commit": "held, in 0h", "rollback": "due"}),
    "a time-out and a hold": (
        T, [], SEND_T, verb("hold"), {"commit": "held, in 0h", "rollback": "held, in 48h"}),
    "a hold and a time-out": (
        T, [], verb("hold"), SEND_T, {"commit": "held, in 0h", "rollback": "due"}),
    "a time-out and another date": (
        T, [], SEND_T, verb("later"), {"commit": "in 1h", "rollback": "in 1h"}),
    "another date and a time-out": (
        T, [], verb("later"), SEND_T, {"commit": "in 1h", "rollback": "due"}),
    "the event and a cancellation": (
        K, [], SEND_K, verb("cancel"), {"commit": "failure", "rollback": "failure"}),
    "a cancellation and the event": (
        K, [], verb("cancel"), SEND_K, {"commit": "failure", "rollback": "due"}),
    "the event and a claim of what was timed out": (
        T, ["pass:48"], verb("claim"), SEND_T, {"commit": "runs", "rollback": "due"}),
}  # fmt: skip
"""What d needs, what was before, what the first and the second do, and how d is then."""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("case", MEETINGS.values(), ids=MEETINGS)
def test_two_that_meet_at_a_step_act_in_turn(engine: Engine, case, end: str) -> None:
    needs, before, first, second, expected = case
    with engine.begin() as connection:
        made = flow(connection, x=(), a=(), d=needs)
        for each in before:
            does(connection, made, each)
        over = any(each.endswith(":a") for each in before)
        tasks = {} if over else {"a": claimed_task(connection, made.task_ids["a"])}
    with two(engine) as (a, b):
        first(a, made, tasks)
        waiting = blocked(engine, b, a, lambda connection: second(connection, made, tasks))
        getattr(a, end)()
        waiting.result()
        b.commit()
    with engine.connect() as connection:
        assert stands(connection, made) == expected[end]


# -- runs that wait
def goes_back(connection: Connection, task: Any, by: str) -> Any:
    back = ending(task, Event.SNOOZE, awaits_needs=True, wait=timedelta(0), cause=CAUSE)
    if by == "one":
        return settle_one(connection, back)
    return settle_group(connection, [back]).get(task.task_id)


@pytest.fixture(params=["plain task", "step"])
def run(request: pytest.FixtureRequest, engine: Engine) -> Any:
    with engine.begin() as connection:
        if request.param == "step":
            return claimed_task(connection, flow(connection, a=(), d="a").task_ids["a"])
        return claimed_task(connection)


def is_due(engine: Engine, task: Any) -> bool:
    with engine.connect() as connection:
        return starts(connection, task.task_id)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("need", [K, T._replace(key="k")])
def test_who_sends_waits_for_a_run_that_begins_to_wait(
    engine: Engine, known: bool, run: Any, need: Any, end: str
) -> None:
    with two(engine) as (a, b):
        assert events.await_one(a, run.task_id, need).is_open
        sending = blocked(engine, b, a, sends)
        getattr(a, end)()
        assert sending.result()
        b.commit()
        assert events.await_one(a, run.task_id, need).payload == {}
        a.commit()
        assert goes_back(a, run, "one") is State.PENDING
        a.commit()
    assert is_due(engine, run)


def test_who_sends_again_does_not_wait_for_a_run_that_reads_it(engine: Engine, run: Any) -> None:
    with two(engine) as (a, b):
        assert sends(b)
        b.commit()
        assert events.await_one(a, run.task_id, K).payload == {}
        at_once(b)
        assert not sends(b)


def test_who_sends_does_not_wait_for_a_run_that_goes_on_without(engine: Engine, run: Any) -> None:
    with two(engine) as (a, b):
        assert events.await_one(a, run.task_id, T._replace(key="k")).is_open
        a.execute(text("UPDATE task_event_wait SET until = now() - interval '1s'"))
        a.commit()
        assert events.await_one(a, run.task_id, T._replace(key="k")) == (None, False)
        at_once(b)
        assert sends(b)


def at_once(connection: Connection) -> None:
    """Let a statement that waits for a lock fail."""
    connection.execute(text("SET LOCAL lock_timeout = '1ms'"))


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_begins_to_wait_waits_for_who_sends(
    engine: Engine, known: bool, run: Any, end: str
) -> None:
    with two(engine) as (a, b):
        assert sends(b)
        asking = blocked(engine, a, b, lambda c: events.await_one(c, run.task_id, K))
        getattr(b, end)()
        assert asking.result().is_open == (end == "rollback")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("need", [K, T._replace(key="k")])
@pytest.mark.parametrize("by", ["one", "many"])
def test_no_event_is_missed_by_a_run_that_goes_back(
    engine: Engine, run: Any, need: Any, by: str, end: str
) -> None:
    """Who sends has met it as it ran, and has not committed when it goes back."""
    with two(engine) as (a, b):
        assert events.await_one(a, run.task_id, need).is_open
        a.commit()
        assert sends(b)
        in_flow = run.group_id is not None
        if in_flow and by == "one":
            back = blocked(engine, a, b, lambda c: goes_back(c, run, by))
            getattr(b, end)()
            assert back.result() is State.PENDING
        else:
            done = goes_back(a, run, by)
            a.commit()
            getattr(b, end)()
            assert done is (None if in_flow else State.PENDING)
            if in_flow:  # its flow was busy: it is asked again
                assert goes_back(a, run, by) is State.PENDING
        a.commit()
    if in_flow and end == "rollback":
        assert not is_due(engine, run)
    else:
        assert is_due(engine, run)  # a plain task asks again itself


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("need", [K, T._replace(key="k")])
def test_who_sends_waits_for_a_run_that_goes_back(
    engine: Engine, run: Any, need: Any, end: str
) -> None:
    with two(engine) as (a, b):
        assert events.await_one(a, run.task_id, need).is_open
        a.commit()
        assert goes_back(a, run, "one") is State.PENDING
        sending = blocked(engine, b, a, sends)
        getattr(a, end)()
        assert sending.result()
        b.commit()
        if end == "rollback":
            assert goes_back(a, run, "one") is State.PENDING
            a.commit()
    assert is_due(engine, run)
