"""Races at limits and keys, who is woken, and the plans of their statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.flow_control.admission import Capacity
from tasks_app.domain.flow_control.circuit_breaker import Breaker, BreakerMode
from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit
from tasks_app.domain.queues import parse_window
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.dispatch.set_aside import sweep_all
from tasks_app.pool.flow_control import (
    capacity,
    circuit_breakers,
    order_and_limits,
    queue_settings,
    waiting_list,
)
from tasks_app.pool.flow_control.capacity import capacities_of, insert_gates, lock_buckets
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.pool.flow_control.queue_settings import pause
from tasks_app.pool.flow_control.waiting_list import wake_tasks as wake_held
from tasks_app.pool.runs.claim import Claims, claim
from tasks_app.pool.runs.leases import release
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.runtime.flow_control.admission import let_pass
from tests.factory import claimer, ending, pending_task, row_of
from tests.pool.database import Ask, Verb, statistics
from tests.pool.interleave import blocked
from tests.pool.runs.racing import FILL, GROUP, NAMES, PAGES_A_ROW, STEPS_A_ROW

Pair = tuple[Connection, Connection]


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


def test_gates_wished_for_in_opposite_orders_are_locked_in_one(engine: Engine, pair: Pair) -> None:
    a, b = pair
    one, two_, three, four = made(a, "x", "y", "y", "x")
    assert passed(a, [one, two_]) == [one, two_]
    waiting = blocked(engine, b, a, lambda c: passed(c, [three, four]))
    a.commit()
    assert waiting.result() == []


def test_a_claim_that_waits_for_a_gate_has_no_later_one(engine: Engine, pair: Pair) -> None:
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


def test_a_run_ends_while_another_is_held_and_the_last_look_wakes_it(pair: Pair) -> None:
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


def test_a_lower_id_that_commits_late_waits_for_the_run_and_is_next(pair: Pair) -> None:
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


def test_a_gate_removed_meanwhile_lets_nobody_pass_until_it_is_back(pair: Pair) -> None:
    a, b = pair
    (first,) = made(a, "k")
    found = order_and_limits.waiting(a, [first])
    assert let_pass(a, found, claimer(), uuid4())[0] == []
    assert passed(b, [first]) == [first]


NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
KEY = Gate(GateKind.KEY, "l")
CLAIMER = claimer("t", "bank.pay")


def shut(connection: Connection) -> None:
    queue_settings.change_queue(connection, "a", {"windows": (parse_window("22:00-06:00"),)})


def broken(connection: Connection) -> None:
    circuit_breakers.synchronise(connection, {Breaker("bank"): ["bank.pay"]}, ["bank.pay", "t"])
    circuit_breakers.override(connection, "bank", BreakerMode.OPEN)


STOPS: dict[str, Callable[[Connection], object]] = {
    "a paused queue": lambda connection: pause(connection, "a"),
    "a closed window": shut,
    "an open breaker": broken,
}


@pytest.fixture
def limited_key(connection: Connection) -> Connection:
    set_limit(connection, Limit(GateKind.KEY, "l", 1))
    return connection


def made_at_noon(connection: Connection, number: int, name: str = "t", **options: Any) -> list[int]:
    options = {"limit_key": "l", "now": NOON, **options}
    return [int(pending_task(connection, name, **options)) for _ in range(number)]


def passing_at_noon(connection: Connection, *ids: int, now: datetime = NOON) -> list[ClaimedTask]:
    found = order_and_limits.waiting(connection, ids, now=now)
    insert_gates(connection, found.gates)
    return let_pass(connection, found, CLAIMER, uuid4(), now=now)[0]


def ended(connection: Connection, run: ClaimedTask, now: datetime = NOON) -> list[int]:
    """Those who hear that they may run, now that this one is over."""
    settle_one(connection, ending(run))
    return woken(connection, {KEY: 1}, now)


def woken(
    connection: Connection, most: dict[Gate, int] | None = None, now: datetime = NOON
) -> list[int]:
    limits = order_and_limits.read_limits(connection)
    rooms = capacities_of(connection, lock_buckets(connection, [KEY]), limits, now=now)
    return [
        task_id for _, task_id in waiting_list.wake_tasks(connection, rooms, limits, most, now=now)
    ]


def reasons(connection: Connection, ids: Sequence[int]) -> set[str | None]:
    return {row_of(connection, task_id).parked for task_id in ids}


@pytest.mark.parametrize("stop", STOPS)
def test_a_wake_up_passes_by_what_stands_still(limited_key: Connection, stop: str) -> None:
    (first,) = made_at_noon(limited_key, 1)
    still = made_at_noon(limited_key, 20, "bank.pay", queue="a")
    others = made_at_noon(limited_key, 3)
    (run,) = passing_at_noon(limited_key, first, *still, *others)
    STOPS[stop](limited_key)

    assert ended(limited_key, run) == others[:1]
    assert [task.task_id for task in passing_at_noon(limited_key, others[0])] == others[:1]
    assert reasons(limited_key, still) == {None}, "they wait in their queue, for its sake alone"
    assert reasons(limited_key, others[1:]) == {"limit key l"}


@pytest.mark.parametrize("barred", ["enabled = false", "expires_at = '2026-06-01T11:00Z'"])
def test_a_wake_up_passes_by_what_never_runs(limited_key: Connection, barred: str) -> None:
    first, *others = made_at_noon(limited_key, 9)
    (run,) = passing_at_noon(limited_key, first, *others)
    late = text(f"UPDATE task_pending SET {barred} WHERE id = ANY(:ids)")
    limited_key.execute(late, {"ids": others[:5]})
    assert ended(limited_key, run) == others[5:6]
    assert reasons(limited_key, others[:5]) == {None}


def test_a_wake_up_passes_over_those_that_another_gate_holds(limited_key: Connection) -> None:
    """They stand in line of the limit, and their order key was taken since."""
    (head,) = made_at_noon(limited_key, 1, order_key="k", limit_key=None, delay="1m")
    (first,) = made_at_noon(limited_key, 1)
    ordered = made_at_noon(limited_key, 5, order_key="k")
    others = made_at_noon(limited_key, 2)
    (run,) = passing_at_noon(limited_key, first, *ordered[:1], *others)
    limited_key.execute(
        text(
            "UPDATE task_pending SET parked = 'limit key l', parked_kind = 'key', parked_for = 'l',"
            " scan_at = :at WHERE id = ANY(:ids)"
        ),
        {"at": NOON + timedelta(days=1), "ids": ordered},
    )
    (_,) = passing_at_noon(limited_key, head, now=NOON + MINUTE)

    assert ended(limited_key, run, NOON + MINUTE) == others[:1]
    assert reasons(limited_key, ordered) == {None}


@pytest.mark.test_all
def test_of_a_long_line_that_stands_still_more_is_read_soon(limited_key: Connection) -> None:
    (first,) = made_at_noon(limited_key, 1)
    (run,) = passing_at_noon(limited_key, first)
    columns = "name, queue, limit_key, due_at, scan_at, parked_kind, parked_for"
    line = f"INSERT INTO task_pending ({columns})"
    held = "SELECT 't', 'a', 'l', :now, CAST(:now AS timestamptz) + interval '1d', 'key', 'l'"
    values = {
        "now": NOON,
        "number": sum(n * waiting_list.FARTHER + 1 for n in range(waiting_list.MOST_READS)) + 1,
    }
    limited_key.execute(text(f"{line} {held} FROM generate_series(1, :number)"), values)
    (other,) = made_at_noon(limited_key, 1)
    assert passing_at_noon(limited_key, other) == []
    pause(limited_key, "a")

    assert ended(limited_key, run) == []
    soon = limited_key.execute(text("SELECT look_at FROM task_gate")).scalar_one()
    assert soon - NOON <= timedelta(seconds=0.05)
    assert woken(limited_key) == [other]


def test_an_unused_wake_up_is_followed_by_another_in_a_second(limited_key: Connection) -> None:
    first, *others = made_at_noon(limited_key, 4)
    (run,) = passing_at_noon(limited_key, first, *others)
    assert ended(limited_key, run) == others[:1]
    look_at = limited_key.execute(text("SELECT look_at FROM task_gate")).scalar_one()
    assert look_at == NOON + timedelta(seconds=1)
    assert woken(limited_key, now=look_at) == others[1:2]


def test_behind_a_retry_the_next_look_is_when_that_expires(connection: Connection) -> None:
    until = NOON + timedelta(seconds=10)
    (head,) = made_at_noon(connection, 1, order_key="k", limit_key=None, expires_at=until)
    (run,) = passing_at_noon(connection, head)
    settle_one(connection, ending(run, Event.RETRY, wait=timedelta(hours=1)), now=NOON)
    (behind,) = made_at_noon(connection, 1, order_key="k", limit_key=None)
    assert passing_at_noon(connection, behind) == []

    look_at = connection.execute(text("SELECT look_at FROM task_gate")).scalar_one()

    assert look_at == until
    assert passing_at_noon(connection, behind, now=until) == []  # it is held until it is looked at
    order = Gate(GateKind.ORDER, "k")
    rooms = capacities_of(connection, [order], order_and_limits.read_limits(connection), now=until)
    assert waiting_list.wake_tasks(
        connection, rooms, order_and_limits.read_limits(connection), now=until
    ) == [("default", behind)]


def test_a_gate_wakes_nobody_of_another_key(limited_key: Connection) -> None:
    set_limit(limited_key, Limit(GateKind.KEY, "other", 0))
    first, behind = made_at_noon(limited_key, 2)
    (run,) = passing_at_noon(limited_key, first)
    (other,) = made_at_noon(limited_key, 1, limit_key="other", priority=0)
    assert passing_at_noon(limited_key, other, behind) == []
    assert ended(limited_key, run) == [behind]
    assert reasons(limited_key, [other]) == {"limit key other"}


ORDERED, OWN = range(40_001, 48_001), range(90_001, 94_001)
KEYS = 400
FULL = (
    FILL
    + f"""
