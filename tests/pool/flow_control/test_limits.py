"""Order keys and limits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.flow_control.admission import admit
from tasks_app.domain.flow_control.circuit_breaker import Breaker, BreakerMode
from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit, limit_of
from tasks_app.domain.queues import check_queue_options
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flow_control import (
    circuit_breakers,
    order_and_limits,
    queue_settings,
    waiting_list,
)
from tasks_app.pool.flow_control.capacity import capacities_of, insert_gates, lock_buckets
from tasks_app.pool.flow_control.order_and_limits import (
    all_limits,
    drop_limit,
    find_clear_tasks,
    lock_gates,
    set_limit,
)
from tasks_app.pool.flow_control.queue_settings import pause
from tasks_app.pool.flow_control.waiting_list import wake_tasks as wake_held
from tasks_app.pool.runs.claim import Claimer, Claims, claim
from tasks_app.pool.runs.leases import release, rescue_expired
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.requeue import requeue
from tasks_app.runtime.flow_control.admission import let_pass
from tests.factory import LEASE, claimer, ending, pending_task, row_of
from tests.pool.interleave import blocked

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


def test_heavy_tasks_pass_while_there_is_a_token_and_are_woken_as_it_is_paid_back(
    connection: Connection,
) -> None:
    set_limit(connection, limit_of("key", "k*", None, "600/1m", 40))
    ids = waiting(connection, 4, weight=35)

    assert passing(connection, ids, NOON) == ids[:2]
    rooms = capacities_of(connection, [GATE], order_and_limits.read_limits(connection), now=NOON)
    assert rooms[GATE].tokens == -30
    assert waiting_list.next_gate_check_in_s(connection, now=NOON) == pytest.approx(5)

    assert wake(connection, after(3)) == []
    assert wake(connection, after(5)) == ids[2:3]
    assert row_of(connection, ids[3]).parked == "limit key k1"
    assert passing(connection, ids, after(5)) == ids[2:3]
    assert wake(connection, after(99)) == ids[3:]


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


def test_unused_gates_are_removed_but_of_buckets_only_full_ones(connection: Connection) -> None:
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


BANK, TENANT = Gate(GateKind.KEY, "bank:acme"), Gate(GateKind.KEY, "tenant:7")
BOTH = [BANK.key, TENANT.key]
Pair = tuple[Connection, Connection]


def limited(connection: Connection, bank: int, tenant: int) -> None:
    for target, most in (("bank:*", bank), (TENANT.key, tenant)):
        set_limit(connection, Limit(GateKind.KEY, target, most))
    connection.commit()


def made(connection: Connection, *keys: str | Sequence[str]) -> list[int]:
    ids = [int(pending_task(connection, limit_key=key)) for key in keys]
    connection.commit()
    return ids


def passing_keys(connection: Connection, ids: Sequence[int]) -> list[ClaimedTask]:
    found = order_and_limits.waiting(connection, ids)
    insert_gates(connection, found.gates)
    connection.commit()
    return let_pass(connection, found, claimer(), uuid4())[0]


def passed(connection: Connection, ids: Sequence[int]) -> list[int]:
    return [task.task_id for task in passing_keys(connection, ids)]


def wake_of(connection: Connection, some: Sequence[Gate]) -> list[int]:
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
    (task,) = passing_keys(connection, [before, behind])
    assert row_of(connection, behind).parked_for == BANK.key
    settle_one(connection, ending(task))
    assert wake_of(connection, [TENANT]) == []
    assert wake_of(connection, [BANK]) == [behind]
    assert passed(connection, [behind]) == [behind]
    assert running(connection) == [1, 1]


def test_a_wake_up_passes_over_those_that_their_other_key_holds(connection: Connection) -> None:
    limited(connection, 1, 1)
    of_tenant, of_bank, both, last = made(connection, TENANT.key, BANK.key, BOTH, BANK.key)
    ran = {t.task_id: t for t in passing_keys(connection, [of_tenant, of_bank, both, last])}
    assert [row_of(connection, i).parked_for for i in (both, last)] == [BANK.key, BANK.key]
    settle_one(connection, ending(ran[of_bank]))
    assert wake_of(connection, [BANK])[-1:] == [last]
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
    (task,) = passing_keys(connection, [first, *others])
    ENDS[end](connection, task)
    assert running(connection) == [0, 0]
    gates = order_and_limits.gates_of_tasks(connection, [first])
    assert set(gates) == {BANK, TENANT}
    assert sorted(wake_of(connection, gates)) == others
    assert passed(connection, others) == others


def test_a_task_comes_back_with_all_of_its_keys(connection: Connection) -> None:
    limited(connection, 1, 1)
    (task_id,) = made(connection, BOTH)
    (task,) = passing_keys(connection, [task_id])
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


def test_claims_in_opposite_orders_neither_deadlock_nor_share(engine: Engine, pair: Pair) -> None:
    a, b = pair
    limited(a, 1, 1)
    one, other = made(a, BOTH, BOTH[::-1])
    (task,) = passing_keys(a, [one])

    waiting = blocked(engine, b, a, lambda c: passed(c, [other]))
    a.commit()

    assert waiting.result() == []
    assert row_of(b, other).parked_for == TENANT.key  # its first; neither has a place of the other
    assert running(b) == [1, 1]
    b.commit()
    settle_one(a, ending(task))
    a.commit()
    assert wake_of(a, [TENANT]) == [other]
    a.commit()
    assert passed(b, [other]) == [other]


def test_claims_that_share_only_the_second_key_wait_in_turn(engine: Engine, pair: Pair) -> None:
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


def short(connection: Connection, ids: Sequence[int]) -> list[ClaimedTask]:
    return claim(connection, list(lock_gates(connection, ids)), claimer(), uuid4(), Claims.CLEAR)


def shortly(connection: Connection, ids: Sequence[int]) -> list[int]:
    return [task.task_id for task in short(connection, ids)]


def at_length(connection: Connection, ids: Sequence[int]) -> list[int]:
    found = order_and_limits.waiting(connection, ids)
    insert_gates(connection, found.gates)
    connection.commit()
    return [task.task_id for task in let_pass(connection, found, claimer(), uuid4())[0]]


WAYS = list(itertools.product((shortly, at_length), repeat=2))


def made_tasks(connection: Connection, number: int, **options) -> list[int]:
    ids = [int(pending_task(connection, **options)) for _ in range(number)]
    connection.commit()
    return ids


def limited_key(connection: Connection, most: int | None, target: str = "l", **rate) -> None:
    set_limit(connection, Limit(GateKind.KEY, target, most, **rate))
    connection.commit()


@pytest.mark.parametrize("seed", range(40))
def test_it_lets_pass_only_what_the_long_way_would(connection: Connection, seed: int) -> None:
    random = Random(seed)
    some = random.choice
    for target in ("a*", "ab", "c"):
        rate = {"rate": 5, "period": timedelta(seconds=1), "burst": 5} if some([0, 0, 1]) else {}
        set_limit(connection, Limit(GateKind.KEY, target, some([1, 2, 3]), **rate))
    if some([0, 0, 1]):
        set_limit(connection, Limit(some([GateKind.QUEUE, GateKind.NAME]), some(["t", "q"]), 1))
    ids = []
    for _ in range(random.randint(1, 14)):
        limit_key = some([None, "a", "ab", "abc", "c", "c", "free"])
        options = {
            "order_key": some([None, None, None, None, "x", "y", "z"]),
            "limit_key": [limit_key, "c"] if limit_key and some([0, 0, 0, 1]) else limit_key,
            "enabled": some([True, True, True, False]),
            "queue": some(["default", "q"]),
        }
        if options["order_key"]:
            options["order_policy"] = some(["blocks", "skips"])
        ids.append(int(pending_task(connection, **options)))
    for task_id in random.sample(ids, len(ids) // 3):
        for task in short(connection, [task_id]):
            if some([0, 1]):
                settle_one(connection, ending(task, some([Event.FAIL, Event.RETRY])))

    clear = find_clear_tasks(connection, ids)

    found = order_and_limits.waiting(connection, sorted(clear))
    rooms = capacities_of(connection, found.gates, found.limits)
    assert {*admit(found.waiting, rooms).ids} == clear - _without_gates(connection, clear)
    assert {*shortly(connection, ids)} == clear - _without_keys(connection, clear)


def _without_gates(connection: Connection, ids: set[int]) -> set[int]:
    return ids - {each.task_id for each in order_and_limits.waiting(connection, [*ids]).waiting}


def _without_keys(connection: Connection, ids: set[int]) -> set[int]:
    keyless = text(
        "SELECT id FROM task_pending WHERE id = ANY(:ids) AND order_key IS NULL"
        " AND limit_key IS NULL"
    )
    return {*connection.execute(keyless, {"ids": [*ids]}).scalars()}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("first", "second"), WAYS)
def test_of_two_claims_of_one_key_the_second_waits_and_finds_it_taken(
    engine: Engine, pair: Pair, first, second, known: bool
) -> None:
    a, b = pair
    one = made_tasks(a, 1, order_key="k")[0]
    if known:
        insert_gates(a, [Gate(GateKind.ORDER, "k")])
        a.commit()
    assert first(a, [one]) == [one]
    other = made_tasks(b, 1, order_key="k")[0]
    waiting = blocked(engine, b, a, lambda c: second(c, [other]))
    a.commit()
    assert waiting.result() == []
    b.commit()
    assert row_of(b, other).parked == ("order k" if second is at_length else None)


@pytest.mark.parametrize(("first", "second"), WAYS)
def test_two_claims_take_no_more_than_a_limit(engine: Engine, pair: Pair, first, second) -> None:
    a, b = pair
    ids = made_tasks(a, 4, limit_key="l")
    limited_key(a, 3)
    assert first(a, ids[:2]) == ids[:2]
    waiting = blocked(engine, b, a, lambda c: second(c, ids[2:]))
    a.commit()
    assert waiting.result() == ([] if second is shortly else ids[2:3])


def test_a_claim_that_was_taken_back_leaves_the_key_to_the_next(engine: Engine, pair: Pair) -> None:
    a, b = pair
    ids = made_tasks(a, 1, order_key="k")
    assert shortly(a, ids) == ids
    waiting = blocked(engine, b, a, lambda c: shortly(c, ids))
    a.rollback()
    assert waiting.result() == ids


def test_gates_wished_for_in_opposite_orders_are_locked_in_one(engine: Engine, pair: Pair) -> None:
    a, b = pair
    first = [made_tasks(a, 1, order_key=key)[0] for key in "xy"]
    assert shortly(a, first) == first
    second = [made_tasks(b, 1, order_key=key)[0] for key in "yx"]
    waiting = blocked(engine, b, a, lambda c: shortly(c, second))
    assert shortly(a, second) == []
    a.commit()
    assert waiting.result() == []


def test_a_row_that_becomes_claimable_behind_the_locks_is_not_taken(pair: Pair) -> None:
    a, b = pair
    (task_id,) = made_tasks(a, 1, order_key="k")
    (task,) = short(a, [task_id])
    a.commit()
    assert lock_gates(b, [task_id]) == {}
    settle_one(a, ending(task, Event.RETRY, wait=timedelta(0)))
    a.commit()
    assert [t.task_id for t in claim(b, [], claimer(), uuid4(), Claims.CLEAR)] == []
    assert shortly(b, [task_id]) == [task_id]


def test_a_lower_id_that_commits_late_does_not_pass_the_one_that_runs(pair: Pair) -> None:
    a, b = pair
    late = int(pending_task(a, order_key="k"))
    early = made_tasks(b, 1, order_key="k")
    assert shortly(b, early) == early
    b.commit()
    a.commit()
    assert shortly(a, [late]) == []
    assert find_clear_tasks(a, [late]) == set()


def test_of_a_limit_key_all_pass_beside_those_that_run_or_none(connection: Connection) -> None:
    ids = made_tasks(connection, 4, limit_key="l")
    limited_key(connection, 3)
    assert shortly(connection, ids[:1]) == ids[:1]
    assert find_clear_tasks(connection, ids[1:]) == set()
    assert find_clear_tasks(connection, ids[1:3]) == {*ids[1:3]}


def test_only_keys_with_a_limit_have_a_gate(connection: Connection) -> None:
    free, of_one, of_many = (
        made_tasks(connection, 1, limit_key=key)[0] for key in ("free", "l", "m:1")
    )
    limited_key(connection, 1)
    limited_key(connection, 1, "m:*")
    assert shortly(connection, [free, of_one, of_many]) == [free, of_one, of_many]
    gates = connection.execute(text("SELECT gate FROM task_gate ORDER BY gate")).scalars().all()
    assert gates == ["limit key l", "limit key m:1"]


PAST = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def taken(connection: Connection, ids: list[int], who: Claimer | None = None) -> list[int]:
    found = claim(connection, ids, who or claimer(), uuid4(), Claims.UNHINDERED, now=PAST)
    return [task.task_id for task in found]


def said(connection: Connection, **options: Any) -> None:
    queue_settings.change_queue(connection, "other", check_queue_options(options))


def test_it_takes_and_tells_the_same_as_the_long_way(connection: Connection) -> None:
    options = {
        "payload": {"é": [1]},
        "biz_key": "order:1",
        "retry": "5s,30s",
        "timeout": 1,
        "hard_timeout": 2,
        "headers": {"trace": "x"},
        "failures": 1,
        "now": PAST,
    }
    one, other = (pending_task(connection, **options) for _ in range(2))
    token = uuid4()

    (long,) = claim(connection, [one], claimer(), token, now=PAST + HOUR)
    (short,) = claim(connection, [other], claimer(), token, Claims.UNHINDERED, now=PAST + HOUR)

    key = row_of(connection, other).idempotency_key
    assert short == long._replace(fence=long.fence._replace(task_id=other), key_text=str(key))
    theirs, ours = (row_of(connection, i)._asdict() for i in (one, other))
    for column in ("id", "idempotency_key"):
        del theirs[column], ours[column]
    assert ours == theirs


def test_it_takes_a_whole_message_in_its_order_and_no_row_twice(connection: Connection) -> None:
    ids = [pending_task(connection, now=PAST) for _ in range(5)]
    message = [ids[n] for n in (3, 0, 4, 1, 2)]
    assert taken(connection, message) == message
    assert taken(connection, message) == []


@pytest.mark.parametrize(
    "row",
    [
        {"enabled": False},
        {"run_at": PAST + HOUR},
        {"run_at": PAST - HOUR, "expires_at": PAST},
        {"name": "strange"},
        {"at_most_once": True},
        {"crashes": 1},
        {"order_key": "k"},
        {"limit_key": "k"},
    ],
)
def test_a_row_not_to_take_with_others_is_left(connection: Connection, row: dict[str, Any]) -> None:
    left, other = (pending_task(connection, **row, now=PAST), pending_task(connection, now=PAST))
    assert taken(connection, [left, other]) == [other]
    assert taken(connection, [left]) == []


def test_what_a_handler_runs_at_most_once_is_left(connection: Connection) -> None:
    task_id = pending_task(connection, now=PAST)
    assert taken(connection, [task_id], claimer(at_most_once=True)) == []


Hindrance = Callable[[Connection], object]
ELSEWHERE: dict[str, Hindrance] = {
    "a pause": lambda c: pause(c, "other", now=PAST),
    "a window that is open": lambda c: said(c, windows=["00:00-24:00"]),
    "a gate that is shut": lambda c: (
        said(c, running_below=5),
        c.execute(text("UPDATE task_queue SET shut = 'running'")),
    ),
    "a default of a queue": lambda c: said(c, timeout=5),
    "a limit of a queue": lambda c: set_limit(c, Limit(GateKind.QUEUE, "other", 1)),
    "a limit of a name": lambda c: set_limit(c, Limit(GateKind.NAME, "other", 1)),
}


def opened(connection: Connection) -> None:
    circuit_breakers.synchronise(connection, {Breaker("bank"): ["other"]}, ["other"])
    circuit_breakers.override(connection, "bank", BreakerMode.OPEN)


ELSEWHERE["a breaker"] = opened


@pytest.mark.parametrize("hindrance", ELSEWHERE.values(), ids=ELSEWHERE)
def test_it_takes_nothing_if_anything_hinders(connection: Connection, hindrance: Hindrance) -> None:
    task_id = pending_task(connection, now=PAST)
    hindrance(connection)
    assert taken(connection, [task_id]) == []
    (task,) = claim(connection, [task_id], claimer(), uuid4(), now=PAST)
    assert task.task_id == task_id


def test_what_holds_nobody_any_more_hinders_nobody(connection: Connection) -> None:
    task_id = pending_task(connection, now=PAST)
    pause(connection, "other", resume_at=PAST, now=PAST - HOUR)
    said(connection, running_below=5)
    circuit_breakers.synchronise(connection, {Breaker("bank"): ["other"]}, ["other"])
    set_limit(connection, Limit(GateKind.KEY, "tenant:*", 1))
    assert taken(connection, [task_id]) == [task_id]
