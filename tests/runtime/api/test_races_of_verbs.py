"""People's verbs for a task that waits: they meet a run of it, and each other.

Of each pair one goes first and leaves its transaction open; the second must answer, and leave the
row, as if it had come behind the first one's commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app import Changed, disable_task, hold_task, requeue_task
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.requeue import Requeued
from tests.factory import claimed_task, claimer, pending_task, pool_of_task
from tests.pool.interleave import between, blocked, gate, two
from tests.pool.runs.racing import Pair, committed, failing, take
from tests.runtime.api.acts import EDIT, LEAVES, RUNS, VERBS, WAITING, Act

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
def test_a_verb_waits_for_what_is_open_and_acts_as_if_behind_it(
    engine: Engine, pair: Pair, first: str
) -> None:
    act = {**VERBS, **RUNS}[first]
    for second, verb in VERBS.items():
        for how in (LATER, HELD_AND_DISABLED):
            make = partial(waiting, how=how)
            met = together(engine, pair, make, act, verb)
            assert met == apart(pair, make, act, verb), (second, how)


@pytest.mark.parametrize("second", ["edit", "requeue"])
@pytest.mark.parametrize("first", ["edit", "requeue"])
def test_of_a_failed_one_edit_and_requeue_wait_for_each_other(
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
def test_a_verb_for_what_runs_is_open_then_the_settle_waits_for_nobody(
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
