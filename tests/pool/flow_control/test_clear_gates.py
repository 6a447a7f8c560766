"""The short way through gates: less than the long one lets pass, never more, and as exclusive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from random import Random
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.flow_control.admission import admit
from tasks_app.domain.flow_control.limits import Gate, GateKind, Limit
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flow_control import order_and_limits
from tasks_app.pool.flow_control.capacity import capacities_of, insert_gates
from tasks_app.pool.flow_control.order_and_limits import find_clear_tasks, lock_gates, set_limit
from tasks_app.pool.runs.claim import claim_clear
from tasks_app.pool.runs.settle import settle_one
from tasks_app.runtime.flow_control.admission import let_pass
from tests.factory import claimer, ending, pending_task
from tests.pool.interleave import blocked, two

Pair = tuple[Connection, Connection]


@pytest.fixture
def pair(engine: Engine) -> Iterator[Pair]:
    with two(engine) as connections:
        yield connections


def short(connection: Connection, ids: Sequence[int]) -> list[ClaimedTask]:
    """Claim; the locks are held until the transaction ends."""
    return claim_clear(connection, list(lock_gates(connection, ids)), claimer(), uuid4())


def shortly(connection: Connection, ids: Sequence[int]) -> list[int]:
    return [task.task_id for task in short(connection, ids)]


def at_length(connection: Connection, ids: Sequence[int]) -> list[int]:
    found = order_and_limits.waiting(connection, ids)
    insert_gates(connection, found.gates)
    connection.commit()
    return [task.task_id for task in let_pass(connection, found, claimer(), uuid4())[0]]


WAYS = [(shortly, shortly), (shortly, at_length), (at_length, shortly)]


def made(connection: Connection, number: int, **options) -> list[int]:
    ids = [int(pending_task(connection, **options)) for _ in range(number)]
    connection.commit()
    return ids


def limited(connection: Connection, most: int | None, target: str = "l", **rate) -> None:
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
    one = made(a, 1, order_key="k")[0]
    if known:
        insert_gates(a, [Gate(GateKind.ORDER, "k")])
        a.commit()
    assert first(a, [one]) == [one]
    other = made(b, 1, order_key="k")[0]

    waiting = blocked(engine, b, a, lambda c: second(c, [other]))
    a.commit()

    assert waiting.result() == []


@pytest.mark.parametrize(("first", "second"), WAYS)
def test_two_claims_of_one_limit_take_no_more_than_it_allows(
    engine: Engine, pair: Pair, first, second
) -> None:
    a, b = pair
    ids = made(a, 4, limit_key="l")
    limited(a, 3)
    assert first(a, ids[:2]) == ids[:2]

    waiting = blocked(engine, b, a, lambda c: second(c, ids[2:]))
    a.commit()

    assert waiting.result() == ([] if second is shortly else ids[2:3])


def test_a_claim_that_was_taken_back_leaves_the_key_to_the_next(engine: Engine, pair: Pair) -> None:
    a, b = pair
    ids = made(a, 1, order_key="k")
    assert shortly(a, ids) == ids

    waiting = blocked(engine, b, a, lambda c: shortly(c, ids))
    a.rollback()

    assert waiting.result() == ids


def test_gates_wished_for_in_opposite_orders_are_locked_in_one(engine: Engine, pair: Pair) -> None:
    a, b = pair
    first = [made(a, 1, order_key=key)[0] for key in "xy"]
    assert shortly(a, first) == first
    second = [made(b, 1, order_key=key)[0] for key in "yx"]

    waiting = blocked(engine, b, a, lambda c: shortly(c, second))
    assert shortly(a, second) == []
    a.commit()

    assert waiting.result() == []


def test_a_row_that_becomes_claimable_behind_the_locks_is_not_taken(pair: Pair) -> None:
    a, b = pair
    (task_id,) = made(a, 1, order_key="k")
    (task,) = short(a, [task_id])
    a.commit()

    assert lock_gates(b, [task_id]) == {}
    settle_one(a, ending(task, Event.RETRY, wait=timedelta(0)))
    a.commit()

    assert [t.task_id for t in claim_clear(b, [], claimer(), uuid4())] == []
    assert shortly(b, [task_id]) == [task_id]


def test_a_lower_id_that_commits_late_does_not_pass_the_one_that_runs(pair: Pair) -> None:
    a, b = pair
    late = int(pending_task(a, order_key="k"))
    early = made(b, 1, order_key="k")
    assert shortly(b, early) == early
    b.commit()
    a.commit()

    assert shortly(a, [late]) == []
    assert find_clear_tasks(a, [late]) == set()


def test_of_a_limit_key_all_that_ask_pass_beside_those_that_run_or_none(
    connection: Connection,
) -> None:
    ids = made(connection, 4, limit_key="l")
    limited(connection, 3)
    assert shortly(connection, ids[:1]) == ids[:1]

    assert find_clear_tasks(connection, ids[1:]) == set()
    assert find_clear_tasks(connection, ids[1:3]) == {*ids[1:3]}


def test_only_keys_with_a_limit_have_a_gate(connection: Connection) -> None:
    free, of_one, of_many = (made(connection, 1, limit_key=key)[0] for key in ("free", "l", "m:1"))
    limited(connection, 1)
    limited(connection, 1, "m:*")

    assert shortly(connection, [free, of_one, of_many]) == [free, of_one, of_many]

    gates = connection.execute(text("SELECT gate FROM task_gate ORDER BY gate")).scalars().all()
    assert gates == ["limit key l", "limit key m:1"]
