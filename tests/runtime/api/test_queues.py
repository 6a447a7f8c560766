"""What is said of queues, by whom it is heard, and how soon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app import (
    Changed,
    InvalidTaskError,
    change_queue,
    disable_task,
    explain_task,
    get_queue,
    hold_task,
    list_calendars,
    list_queues,
    pause_queue,
    remove_calendar,
    requeue_task,
    reset_queue,
    resume_queue,
    set_calendar,
)
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flow_control.queue_settings import update_load_gates
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.requeue import Requeued
from tests.clock import until
from tests.factory import claimed_task, claimer, pending_task, pool_of_task, some
from tests.pool.interleave import between, blocked, gate, two
from tests.pool.runs.racing import Pair, committed, failing, take
from tests.runtime.api.acts import EDIT, LEAVES, RUNS, VERBS, WAITING, Act
from tests.runtime.bench import Bench


def closed_now() -> str:
    """A window that is not open, whatever the time is."""
    other = datetime.now(UTC) + timedelta(hours=12)
    return f"{other:%H}:00-{other:%H}:01"


@pytest.mark.test_all
def test_a_window_that_opens_is_noticed_within_a_second(bench: Bench) -> None:
    """Nobody writes anything then: the clock alone opens it."""
    bench.succeeding()
    with bench.engine.begin() as connection:
        pause_queue(connection, "default", resume_in=1.5)
        resume_at = get_queue(connection, "default").resume_at
    task_id = bench.create()
    bench.beside(bench.work(scan_interval=1).run)

    until(lambda: bench.state(task_id) == "SUCCEEDED", 15)

    late = bench.sql(
        "SELECT started_at - CAST(:at AS timestamptz) FROM task_completed", at=resume_at
    )
    assert timedelta(0) <= late < timedelta(seconds=2)  # on a machine that is busy otherwise


@pytest.mark.test_all
def test_a_queue_that_closes_stops_at_once_and_goes_on_within_a_second(bench: Bench) -> None:
    bench.succeeding()
    bench.beside(bench.work(scan_interval=1).run)
    first = bench.create()
    until(lambda: bench.state(first) == "SUCCEEDED", 15)
    bench.do(change_queue, "default", windows=[closed_now()])
    ran = len(bench.runs)
    task_id = bench.create()
    until(lambda: bench.sql("SELECT count(*) FROM task_pending") == 1)
    pause = bench.event()
    pause.wait(1.5)
    assert len(bench.runs) == ran

    bench.do(change_queue, "default", windows=None)
    opened = bench.sql("SELECT statement_timestamp()")

    until(lambda: bench.state(task_id) == "SUCCEEDED", 15)
    late = "SELECT started_at - CAST(:at AS timestamptz) FROM task_completed WHERE id = :id"
    assert bench.sql(late, at=opened, id=task_id) < timedelta(seconds=2)


def test_a_worker_without_a_broker_opens_and_shuts_gates(bench: Bench) -> None:
    bench.succeeding()
    with bench.engine.begin() as connection:
        change_queue(connection, "default", running_below=1)
        claimed_task(connection, queue="other")
        update_load_gates(connection)
    task_id = bench.create()
    work = bench.work(scan_interval=0.2)
    bench.beside(work.run)
    assert bench.sql("SELECT shut FROM task_queue") == "running"
    assert bench.state(task_id) == "PENDING"

    bench.sql("DELETE FROM task_pending WHERE queue = 'other'")

    until(lambda: bench.state(task_id) == "SUCCEEDED", 15)


def test_a_run_takes_its_timeout_and_its_retries_from_its_queue(bench: Bench) -> None:
    bench.raising(ValueError("no"), retry="1h")
    bench.do(change_queue, "default", retry="fixed 0s", max_attempts=2)
    task_id = bench.run_one()
    assert bench.state(task_id) == "FAILED"
    assert bench.runs == [task_id, task_id]


def test_explain_knows_what_is_said_of_the_queue(connection: Connection) -> None:
    task_id = pending_task(connection, queue="mail")
    change_queue(connection, "mail", windows=[closed_now()])
    said = explain_task(connection, task_id)
    assert "closed" in [finding.subject for finding in said.findings]


def test_a_queue_is_ruled_paused_and_left_alone_again(connection: Connection) -> None:
    set_calendar(connection, "de", [date(2026, 12, 25), date(2026, 1, 1), date(2026, 1, 1)])
    some(change_queue(connection, "mail", windows="00:00-24:00 not on de", timeout="5s"))
    assert pause_queue(connection, "mail", "why", resume_at=datetime(2999, 1, 1, tzinfo=UTC))

    (found,) = list_queues(connection)
    assert not found.runs
    assert found.reason == "why"
    assert list_calendars(connection) == {"de": [date(2026, 1, 1), date(2026, 12, 25)]}
    assert [reset_queue(connection, "mail"), reset_queue(connection, "mail")] == [True, False]
    assert list_queues(connection)[0].paused_since is not None
    assert resume_queue(connection, "mail") == ["mail"]
    assert list_queues(connection) == []
    assert [remove_calendar(connection, "de"), remove_calendar(connection, "de")] == [True, False]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"windows": ["nights"]}, "window is 'nights'"),
        ({"windows": ["22:00-06:00 not on xx"]}, "options.windows name 'xx'"),
        ({"running_below": 0}, "options.running_below is 0"),
        ({"running_below": True}, "options.running_below is True"),
        ({"waiting_below": "soon"}, "options.waiting_below is 'soon'"),
        ({"waiting_below": 0}, "options.waiting_below is 0 s"),
        ({"only_while": "at night"}, "options.only_while is 'at night'"),
        ({"retry": "now and then"}, "options.retry"),
        ({"max_attempts": 0}, "options.max_attempts is 0"),
        ({"timeout": -1}, "options.timeout"),
        ({"priority": 3}, "options.priority is unknown"),
    ],
)
def test_what_cannot_be_said_of_a_queue_is_refused(
    connection: Connection, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidTaskError) as refusal:
        change_queue(connection, "mail", **options)
    assert str(refusal.value).startswith(problem)
    assert list_queues(connection) == []


def test_what_is_no_calendar_or_is_used_is_refused(connection: Connection) -> None:
    set_calendar(connection, "de", [date(2026, 12, 25)])
    change_queue(connection, "mail", windows=["00:00-24:00 not on de"])

    for call in (
        lambda: remove_calendar(connection, "de"),
        lambda: set_calendar(connection, "a b", []),
        lambda: set_calendar(connection, "de", [datetime(2026, 12, 25, tzinfo=UTC)]),
        lambda: pause_queue(connection, "mail", resume_in="later"),
        lambda: change_queue(connection, "*", timeout=1),
    ):
        with pytest.raises(InvalidTaskError):
            call()


def test_a_queue_may_be_ruled_by_two_at_once(bench: Bench) -> None:
    """Interleaving: both read, one writes the gate, the other the limit."""
    with bench.engine.begin() as one:
        change_queue(one, "mail", running_below=5)
        thread = bench.beside(partial(bench.do, change_queue, "mail", timeout="5s"))
    thread.join(10)
    found = bench.do(get_queue, "mail")
    assert (found.running_below, found.timeout_ms) == (5, 5_000)


HELD_AND_DISABLED = ("held", "disabled")
LATER = ("later",)


@pytest.fixture
def pair(engine: Engine) -> Iterator[Pair]:
    with two(engine) as connections:
        yield connections


def waiting(connection: Connection, how: tuple[str, ...]) -> int:
    task_id = pending_task(connection, payload={"n": 1}, delay="1h" if "later" in how else None)
    if "held" in how:
        hold_task(connection, task_id)
    if "disabled" in how:
        disable_task(connection, task_id)
    return task_id


_STATE = text("""
    SELECT a.state, a.queue, a.priority, a.enabled, a.attempt, a.failures, a.payload,
        round(extract(epoch FROM a.due_at - now()) / 1800) AS due,
        round(extract(epoch FROM p.scan_at - p.due_at) / 1800) AS seen,
        round(extract(epoch FROM p.held_due_at - now()) / 1800) AS own
    FROM task_all a LEFT JOIN task_pending p ON p.id = a.id WHERE a.id = :id
