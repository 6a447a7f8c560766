"""Limits on real rows, at instants that the tests choose."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection

from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit, limit_of
from tasks_app.pool.flow_control import order_and_limits, waiting_list
from tasks_app.pool.flow_control.capacity import capacities_of, insert_gates, lock_buckets
from tasks_app.pool.flow_control.order_and_limits import all_limits, drop_limit, set_limit
from tasks_app.pool.flow_control.waiting_list import wake_tasks as wake_held
from tasks_app.pool.runs.claim import claim
from tasks_app.runtime.flow_control.admission import let_pass
from tests.factory import claimer, pending_task, row_of

NOON = datetime(2040, 1, 1, 12, tzinfo=UTC)
GATE = Gate(GateKind.KEY, "k1")


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def passing(connection: Connection, ids: list[int], now: datetime) -> list[int]:
    found = order_and_limits.waiting(connection, ids, now=now)
    insert_gates(connection, found.gates)
    return [t.task_id for t in let_pass(connection, found, claimer(), uuid4(), now=now)[0]]


def wake(connection: Connection, now: datetime) -> list[int]:
    limits = order_and_limits.read_limits(connection)
    late = waiting_list.overdue_gates(connection, 10, now=now)
    rooms = capacities_of(connection, lock_buckets(connection, late), limits, now=now)
    return [task_id for _, task_id in wake_held(connection, rooms, limits, now=now)]


def waiting(connection: Connection, number: int, **options) -> list[int]:
    given = {"limit_key": "k1", "now": NOON, **options}
    return [int(pending_task(connection, **given)) for _ in range(number)]


def test_a_bucket_lets_its_burst_pass_and_then_what_flows_in(connection: Connection) -> None:
    set_limit(connection, limit_of("key", "k*", None, "10/1s", 4))
    ids = waiting(connection, 9)

    assert passing(connection, ids, NOON) == ids[:4]
    assert row_of(connection, ids[4]).parked == "limit key k1"
    assert waiting_list.next_gate_check_in_s(connection, now=NOON) == pytest.approx(0.2)

    assert wake(connection, after(0.1)) == []
    assert wake(connection, after(0.2)) == ids[4:6]
    assert passing(connection, ids, after(0.2)) == ids[4:6]
    assert wake(connection, after(9)) == ids[6:9]
    assert passing(connection, ids, after(9)) == ids[6:9]
    assert waiting_list.next_gate_check_in_s(connection, now=after(9)) is None


def test_who_is_woken_has_the_better_priority_then_the_lower_id(connection: Connection) -> None:
    set_limit(connection, Limit(GateKind.KEY, "k1", 0))
    low, high = waiting(connection, 2, priority=9), waiting(connection, 2, priority=1)
    assert passing(connection, [*low, *high], NOON) == []

    set_limit(connection, Limit(GateKind.KEY, "k1", 3), now=after(1))

    assert sorted(wake(connection, after(1))) == sorted([*high, low[0]])


def test_a_limit_that_is_dropped_lets_all_of_its_pattern_go(connection: Connection) -> None:
    set_limit(connection, Limit(GateKind.KEY, "k*", 0))
    ids = waiting(connection, 3)
    passing(connection, ids, NOON)

    assert drop_limit(connection, GateKind.KEY, "k*", now=after(1))

    assert wake(connection, after(1)) == ids
    assert passing(connection, ids, after(1)) == ids
    assert all_limits(connection) == []
    assert not drop_limit(connection, GateKind.KEY, "k*")


def test_a_limit_that_is_raised_counts_who_runs_already(connection: Connection) -> None:
    set_limit(connection, Limit(GateKind.KEY, "k1", 1))
    ids = waiting(connection, 4)
    assert passing(connection, ids, NOON) == ids[:1]

    set_limit(connection, Limit(GateKind.KEY, "k1", 3), now=after(1))

    assert wake(connection, after(1)) == ids[1:3]


def test_a_limit_of_a_queue_counts_what_ran_before_it_was_set(connection: Connection) -> None:
    ids = waiting(connection, 3, limit_key=None, queue="q")
    claim(connection, ids[:1], claimer(), uuid4(), now=NOON)
    set_limit(connection, Limit(GateKind.QUEUE, "q", 2))

    assert passing(connection, ids[1:], NOON) == ids[1:2]


def test_gates_that_nobody_comes_to_any_more_are_removed_and_full_buckets_alone(
    connection: Connection,
) -> None:
    set_limit(connection, limit_of("key", "k1", None, "10/1s", 4))
    keyed, ordered = waiting(connection, 1), waiting(connection, 1, order_key="o", limit_key=None)
    insert_gates(connection, [Gate(GateKind.ORDER, "gone")])
    passing(connection, [*keyed, *ordered], NOON)

    assert order_and_limits.prune_gates(connection, 10, now=after(60)) == 1
    left = lock_buckets(connection, [GATE, Gate(GateKind.ORDER, "o"), Gate(GateKind.ORDER, "gone")])
    assert list(left) == [GATE, Gate(GateKind.ORDER, "o")]
    assert order_and_limits.prune_gates(connection, 10, now=NOON + timedelta(days=400)) == 1


def test_a_task_passes_all_of_its_gates_or_none(connection: Connection) -> None:
    set_limit(connection, limit_of("key", "k1", None, "10/1s", 4))
    set_limit(connection, Limit(GateKind.NAME, "t", 0))
    ids = waiting(connection, 2)

    assert passing(connection, ids, NOON) == []
    assert row_of(connection, ids[0]).parked == "limit name t"
    rooms = capacities_of(connection, [GATE], order_and_limits.read_limits(connection), now=NOON)
    assert rooms[GATE].tokens == 4
