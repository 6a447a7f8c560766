"""Events: what waits for one goes on when it is sent, or when its time-out comes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.events import AwaitedEvent, EventNeed, event
from tasks_app.domain.flows import CreatedFlow, Flow, FlowState, failed
from tasks_app.domain.operations import BulkAction
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool import events, flows
from tasks_app.pool.flow_rerun import rerun
from tasks_app.pool.operations.erase import erase_beside
from tasks_app.pool.runs.settle import settle_group, settle_one
from tasks_app.pool.tasks.amend import amend
from tasks_app.pool.tasks.cancel import Cancelled, cancel
from tasks_app.pool.tasks.requeue import Requeued, requeue
from tasks_app.pool.testing import shift_instants
from tasks_app.runtime.api.producer import create_task
from tests.factory import claimed_task, ending, row_of, succeed
from tests.pool.test_flows import CAUSE, act, flow, starts, words

HOUR = timedelta(hours=1)
DAY = 24 * HOUR
K = event("k")
T = event("t", timeout="48h")
U = event("u", timeout="24h")


def stands(connection: Connection, made: CreatedFlow, step: str = "d") -> str:
    """How the step is, with the hours until the date that it has."""
    word = words(connection, made)[step]
    if word not in ("held", "later"):
        return word
    query = text("""
        SELECT extract(epoch FROM coalesce(held_due_at, due_at) - clock_timestamp()) / 3600
        FROM task_pending WHERE id = :id""")
    hours = connection.execute(query, {"id": made.task_ids[step]}).scalar_one()
    return f"{'held, ' * (word == 'held')}in {max(0, round(hours))}h"


def does(connection: Connection, made: CreatedFlow, verb: str) -> None:
    what, _, of = verb.partition(":")
    if what == "send":
        assert events.send(connection, of, "{}")
    elif what == "pass":
        shift_instants(connection, timedelta(hours=int(of)))
    elif what == "rerun":
        rerun(connection, flows.get_flow(connection, made.id), of)
    else:
        act(connection, made, verb)


def run_at(hours: int) -> datetime:
    return datetime.now(UTC) + hours * HOUR


SCRIPTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "sent": (K, {}, "waits 1; send:k -> due"),
    "two": ([K, event("l")], {}, "waits 2; send:k -> waits 1; send:l -> due"),
    "after a step": (["a", K], {}, "waits 2; ends:a -> waits 1; send:k -> due"),
    "before a step": (["a", K], {}, "waits 2; send:k -> waits 1; ends:a -> due"),
    "held": (K, {}, "waits 1; hold -> held, waits 1; send:k -> held, in 0h; release -> due"),
    "held and released":
        (K, {}, "waits 1; hold -> held, waits 1; release -> waits 1; send:k -> due"),
    "not run before it is sent": (K, {}, "waits 1; run now -> waits 1; send:k -> due"),
    "cancelled": (K, {}, "waits 1; cancel -> failure; send:k -> failure; requeue -> due"),
    "cancelled and requeued":
        (K, {}, "waits 1; cancel -> failure; requeue -> waits 1; send:k -> due"),
    "disabled": (K, {}, "waits 1; disable -> waits 1; send:k -> due; sweep -> success"),
    "requeued after it was sent":
        (K, {}, "waits 1; send:k -> due; fails -> failure; requeue -> due"),
    "a need is requeued":
        (["a", K], {}, ("waits 2; ends:a -> waits 1; requeue:a -> waits 2; send:k -> waits 1; "
         "ends:a -> due")),
    "a delay": (K, {"delay": "1h"}, "waits 1; pass:2 -> waits 1; send:k -> in 1h"),
    "a date": (K, {"run_at": 24}, "waits 1; send:k -> in 24h"),
    "expired": (K, {"expires_at": 24}, "waits 1; pass:24 -> waits 1; sweep -> failure"),
    "timed out": (T, {}, "in 48h; pass:47 -> in 1h; pass:1 -> due"),
    "sent in time": (T, {}, "in 48h; pass:40 -> in 8h; send:t -> due"),
    "sent too late": (T, {}, "in 48h; pass:48 -> due; send:t -> due"),
    "a time-out counts from when other needs are met":
        (["a", T], {}, "waits 1; pass:24 -> waits 1; ends:a -> in 48h; send:t -> due"),
    "it comes before a step": (["a", T], {}, "waits 1; send:t -> waits 1; ends:a -> due"),
    "a time-out behind an event": ([K, T], {}, "waits 1; send:k -> in 48h; send:t -> due"),
    "the event behind it is last": ([K, T], {}, "waits 1; send:t -> waits 1; send:k -> due"),
    "the later of two time-outs": ([T, U], {}, "in 48h; send:t -> in 24h; send:u -> due"),
    "the sooner of two time-outs": ([T, U], {}, "in 48h; send:u -> in 48h; send:t -> due"),
    "one of two is over": ([T, U], {}, "in 48h; pass:24 -> in 24h; send:t -> due"),
    "a time-out while it is held":
        (T, {}, "in 48h; hold -> held, in 48h; send:t -> held, in 0h; release -> due"),
    "a time-out of what was held":
        (T, {}, "in 48h; hold -> held, in 48h; release -> in 48h; send:t -> due"),
    "a hold before its needs are met":
        (["a", T], {}, ("waits 1; hold -> held, waits 1; ends:a -> held, in 48h; "
         "send:t -> held, in 0h; release -> due")),
    "an operator's date stays": (T, {}, "in 48h; later -> in 1h; send:t -> in 1h"),
    "run now ends the wait": (T, {}, "in 48h; run now -> due; send:t -> due"),
    "a retry's date stays":
        (T, {}, "in 48h; pass:48 -> due; retry -> in 1h; send:t -> in 1h"),
    "what runs goes on": (T, {}, "in 48h; pass:48 -> due; claim -> runs; send:t -> runs"),
    "a time-out begins anew with a requeue":
        (T, {}, "in 48h; pass:48 -> due; fails -> failure; requeue -> in 48h; send:t -> due"),
    "a time-out of what was cancelled":
        (T, {}, "in 48h; cancel -> failure; pass:9 -> failure; requeue -> in 48h; send:t -> due"),
    "a time-out begins anew with a need":
        (["a", T], {}, ("waits 1; ends:a -> in 48h; requeue:a -> waits 1; pass:9 -> waits 1; "
         "ends:a -> in 48h; send:t -> due")),
    "it was sent when a need is requeued":
        (["a", T], {}, ("waits 1; ends:a -> in 48h; requeue:a -> waits 1; send:t -> waits 1; "
         "ends:a -> due")),
    "a held time-out begins anew with a need":
        (["a", T], {}, ("waits 1; ends:a -> in 48h; hold -> held, in 48h; "
         "requeue:a -> held, waits 1; release -> waits 1; ends:a -> in 48h; send:t -> due")),
    "what waits to be tried again waits for a need":
        (["a", T], {}, ("waits 1; ends:a -> in 48h; pass:48 -> due; retry -> in 1h; "
         "requeue:a -> waits 1; ends:a -> in 48h; send:t -> in 1h")),
    "a flow that runs again":
        (["a", T], {}, ("waits 1; ends:a -> in 48h; rerun:a -> waits 1; pass:48 -> waits 1; "
         "ends:a -> in 48h; send:t -> due")),
    "a step that runs again does not wait": (T, {}, ("in 48h; send:t -> due; ends -> success; "
         "rerun:d -> due")),
    "a delay within the time-out":
        (["a", T], {"delay": "1h"}, "waits 1; ends:a -> in 48h; send:t -> in 1h"),
    "a delay beyond the time-out":
        (["a", T], {"delay": "72h"}, "waits 1; ends:a -> in 72h; send:t -> in 72h"),
    "a date within the time-out":
        (["a", T], {"run_at": 24}, "waits 1; ends:a -> in 48h; send:t -> in 24h"),
    "it expires before the time-out":
        (T, {"expires_at": 24}, "in 24h; pass:24 -> due; sweep -> failure"),
    "it does not expire if it is sent": (T, {"expires_at": 24}, "in 24h; send:t -> due"),
    "not needed any more":
        ([failed("a"), K], {}, "waits 2; ends:a -> unneeded; send:k -> unneeded"),
}  # fmt: skip
"""What d needs besides a, its options, how it is at first, and after each verb."""


@pytest.mark.parametrize("case", SCRIPTS.values(), ids=SCRIPTS)
def test_a_step_waits_for_events_whatever_else_is_done(connection: Connection, case) -> None:
    needs, options, script = case
    given = {k: run_at(v) if isinstance(v, int) else v for k, v in options.items()}
    made = flow(connection, x=(), a=(), d=[needs, given])
    first, *others = script.split("; ")
    assert stands(connection, made) == first
    for verb, word in (each.split(" -> ") for each in others):
        does(connection, made, verb)
        assert (verb, stands(connection, made)) == (verb, word)
        row = connection.execute(
            text("SELECT * FROM task_pending WHERE id = :id"), {"id": made.task_ids["d"]}
        ).first()
        able = word == "due" and row is not None and row.enabled
        expired = row is not None and row.expires_at and row.expires_at < datetime.now(UTC)
        assert starts(connection, made.task_ids["d"]) == (able and not expired), verb


@pytest.mark.parametrize("need", [K, T._replace(key="k")])
def test_an_event_that_was_sent_before_counts(connection: Connection, need) -> None:
    assert events.send(connection, "k", "{}")
    made = flow(connection, a=(), d=need, e=["a", {"delay": "1h"}], f=[need, {"delay": "1h"}])
    assert stands(connection, made) == "due"
    assert stands(connection, made, "f") == "in 1h"


def test_the_first_one_that_is_sent_counts(connection: Connection) -> None:
    made = flow(connection, d=K)
    assert events.send(connection, "k", '{"n": 1}', "ann", "called them")
    assert not events.send(connection, "k", '{"n": 2}', "bob")
    (found,) = events.find(connection)
    assert (found.payload, found.by, found.why) == ({"n": 1}, "ann", "called them")
    assert events.read_payloads(connection, made.task_ids["d"]) == {"k": {"n": 1}}


@pytest.mark.parametrize(
    ("verbs", "expected"),
    [
        ("", None),
        ("send:t", {}),
        ("pass:48", None),
        ("pass:48 send:t", None),  # the time-out came first, and that stays
        ("pass:48 send:t fails requeue", {}),
        ("send:t pass:48", {}),
        ("send:t claim pass:48", {}),
    ],
)
def test_what_a_handler_reads_of_an_event(connection: Connection, verbs: str, expected) -> None:
    made = flow(connection, d=T)
    for verb in verbs.split():
        does(connection, made, verb)
    assert events.read_payloads(connection, made.task_ids["d"]) == {"t": expected}


def test_all_that_wait_for_it_go_on(connection: Connection) -> None:
    several = [flow(connection, a=(), d=K, e=("a", K), f=T._replace(key="k")) for _ in range(3)]
    assert events.send(connection, "k", "{}")
    for made in several:
        told = words(connection, made)
        assert told == {"a": "due", "d": "due", "e": "waits 1", "f": "due"}


def test_all_of_a_thousand_go_on(connection: Connection) -> None:
    flow(connection, **{f"s{i}": K if i % 2 else T._replace(key="k") for i in range(1000)})
    assert events.send(connection, "k", "{}")
    due = (
        "SELECT count(*) FROM task_pending WHERE waits_for IS NULL AND scan_at <= clock_timestamp()"
    )
    assert connection.execute(text(due)).scalar() == 1000


def test_a_flow_that_waits_for_an_event_goes_on(connection: Connection) -> None:
    made = flow(connection, a=(), d=("a", K), e="d")
    act(connection, made, "ends:a")
    assert flows.get_flow(connection, made.id).state is FlowState.RUNNING
    stalled = flow(connection, a=(), d=("a", K))
    act(connection, stalled, "fails:a")
    assert flows.get_flow(connection, stalled.id).state is FlowState.STALLED
    assert flows.count_open(connection) == {"running": 1, "stalled": 1}


def test_a_step_tells_which_events_it_waits_for(connection: Connection) -> None:
    made = flow(connection, a=(), d=("a", K, T))
    step = flows.get_flow(connection, made.id).steps[1]
    assert step.open_events == (
        AwaitedEvent("k", None, None, None, is_open=True),
        AwaitedEvent("t", T.timeout, None, None, is_open=True),
    )
    for verb in ("ends:a", "send:k"):
        does(connection, made, verb)
    step = flows.get_flow(connection, made.id).steps[1]
    (left,) = step.open_events
    assert left.until == step.due_at
    does(connection, made, "pass:48")
    assert flows.get_flow(connection, made.id).steps[1].open_events == ()


def test_events_are_found_and_counted(connection: Connection) -> None:
    assert events.count_waits(connection) == (0, None)
    made = flow(connection, a=(), d=("a", K), e=T)
    flow(connection, d=K)
    does(connection, made, "send:sent")
    shift_instants(connection, HOUR)
    found = [(each.key, each.waiting) for each in events.find(connection)]
    assert found == [("k", 2), ("t", 1), ("sent", 0)]
    assert [each.key for each in events.find(connection, waiting=True)] == ["k", "t"]
    assert [each.key for each in events.find(connection, key="t")] == ["t"]
    number, oldest = events.count_waits(connection)
    assert (number, round(oldest / HOUR)) == (3, 1)
    does(connection, made, "pass:48")
    assert events.count_waits(connection).number == 2  # a time-out is over


def prune(connection: Connection) -> set[str]:
    while events.prune(connection, 30 * DAY, 1):
        pass
    return set(connection.execute(text("SELECT key FROM task_event")).scalars())


def test_events_are_kept_for_a_while_and_for_those_that_need_them(connection: Connection) -> None:
    made = flow(connection, a=(), d=("a", K), e=event("open"))
    for key in ("k", "sent"):
        assert events.send(connection, key, "{}")
    does(connection, made, "pass:700")
    assert prune(connection) == {"k", "sent", "open"}
    does(connection, made, "pass:100")
    assert prune(connection) == {"k", "open"}
    does(connection, made, "cancel:e")
    assert prune(connection) == {"k", "open"}  # its step may be requeued
    connection.execute(text("DELETE FROM task_group"))
    connection.execute(text("DELETE FROM task_pending"))
    assert prune(connection) == {"open"}  # as its task may be
    connection.execute(text("DELETE FROM task_completed"))
    assert prune(connection) == set()
    assert connection.execute(text("SELECT count(*) FROM task_event_wait")).scalar() == 0


def test_a_payload_is_erased_unless_others_need_it(connection: Connection) -> None:
    mine, other = flow(connection, d=("x", K, T), x=()), flow(connection, d=K)
    for key in ("k", "t"):
        assert events.send(connection, key, '{"card": 7}', "ann", "her card")
    erase_beside(connection, [mine.task_ids["d"]])
    kept = {each.key: (each.payload, each.why) for each in events.find(connection)}
    assert kept["k"] == ({"card": 7}, "her card")
    assert set(kept["t"][0]) == {"$erased"}
    assert kept["t"][1] == "erased"
    erase_beside(connection, [mine.task_ids["d"], other.task_ids["d"]])
    assert all("card" not in each.payload for each in events.find(connection))


@pytest.mark.parametrize(
    "make",
    [
        lambda: event(7),
        lambda: event(""),
        lambda: event("k" * 201),
        lambda: event("a\x00b"),
        lambda: event("k", timeout=0),
        lambda: event("k", timeout="-1s"),
        lambda: event("k", timeout="soon"),
        lambda: Flow("f").step("d", "t", needs=[K, K]),
        lambda: Flow("f").step("d", "t", needs=[event(f"k{n}") for n in range(1001)]),
    ],
)
def test_what_cannot_be_meant_is_refused(make) -> None:
    with pytest.raises(InvalidTaskError):
        make()


def test_a_hundred_events_are_enough(connection: Connection) -> None:
    made = flow(connection, d=tuple(event(f"k{n}") for n in range(100)))
    assert stands(connection, made) == "waits 100"
    assert row_of(connection, made.task_ids["d"]).waits_for == 100


# -- runs that wait
def awaits(connection: Connection, task_id: int, *needs: EventNeed, by: str = "one") -> str:
    """Let a run wait for events; return what it got, or how the task is then."""
    task = claimed_task(connection, task_id)
    found = [events.await_one(connection, task_id, need) for need in needs]
    if any(each.is_open for each in found):
        back = ending(task, Event.SNOOZE, awaits_needs=True, wait=timedelta(0), cause=CAUSE)
        if by == "one":
            assert settle_one(connection, back) is State.PENDING
        else:
            assert settle_group(connection, [back]) == {task_id: State.PENDING}
    else:
        succeed(connection, ending(task))
    return ", ".join("open" if each.is_open else str(each.payload) for each in found)


def is_due(connection: Connection, task_id: int) -> bool:
    return starts(connection, task_id)


@pytest.fixture(params=["plain task", "step"])
def waiter(request: pytest.FixtureRequest, connection: Connection) -> int:
    if request.param == "step":
        return flow(connection, a=(), d="a").task_ids["a"]
    return int(create_task(connection, "t"))


@pytest.mark.parametrize("by", ["one", "many"])
def test_a_run_goes_back_until_an_event_is_sent(
    connection: Connection, waiter: int, by: str
) -> None:
    assert awaits(connection, waiter, K, by=by) == "open"
    assert not is_due(connection, waiter)
    assert row_of(connection, waiter).failures == 0
    assert events.send(connection, "k", '{"n": 1}')
    assert awaits(connection, waiter, K) == "{'n': 1}"


@pytest.mark.parametrize("sent", [False, True])
def test_the_time_out_of_a_run_begins_with_its_first_wait(
    connection: Connection, waiter: int, sent: bool
) -> None:
    assert awaits(connection, waiter, T) == "open"
    shift_instants(connection, 40 * HOUR)
    amend(connection, BulkAction.RUN_NOW, [waiter])
    assert awaits(connection, waiter, T) == "open"
    assert not is_due(connection, waiter)
    if sent:
        assert events.send(connection, "t", "{}")
    else:
        shift_instants(connection, 8 * HOUR)
    assert awaits(connection, waiter, T) == ("{}" if sent else "None")


def test_a_run_waits_for_several(connection: Connection, waiter: int) -> None:
    assert awaits(connection, waiter, K, T, U) == "open, open, open"
    assert events.send(connection, "k", "{}")
    assert not is_due(connection, waiter)
    assert events.send(connection, "t", "{}")
    shift_instants(connection, 24 * HOUR)
    assert awaits(connection, waiter, K, T, U) == "{}, {}, None"


@pytest.mark.parametrize("by", ["one", "many"])
def test_a_step_waits_after_its_flow_has_succeeded(connection: Connection, by: str) -> None:
    made = flow(connection, d=())
    assert awaits(connection, made.task_ids["d"], T, by=by) == "open"
    shift_instants(connection, 48 * HOUR)
    assert awaits(connection, made.task_ids["d"], T) == "None"
    requeue(connection, made.task_ids["d"])
    assert awaits(connection, made.task_ids["d"], K, T, by=by) == "open, open"
    assert not is_due(connection, made.task_ids["d"])
    assert events.send(connection, "t", "{}")
    assert not is_due(connection, made.task_ids["d"])
    assert events.send(connection, "k", "{}")
    assert is_due(connection, made.task_ids["d"])


def test_what_a_run_waits_for_is_held_and_released(connection: Connection, waiter: int) -> None:
    awaits(connection, waiter, K)
    amend(connection, BulkAction.HOLD, [waiter])
    assert events.send(connection, "k", "{}")
    assert not is_due(connection, waiter)
    amend(connection, BulkAction.RELEASE, [waiter])
    assert is_due(connection, waiter)


def test_a_requeue_begins_the_time_out_of_a_run_anew(connection: Connection, waiter: int) -> None:
    assert awaits(connection, waiter, T) == "open"
    shift_instants(connection, 48 * HOUR)
    assert cancel(connection, waiter) is Cancelled.CANCELLED
    assert requeue(connection, waiter) is Requeued.REQUEUED
    if not is_due(connection, waiter):  # a step waits before its run
        shift_instants(connection, 48 * HOUR)
        assert is_due(connection, waiter)
        return
    assert awaits(connection, waiter, T) == "open"