""")


def state(connection: Connection, task_id: int) -> dict[str, Any]:
    """All that verbs write, dates in half hours."""
    return dict(connection.execute(_STATE, {"id": task_id}).mappings().one())


def apart(pair: Pair, make: Callable[[Connection], int], first: Act, second: Act) -> Any:
    """Return what the second answers and leaves behind the first's commit."""
    a, b = pair
    task_id = committed(a, make)
    committed(a, first, task_id)
    answer = committed(b, second, task_id)
    return answer, committed(a, state, task_id)


def together(
    engine: Engine, pair: Pair, make: Callable[[Connection], int], first: Act, second: Act
) -> Any:
    """Return the same, where the second came before that commit, and waited."""
    a, b = pair
    task_id = committed(a, make)
    first(a, task_id)
    waits = blocked(engine, b, a, lambda c: second(c, task_id))
    a.commit()
    answer = waits.result()
    b.commit()
    return answer, committed(a, state, task_id)


@pytest.mark.test_all
@pytest.mark.parametrize("first", [*VERBS, *RUNS])
def test_a_verb_waits_for_what_is_open_and_acts(engine: Engine, pair: Pair, first: str) -> None:
    act = {**VERBS, **RUNS}[first]
    for second, verb in VERBS.items():
        for how in (LATER, HELD_AND_DISABLED):
            make = partial(waiting, how=how)
            met = together(engine, pair, make, act, verb)
            assert met == apart(pair, make, act, verb), (second, how)