INSERT INTO task_pending (id, name, order_key, limit_key, due_at, scan_at,
        parked, parked_kind, parked_for)
    SELECT n, 'n1', 'k' || n % {KEYS}, 'tenant:' || n % {KEYS}, now() - interval '1h',
        CASE WHEN n % 3 = 0 THEN now() - interval '1h' ELSE now() + interval '1h' END,
        CASE n % 3 WHEN 1 THEN 'order k' || n % {KEYS}
                   WHEN 2 THEN 'limit key tenant:' || n % {KEYS} END,
        CASE n % 3 WHEN 1 THEN 'order' WHEN 2 THEN 'key' END,
        CASE n % 3 WHEN 1 THEN 'k' || n % {KEYS} WHEN 2 THEN 'tenant:' || n % {KEYS} END
    FROM generate_series({ORDERED.start}, {ORDERED.stop - 1}) AS n;
INSERT INTO task_pending (id, name, order_key, limit_key, state, attempt, lease_token, lease_until,
        owner, started_at, max_attempts, at_most_once)
    SELECT 50000 + n, 'n1', 'k' || n, 'tenant:' || n, 'RUNNING', 1, gen_random_uuid(),
        now() + interval '1h', 'w3', now(), 3, false
    FROM generate_series(1, {KEYS}) AS n;
