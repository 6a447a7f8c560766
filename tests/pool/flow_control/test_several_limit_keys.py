"""Tasks with several limit keys: each run has a place under every one, and leaves all together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit, limit_of
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flow_control import order_and_limits, waiting_list
from tasks_app.pool.flow_control.capacity import capacities_of, insert_gates, lock_buckets
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.pool.flow_control.waiting_list import wake_tasks as wake_held
from tasks_app.pool.runs.leases import release, rescue_expired
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.requeue import requeue
from tasks_app.runtime.flow_control.admission import let_pass
from tests.factory import LEASE, claimer, ending, pending_task, row_of
from tests.pool.interleave import blocked, two

BANK, TENANT = Gate(GateKind.KEY, "bank:acme"), Gate(GateKind.KEY, "tenant:7")
BOTH = [BANK.key, TENANT.key]
Pair = tuple[Connection, Connection]


@pytest.fixture
def pair(engine: Engine) -> Iterator[Pair]:
    with two(engine) as connections:
        yield connections


def limited(connection: Connection, bank: int, tenant: int) -> None:
    for target, most in (("bank:*", bank), (TENANT.key, tenant)):
        set_limit(connection, Limit(GateKind.KEY, target, most))
    connection.commit()


def made(connection: Connection, *keys: str | Sequence[str]) -> list[int]:
    ids = [int(pending_task(connection, limit_key=key)) for key in keys]
    connection.commit()
    return ids


def passing(connection: Connection, ids: Sequence[int]) -> list[ClaimedTask]:
    found = order_and_limits.waiting(connection, ids)
    insert_gates(connection, found.gates)
    connection.commit()
    return let_pass(connection, found, claimer(), uuid4())[0]


def passed(connection: Connection, ids: Sequence[int]) -> list[int]:
    return [task.task_id for task in passing(connection, ids)]


def wake(connection: Connection, some: Sequence[Gate]) -> list[int]:
    limits = order_and_limits.read_limits(connection)
    waited = waiting_list.gates_with_waiters(connection, some)
    rooms = capacities_of(connection, lock_buckets(connection, waited), limits)
    return [task_id for _, task_id in wake_held(connection, rooms, limits)]


def running(connection: Connection) -> list[int]:
    rooms = capacities_of(connection, [BANK, TENANT], order_and_limits.read_limits(connection))
    return [rooms[BANK].running, rooms[TENANT].running]


def test_a_task_runs_only_while_there_is_room_under_each_key(connection: Connection) -> None:
    limited(connection, 2, 1)
    first, second, of_bank, of_tenant = made(connection, BOTH, BOTH[::-1], BANK.key, TENANT.key)

    assert passed(connection, [first, second, of_bank, of_tenant]) == [first, of_bank]

    assert running(connection) == [2, 1]
    assert row_of(connection, second).parked == "limit key tenant:7"
    assert row_of(connection, second).parked_for == TENANT.key
    assert row_of(connection, of_tenant).parked == "limit key tenant:7"


@pytest.mark.parametrize("keys", [BOTH, BOTH[::-1]], ids=["by the first", "by the second"])
def test_who_is_held_by_any_key_waits_in_its_line(connection: Connection, keys: list[str]) -> None:
    limited(connection, 1, 5)
    before, behind = made(connection, BANK.key, keys)
    (task,) = passing(connection, [before, behind])
    assert row_of(connection, behind).parked_for == BANK.key

    settle_one(connection, ending(task))

    assert wake(connection, [TENANT]) == []
    assert wake(connection, [BANK]) == [behind]
    assert passed(connection, [behind]) == [behind]
    assert running(connection) == [1, 1]


def test_a_wake_up_passes_over_those_that_their_other_key_holds(connection: Connection) -> None:
    limited(connection, 1, 1)
    of_tenant, of_bank, both, last = made(connection, TENANT.key, BANK.key, BOTH, BANK.key)
    ran = {t.task_id: t for t in passing(connection, [of_tenant, of_bank, both, last])}
    assert [row_of(connection, i).parked_for for i in (both, last)] == [BANK.key, BANK.key]

    settle_one(connection, ending(ran[of_bank]))

    assert wake(connection, [BANK])[-1:] == [last]
    assert passed(connection, [last]) == [last]


def _rescued(connection: Connection, task: ClaimedTask) -> None:
    ended = text("UPDATE task_pending SET lease_until = now() - interval '1 h' WHERE id = :id")
    connection.execute(ended, {"id": task.task_id})
    assert rescue_expired(connection, lease=LEASE, max_crashes=5)


def _cancelled(connection: Connection, task: ClaimedTask) -> None:
    cancel(connection, task.task_id)
    assert release(connection, [task.fence])


ENDS: dict[str, Callable[[Connection, ClaimedTask], object]] = {
    "succeeds": lambda c, task: settle_one(c, ending(task)),
    "fails": lambda c, task: settle_one(c, ending(task, Event.FAIL)),
    "retries": lambda c, task: settle_one(c, ending(task, Event.RETRY, wait=timedelta(hours=1))),
    "is given back": lambda c, task: release(c, [task.fence], wait=timedelta(hours=1)),
    "is rescued": _rescued,
    "is cancelled": _cancelled,
}


@pytest.mark.parametrize("end", ENDS)
def test_however_a_run_ends_all_of_its_places_are_free(connection: Connection, end: str) -> None:
    limited(connection, 1, 1)
    first, *others = made(connection, BOTH, BANK.key, TENANT.key)
    (task,) = passing(connection, [first, *others])

    ENDS[end](connection, task)

    assert running(connection) == [0, 0]
    gates = order_and_limits.gates_of_tasks(connection, [first])
    assert set(gates) == {BANK, TENANT}
    assert sorted(wake(connection, gates)) == others
    assert passed(connection, others) == others


def test_a_task_comes_back_with_all_of_its_keys(connection: Connection) -> None:
    limited(connection, 1, 1)
    (task_id,) = made(connection, BOTH)
    (task,) = passing(connection, [task_id])
    settle_one(connection, ending(task, Event.FAIL))

    requeue(connection, task_id)

    row = row_of(connection, task_id)
    assert [row.limit_key, *row.more_limit_keys] == BOTH
    assert passed(connection, [task_id]) == [task_id]
    assert running(connection) == [1, 1]


def test_a_start_takes_a_token_of_each_key_or_of_none(connection: Connection) -> None:
    set_limit(connection, limit_of("key", BANK.key, None, "10/1h", 5))
    set_limit(connection, limit_of("key", TENANT.key, None, "10/1h", 2))
    ids = made(connection, *[BOTH] * 4)

    assert passed(connection, ids) == ids[:2]

    rooms = capacities_of(connection, [BANK, TENANT], order_and_limits.read_limits(connection))
    assert [int(rooms[gate].tokens) for gate in (BANK, TENANT)] == [3, 0]


def test_a_key_without_a_limit_holds_nobody(connection: Connection) -> None:
    set_limit(connection, Limit(GateKind.KEY, TENANT.key, 1))
    first, second = made(connection, BOTH, ["bank:acme", "region:eu"])

    assert passed(connection, [first, second]) == [first, second]


def test_who_ran_before_there_was_a_limit_counts(connection: Connection) -> None:
    """Nothing is counted up when a run begins, so nothing is missing."""
    set_limit(connection, Limit(GateKind.KEY, BANK.key, 5))
    first, second = made(connection, BOTH, BOTH)
    assert passed(connection, [first]) == [first]

    limited(connection, 5, 1)

    assert passed(connection, [second]) == []


def test_two_claims_in_opposite_orders_neither_deadlock_nor_share_the_keys(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    limited(a, 1, 1)
    one, other = made(a, BOTH, BOTH[::-1])
    (task,) = passing(a, [one])

    waiting = blocked(engine, b, a, lambda c: passed(c, [other]))
    a.commit()

    assert waiting.result() == []
    assert row_of(b, other).parked_for == TENANT.key  # its first; neither has a place of the other
    assert running(b) == [1, 1]
    b.commit()
    settle_one(a, ending(task))
    a.commit()
    assert wake(a, [TENANT]) == [other]
    a.commit()
    assert passed(b, [other]) == [other]


def test_claims_that_share_the_second_key_alone_wait_for_each_other(
    engine: Engine, pair: Pair
) -> None:
    a, b = pair
    limited(a, 1, 1)
    one, other = made(a, ["bank:acme", TENANT.key], ["bank:other", TENANT.key])
    assert passed(a, [one]) == [one]

    waiting = blocked(engine, b, a, lambda c: passed(c, [other]))
    a.commit()

    assert waiting.result() == []


def test_a_claim_that_is_rolled_back_leaves_no_place_taken(engine: Engine, pair: Pair) -> None:
    a, b = pair
    limited(a, 1, 1)
    one, other = made(a, BOTH, BOTH)
    assert passed(a, [one]) == [one]

    waiting = blocked(engine, b, a, lambda c: passed(c, [other]))
    a.rollback()

    assert waiting.result() == [other]