@pytest.mark.parametrize("second", ["edit", "requeue"])
@pytest.mark.parametrize("first", ["edit", "requeue"])
def test_edit_and_requeue_wait_for_each_other(
    engine: Engine, pair: Pair, first: str, second: str
) -> None:
    def failed(connection: Connection) -> int:
        task = claimed_task(connection, payload={"n": 1})
        settle_one(connection, failing(task))
        return task.task_id

    verbs: dict[str, Act] = {"edit": EDIT, "requeue": requeue_task}
    acts = verbs[first], verbs[second]
    assert together(engine, pair, failed, *acts) == apart(pair, failed, *acts)


@pytest.mark.parametrize("verb", WAITING)
def test_its_run_ends_while_a_verb_looks_then_the_answer_is_true(pair: Pair, verb: str) -> None:
    """No verb says "unchanged: it was so already" of a task that it found running."""
    a, b = pair
    for leave in LEAVES.keys() - {"claimed"}:
        task = committed(a, claimed_task)
        with between(a, partial(committed, b, LEAVES[leave], task), before="SELECT state"):
            answer = committed(a, WAITING[verb], task.task_id)

        if leave in ("succeeded", "failed", "rescued"):
            assert answer is Changed.ALREADY_OVER
        elif verb in ("release", "enable") or (verb, leave) == ("run-now", "given back"):
            assert answer is Changed.UNCHANGED
        else:
            assert answer is Changed.CHANGED


@pytest.mark.parametrize("at", ["FROM task_completed", "SELECT state"])
def test_its_run_fails_while_a_requeue_looks_then_it_is_found(pair: Pair, at: str) -> None:
    a, b = pair
    task = committed(a, claimed_task)
    with between(a, lambda: committed(b, settle_one, failing(task)), before=at):
        answer = committed(a, requeue_task, task.task_id)
    assert answer is Requeued.REQUEUED


def test_its_run_fails_while_an_edit_looks_then_it_is_edited(pair: Pair) -> None:
    a, b = pair
    task_id = committed(a, pending_task, payload={"n": 1})

    def fail() -> None:
        settle_one(b, failing(claimed_task(b, task_id)))
        b.commit()

    with between(a, fail, before="UPDATE task_pending"):
        assert committed(a, EDIT, task_id) is True
    assert pool_of_task(a, task_id) == "error FAILED"
    assert state(a, task_id)["payload"] == {"n": 2}


@pytest.mark.parametrize("event", [Event.SUCCEED, Event.RETRY])
@pytest.mark.parametrize("verb", [*WAITING, "edit"])
def test_an_open_verb_on_a_run_does_not_hold_up_its_settle(
    pair: Pair, verb: str, event: Event
) -> None:
    a, b = pair
    task = committed(a, claimed_task, payload={"n": 1})
    before = committed(a, state, task.task_id)
    assert VERBS[verb](a, task.task_id) in (Changed.RUNNING, False)
    b.exec_driver_sql("SET LOCAL lock_timeout = '1ms'")
    committed(b, LEAVES["succeeded" if event is Event.SUCCEED else "retried"], task)
    after = committed(b, state, task.task_id)
    same = ("queue", "priority", "enabled", "payload", "own")
    assert [after[word] for word in same] == [before[word] for word in same]


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"enable"}))
def test_a_claim_has_read_then_the_verb_commits_then_it_takes_what_may_run_as_it_is_now(
    engine: Engine, pair: Pair, verb: str
) -> None:
    a, b = pair
    brings = {"run-now": LATER, "release": ("held",)}
    task_id = committed(a, waiting, brings.get(verb, ()))
    with gate(engine) as stop:
        half_way = stop(b, lambda c: claim(c, [task_id], claimer(), uuid4()))
        committed(a, VERBS[verb], task_id)

    now = [(task.queue, task.payload) for task in half_way.result()]
    b.commit()

    as_it_is = {"reprioritise": ("default", 1), "move": ("slow", 1), "edit": ("default", 2)}
    assert now == [
        (queue, f'{{"n": {n}}}') for word, (queue, n) in as_it_is.items() if word == verb
    ]
    assert take(a, [task_id]) == ([task_id] if verb in brings else [])