INSERT INTO task_pending (id, name, limit_key, more_limit_keys, state, attempt, lease_token,
        lease_until, owner, started_at, max_attempts, at_most_once)
    SELECT 51000 + n, 'n1', 'tenant:' || n, ARRAY['bank:' || n % 7, 'region:' || n % 2], 'RUNNING',
        1, gen_random_uuid(), now() + interval '1h', 'w3', now(), 3, false
    FROM generate_series(1, 100) AS n;
INSERT INTO task_pending (id, name, limit_key, more_limit_keys)
    SELECT 80000 + n, 'n1', 'tenant:1', ARRAY['bank:' || n % 7] FROM generate_series(1, 4000) AS n;
INSERT INTO task_pending (id, name, queue, due_at, scan_at, parked, parked_kind, parked_for,
        expires_at)
    SELECT 70000 + n, 'n1', 'late', now() - interval '1h', now() + interval '1h',
        'order k1', 'order', 'k1',
        now() + (n % 10 - 1) * interval '1h'
    FROM generate_series(1, 4000) AS n;
INSERT INTO task_pending (id, name, queue, order_key, limit_key)
    SELECT n, 'n1', 'own', CASE n % 2 WHEN 0 THEN 'own' || n END,
        CASE n % 2 WHEN 1 THEN 'user:' || n END
    FROM generate_series({OWN.start}, {OWN.stop - 1}) AS n;
INSERT INTO task_limit (kind, target, most) VALUES ('key', 'user:*', 2), ('key', 'user:1', 2);
INSERT INTO task_error (id, name, order_key, state)
    SELECT 60000 + n, 'n1', 'k' || n % {KEYS}, 'FAILED' FROM generate_series(1, 2000) AS n;
INSERT INTO task_gate (gate, look_at)
    SELECT 'order k' || n, now() FROM generate_series(0, {KEYS}) AS n
    UNION ALL SELECT 'limit key tenant:' || n, NULL FROM generate_series(0, {KEYS}) AS n;
