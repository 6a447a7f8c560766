"""Two meet at one gate: step by step on two connections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine

from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit
from tasks_app.domain.tasks.states import State
from tasks_app.pool.flow_control import order_and_limits, waiting_list
from tasks_app.pool.flow_control.capacity import capacities_of, insert_gates, lock_buckets
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.pool.flow_control.waiting_list import wake_tasks as wake_held
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import release
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.runtime.flow_control.admission import let_pass
from tests.factory import claimer, ending, pending_task, row_of
from tests.pool.interleave import blocked, two

Pair = tuple[Connection, Connection]


@pytest.fixture
def pair(engine: Engine) -> Iterator[Pair]:
    with two(engine) as connections:
        yield connections


def made(connection: Connection, *keys: str, **options) -> list[int]:
    ids = [pending_task(connection, **{"order_key": key, **options}) for key in keys]
    connection.commit()
    return [int(task_id) for task_id in ids]


def passing(connection: Connection, ids: Sequence[int]):
    """What passes; the locks are held until the transaction ends."""
    found = order_and_limits.waiting(connection, ids)
    insert_gates(connection, found.gates)
    connection.commit()
    return let_pass(connection, found, claimer(), uuid4())[0]


def passed(connection: Connection, ids: Sequence[int]) -> list[int]:
    return [task.task_id for task in passing(connection, ids)]


def wake(connection: Connection, *some: Gate) -> list[int]:
    """What the end of runs behind these gates wakes."""
    waited = waiting_list.gates_with_waiters(connection, some)
    limits = order_and_limits.read_limits(connection)
    rooms = capacities_of(connection, lock_buckets(connection, waited), limits)
    woken = wake_held(connection, rooms, limits)
    connection.commit()
    return [task_id for _, task_id in woken]


def limited(connection: Connection, kind: GateKind, target: str, most: int) -> None:
    set_limit(connection, Limit(kind, target, most))
    connection.commit()


ORDER = Gate(GateKind.ORDER, "k")


def test_a_plain_claim_takes_nothing_that_a_gate_stands_before(pair: Pair) -> None:
    a, _ = pair
    ordered, keyed = made(a, "k")[0], made(a, None, limit_key="l")[0]
    of_queue, of_name = made(a, None, queue="q")[0], int(pending_task(a, "n"))
    limited(a, GateKind.QUEUE, "q", 1)
    limited(a, GateKind.NAME, "n", 1)
    free = int(pending_task(a))
    ids = [ordered, keyed, of_queue, of_name, free]

    taken = claim(a, ids, claimer("t", "n"), uuid4())

    assert [task.task_id for task in taken] == [free]


def test_two_claims_of_one_key_the_second_waits_and_finds_it_taken(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    first, second = made(a, "k", "k")
    assert passed(a, [first, second]) == [first]

    waiting = blocked(engine, b, a, lambda c: passed(c, [second]))
    a.commit()

    assert waiting.result() == []
    b.commit()
    assert row_of(b, second).parked == "order k"


def test_two_claims_of_one_limit_together_take_no_more_than_it_allows(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    ids = made(a, *[None] * 4, limit_key="l")
    limited(a, GateKind.KEY, "l", 3)
    assert passed(a, ids[:2]) == ids[:2]

    waiting = blocked(engine, b, a, lambda c: passed(c, ids[2:]))
    a.commit()

    assert waiting.result() == ids[2:3]


def test_gates_wished_for_in_opposite_orders_are_locked_in_one(engine: Engine, pair: Pair) -> None:
    a, b = pair
    one, two_, three, four = made(a, "x", "y", "y", "x")
    assert passed(a, [one, two_]) == [one, two_]

    waiting = blocked(engine, b, a, lambda c: passed(c, [three, four]))
    a.commit()

    assert waiting.result() == []


def test_while_it_waits_for_one_gate_a_claim_has_none_that_comes_later(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    ids = made(a, "y", "x")
    insert_gates(a, [Gate(GateKind.ORDER, key) for key in "xy"])
    a.commit()
    one = "SELECT gate FROM task_gate WHERE gate = 'order {}' FOR UPDATE SKIP LOCKED"
    a.exec_driver_sql(one.format("x"))

    waiting = blocked(engine, b, a, lambda c: passed(c, ids))
    assert a.exec_driver_sql(one.format("y")).all()
    a.commit()

    assert waiting.result() == ids


def test_a_run_ends_while_another_is_being_held_and_whoever_looks_last_wakes_it(
    pair: Pair,
) -> None:
    a, b = pair
    first, second = made(a, "k", "k")
    (task,) = passing(a, [first])
    a.commit()
    assert passed(b, [second]) == []  # it saw the first one run, and has not committed

    assert settle_one(a, ending(task)) is State.SUCCEEDED
    a.commit()
    assert wake(a, ORDER) == []  # and sees nobody held
    b.commit()

    assert wake(b, ORDER) == [second]
    assert row_of(b, second).parked is None
    assert passed(b, [second]) == [second]


def test_a_run_ends_after_another_was_held_and_wakes_it(pair: Pair) -> None:
    a, b = pair
    first, second = made(a, "k", "k")
    (task,) = passing(a, [first])
    a.commit()
    assert passed(b, [second]) == []
    b.commit()
    assert wake(b, ORDER) == []

    settle_one(a, ending(task))
    a.commit()

    assert wake(a, ORDER) == [second]


def test_a_lower_id_that_commits_late_waits_for_the_one_that_runs_and_goes_next(
    pair: Pair,
) -> None:
    a, b = pair
    late = int(pending_task(a, order_key="k"))
    early, last = made(b, "k", "k")
    (task,) = passing(b, [early, last])
    b.commit()
    a.commit()

    assert task.task_id == early
    assert passed(a, [late]) == []
    a.commit()
    settle_one(b, ending(task))
    b.commit()
    assert wake(b, ORDER) == [late]
    assert passed(a, [last]) == []
    assert passed(a, [late]) == [late]


def test_a_head_whose_row_somebody_holds_lets_nobody_past(pair: Pair) -> None:
    a, b = pair
    first, second = made(a, "k", "k")
    cancel(a, first)

    assert passed(b, [first, second]) == []
    b.commit()
    a.commit()

    assert wake(b, ORDER) == [second]


def test_a_run_that_was_given_back_goes_first_again(pair: Pair) -> None:
    a, b = pair
    first, second = made(a, "k", "k")
    (task,) = passing(a, [first, second])
    a.commit()
    release(a, [task.fence])
    a.commit()

    assert wake(b, ORDER) == []
    assert passed(b, [second]) == []
    b.commit()
    assert passed(b, [first]) == [first]


@pytest.mark.parametrize("policy", ["blocks", "skips"])
def test_a_run_given_back_for_later_blocks_or_skips(pair: Pair, policy: str) -> None:
    a, b = pair
    first, second = made(a, "k", "k", order_policy=policy)
    (task,) = passing(a, [first, second])
    a.commit()
    release(a, [task.fence], wait=timedelta(hours=1))
    a.commit()

    goes_on = [second] if policy == "skips" else []
    assert wake(b, ORDER) == goes_on
    assert passed(b, [second]) == goes_on


@pytest.mark.test_all
@pytest.mark.parametrize("options", [{"enabled": False}, {"delay": "1h"}])
def test_who_has_not_begun_and_cannot_run_now_holds_no_key(pair: Pair, options) -> None:
    a, b = pair
    made(a, "k", **options)
    (second,) = made(a, "k")

    assert passed(b, [second]) == [second]


def test_a_gate_that_was_removed_meanwhile_lets_nobody_pass_until_it_is_there_again(
    pair: Pair,
) -> None:
    a, b = pair
    (first,) = made(a, "k")
    found = order_and_limits.waiting(a, [first])

    assert let_pass(a, found, claimer(), uuid4())[0] == []
    assert passed(b, [first]) == [first]