"""
)
IDS, OWN_IDS = list(ORDERED), list(OWN)
PAGES = PAGES_A_ROW + 15
"""Who was passed by may lie in any day's partition, each of which is probed: on 15 that is 39."""


def of(kind: GateKind, word: str, number: int) -> list[Gate]:
    return [Gate(kind, f"{word}{n}") for n in range(number)]


def line(connection, some: list[Gate]):
    rooms = dict.fromkeys(some, Capacity(1.0))
    front = dict.fromkeys(some, waiting_list._FRONT)
    return waiting_list._read(connection, dict.fromkeys(some, 1), rooms, front, None)


def go_on(connection, some: list[Gate]):
    values = {
        "gates": list(map(str, some)),
        **waiting_list._columns(some),
        "waits": [5.0] * len(some),
    }
    connection.execute(waiting_list._GO_ON, {**values, "ids": IDS[: len(some)], "now": None})


VERBS: dict[str, tuple[Verb, int]] = {
    "waiting": (
        lambda c, n: c.execute(
            order_and_limits._WAITING, {"ids": IDS[:n], "names": list(NAMES), "now": None}
        ).all(),
        GROUP,
    ),
    "lock": (lambda c, n: capacity.lock_buckets(c, of(GateKind.ORDER, "k", n)), GROUP),
    "who runs of order keys": (
        lambda c, n: capacity._running(c, of(GateKind.ORDER, "k", n)),
        GROUP,
    ),
    "who runs of limit keys": (
        lambda c, n: capacity._running(c, of(GateKind.KEY, "tenant:", n)),
        GROUP,
    ),
    "who runs of other limit keys": (
        lambda c, n: capacity._running(c, of(GateKind.KEY, "bank:", n)),
        GROUP,
    ),
    "who runs of a name": (lambda c, _: capacity._running(c, [Gate(GateKind.NAME, "n1")]), 1_500),
    "heads": (lambda c, n: capacity._heads(c, [f"k{i}" for i in range(n)], None), GROUP),
    "lock of keys": (lambda c, n: order_and_limits.lock_gates(c, OWN_IDS[:n]), GROUP),
    "passing": (lambda c, n: order_and_limits.find_clear_tasks(c, OWN_IDS[: n // 2]), GROUP),
    "passing of shared keys": (
        lambda c, n: order_and_limits.find_clear_tasks(c, IDS[: n // 2]),
        GROUP,
    ),
    "claim of clear": (
        lambda c, n: claim(c, OWN_IDS[: n // 2], claimer(*NAMES), UUID(int=9), Claims.CLEAR),
        GROUP,
    ),
    "park": (
        lambda c, n: c.execute(waiting_list._PARK[GateKind.ORDER], {"ids": IDS[:n], "now": None}),
        GROUP,
    ),
    "line": (lambda c, n: line(c, of(GateKind.ORDER, "k", n)), GROUP),
    "go on": (lambda c, n: go_on(c, of(GateKind.ORDER, "k", n)), GROUP),
    "anybody waits": (lambda c, _: waiting_list.gates_with_waiters(c, []), GROUP),
    "waited for": (
        lambda c, n: c.execute(
            waiting_list._WAITING, {"gates": list(map(str, of(GateKind.ORDER, "k", n)))}
        ),
        GROUP,
    ),
    "sweep": (sweep_all, GROUP),
    "passed by": (lambda c, n: order_and_limits.gates_of_tasks(c, IDS[:n]), GROUP),
    "overdue": (waiting_list.overdue_gates, GROUP),
    "in front": (
        lambda c, _: order_and_limits.find_gated_tasks(c, ["default", "q0"], NAMES),
        1_100,
    ),
}


@statistics
@pytest.mark.parametrize("name", VERBS)
def test_a_statement_reads_about_what_it_is_asked_for(ask: Ask, name: str) -> None:
    number = VERBS[name][1]
    plan = ask(name)
    assert plan.whole == ()
    assert plan.rows <= STEPS_A_ROW * number + 300
    assert plan.buffers <= PAGES * number + 1_000


def test_a_room_is_known_by_what_it_lets_pass() -> None:
    assert Capacity(1.0, head=7, ordered=True).admits(7)
    assert not Capacity(1.0, head=7, ordered=True).admits(8)
    assert not Capacity(0.0).admits(7)
