"""Locks that tasks declare: waited for before the claim, and ended with the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.flow_control.limits import Gate, GateKind
from tasks_app.domain.locks import GrantedLocks, LockRequest, lock_parts
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.domain.tasks.states import Event
from tasks_app.locks import Locks
from tasks_app.pool.flow_control import order_and_limits
from tasks_app.pool.flow_control.capacity import insert_gates, lock_buckets
from tasks_app.pool.flow_control.lock_line import wake_lock_lines
from tasks_app.pool.flow_control.queue_settings import pause
from tasks_app.pool.flow_control.waiting_list import gates_with_waiters
from tasks_app.pool.locks.acquire import acquire, insert_resources, look_soon
from tasks_app.pool.locks.declared import free_ended
from tasks_app.pool.locks.holders import find_holders, longest_waits, release
from tasks_app.pool.runs.claim import Claims, claim, claim_next
from tasks_app.pool.runs.leases import release as give_back
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.requeue import requeue
from tasks_app.runtime.flow_control.admission import let_pass
from tests.factory import LEASE, claimer, ending, pending_task, row_of
from tests.pool.interleave import blocked

Pair = tuple[Connection, Connection]


def made(connection: Connection, *locks: Any, **options: Any) -> list[int]:
    ids = [int(pending_task(connection, **{"locks": each, **options})) for each in locks]
    connection.commit()
    return ids


def passing(connection: Connection, ids: Sequence[int]) -> list[ClaimedTask]:
    """What is claimed; its locks are held until the transaction ends."""
    found = order_and_limits.waiting(connection, ids)
    insert_gates(connection, found.gates)
    connection.commit()
    return let_pass(connection, found, claimer(), uuid4())[0]


def passed(connection: Connection, ids: Sequence[int]) -> list[int]:
    claimed = [task.task_id for task in passing(connection, ids)]
    connection.commit()
    return claimed


def wake(connection: Connection, *resources: str) -> list[int]:
    free_ended(connection, resources)
    gates = [Gate(GateKind.LOCK, name) for name in resources]
    waited = list(lock_buckets(connection, gates_with_waiters(connection, gates)))
    woken = wake_lock_lines(connection, waited) if waited else []
    connection.commit()
    return [task_id for _, task_id in woken]


def end(connection: Connection, run: ClaimedTask, event: Event = Event.SUCCEED) -> None:
    settle_one(connection, ending(run, event))
    connection.commit()


def ask_of(**group: Any) -> LockRequest:
    return LockRequest(uuid4(), lock_parts(**group), "w", LEASE)


def held(connection: Connection, *, waits: bool = False, **group: Any) -> LockRequest | None:
    """Ask as code that is no task does; None: it was denied, or waits."""
    ask = ask_of(**group)
    insert_resources(connection, ask)
    answer = acquire(connection, ask, waits=waits)
    connection.commit()
    return ask if isinstance(answer, GrantedLocks) else None


def test_a_plain_claim_takes_none_that_declares_locks(pair: Pair) -> None:
    a, _ = pair
    ids = made(a, "r", None)
    for way in (Claims.UNHINDERED, Claims.UNGATED, Claims.CLEAR):
        assert [t.task_id for t in claim(a, ids, claimer(), uuid4(), way)] == ids[1:]
        a.rollback()


def test_a_plain_claim_takes_none_whose_handler_declares_locks(pair: Pair) -> None:
    a, _ = pair
    ids = made(a, None, None)
    locking = replace(claimer(), locking=frozenset({"t"}))
    for way in (Claims.UNHINDERED, Claims.UNGATED, Claims.CLEAR):
        assert claim(a, ids, locking, uuid4(), way) == []
    assert claim_next(a, ["default"], 2, locking, uuid4()) == []
    assert len(claim(a, ids, locking, uuid4(), Claims.ADMITTED)) == 2


def test_who_is_not_alone_is_parked_uncounted_and_goes_on_after_the_other(pair: Pair) -> None:
    a, _ = pair
    first, second, third = made(a, "r", "r", "r")
    (run,) = passing(a, [first, second, third])
    a.commit()
    assert (row_of(a, second).parked, row_of(a, second).attempt) == ("lock r", 0)
    end(a, run)

    assert wake(a, "r") == [second]

    assert passed(a, [third]) == []  # it came later than the one that is awake
    assert passed(a, [second, third]) == [second]
    assert row_of(a, second).attempt == 1
    (waited,) = longest_waits(a, "r")
    assert (waited.outcome, waited.task_id) == ("granted", second)


@pytest.mark.parametrize(
    ("locks", "together"),
    [
        (["r", "r"], 1),
        ([Locks(shared="r")] * 3, 3),
        ([Locks(counted={"r": 2})] * 3, 2),
        ([Locks(shared="r"), "r", Locks(shared="r")], 1),
        ([Locks(shared="r"), Locks(counted={"r": 2})], 1),
        ([["a", "b"], ["b", "c"], "c"], 1),
        (["a", "b"], 2),
    ],
)
def test_as_many_run_together_as_the_modes_allow(pair: Pair, locks: list, together: int) -> None:
    a, _ = pair
    ids = made(a, *locks)
    assert passed(a, ids) == ids[:together]
    found = find_holders(a)
    assert {h.task_id for h in found if h.state == "held"} == set(ids[:together])
    assert {h.task_id for h in found if h.state == "waiting"} == set(ids[together:])
    a.commit()


def test_an_operators_number_wins(pair: Pair) -> None:
    a, _ = pair
    ids = made(a, *[Locks(counted={"r": 1})] * 3)
    a.execute(text("INSERT INTO task_lock (resource, most) VALUES ('r', 2)"))
    assert passed(a, ids) == ids[:2]


@pytest.mark.parametrize("event", [Event.SUCCEED, Event.RETRY, Event.SNOOZE, Event.FAIL])
def test_however_a_run_ends_the_next_goes_on(pair: Pair, event: Event) -> None:
    a, _ = pair
    first, second = made(a, "r", "r")
    (run,) = passing(a, [first, second])
    a.commit()
    changes = {"failures": 1} if event in {Event.RETRY, Event.FAIL} else {}
    settle_one(a, ending(run, event, **changes))
    a.commit()
    assert wake(a, "r") == [second]
    assert passed(a, [second]) == [second]


def test_a_run_that_is_given_back_holds_nothing(pair: Pair) -> None:
    a, _ = pair
    first, second = made(a, "r", "r")
    (run,) = passing(a, [first, second])
    give_back(a, [run.fence])
    a.commit()
    assert passed(a, [first]) == []  # it comes behind the one that waits
    assert wake(a, "r") == [second]


def test_a_reader_that_comes_later_waits_behind_a_writer(pair: Pair) -> None:
    a, _ = pair
    reader, writer, later = made(a, Locks(shared="r"), "r", Locks(shared="r"))
    (run,) = passing(a, [reader])
    a.commit()
    assert passed(a, [writer]) == []
    assert passed(a, [later]) == []
    assert held(a, shared="r") is None  # nor does code that is no task overtake it
    end(a, run)
    assert wake(a, "r") == [writer]
    assert passed(a, [later, writer]) == [writer]


def test_locks_of_other_code_and_of_tasks_exclude_each_other(pair: Pair) -> None:
    a, _ = pair
    first, second = made(a, "r", "r")
    ask = held(a, exclusive="r")
    assert ask is not None
    assert passed(a, [first]) == []
    release(a, ask.token)
    a.commit()
    assert wake(a, "r") == [first]
    assert passed(a, [first]) == [first]
    assert held(a, exclusive="r") is None
    assert passed(a, [second]) == []


def test_who_waits_elsewhere_in_front_goes_first(pair: Pair) -> None:
    a, _ = pair
    first, second = made(a, "r", "r")
    (run,) = passing(a, [first])
    a.commit()
    assert held(a, exclusive="r", waits=True) is None
    assert passed(a, [second]) == []
    end(a, run)
    assert wake(a, "r") == []


@pytest.mark.parametrize("leaves", ["paused", "cancelled", "held"])
def test_who_cannot_run_does_not_block_the_line(pair: Pair, leaves: str) -> None:
    a, _ = pair
    first, second, third = made(a, "r", "r", "r", queue="default")
    a.execute(text("UPDATE task_pending SET queue = 'q' WHERE id = :id"), {"id": second})
    (run,) = passing(a, [first, second, third])
    a.commit()
    if leaves == "paused":
        pause(a, "q")
    elif leaves == "cancelled":
        cancel(a, second)
    else:
        a.execute(text("UPDATE task_pending SET enabled = false WHERE id = :id"), {"id": second})
    end(a, run)
    assert wake(a, "r") == [third]
    assert passed(a, [third]) == [third]


def test_a_limit_beside_it_takes_no_lock(pair: Pair) -> None:
    a, _ = pair
    ids = made(a, "r", "r", order_key="k")
    (run,) = passing(a, ids)
    a.commit()
    assert row_of(a, ids[1]).parked == "order k"
    assert [h.task_id for h in find_holders(a)] == [ids[0]]
    assert run.task_id == ids[0]


def test_a_run_that_vanished_holds_nothing_and_is_not_in_the_way(pair: Pair) -> None:
    a, _ = pair
    first, second = made(a, "r", "r")
    passed(a, [first])
    a.execute(text("DELETE FROM task_pending WHERE id = :id"), {"id": first})
    a.commit()
    assert passed(a, [second]) == [second]
    assert [h.task_id for h in find_holders(a)] == [second]


def test_an_expired_holder_is_taken_over_unless_it_is_guarded(engine: Engine, pair: Pair) -> None:
    a, b = pair
    (first,) = made(a, "r")
    ask = held(a, exclusive="r")
    a.execute(text("UPDATE task_lock_holder SET lease_until = now() - interval '1s'"))
    a.commit()
    b.execute(text("SELECT FROM task_lock_holder FOR KEY SHARE"))
    assert passed(a, [first]) == []
    b.rollback()
    assert ask is not None
    assert passed(a, wake(a, "r")) == [first]


def test_a_release_lets_the_leader_look_at_once(pair: Pair) -> None:
    a, _ = pair
    (first,) = made(a, "r")
    held(a, exclusive="r")
    passed(a, [first])
    look_soon(a, ["other", "r"])
    assert a.execute(text("SELECT look_at <= clock_timestamp() FROM task_gate")).scalar()
    a.commit()


def test_crosswise_groups_neither_deadlock_nor_share(engine: Engine, pair: Pair) -> None:
    a, b = pair
    one, other = made(a, ["x", "y"], ["y", "x"])
    assert [t.task_id for t in passing(a, [one])] == [one]
    waiting = blocked(engine, b, a, lambda c: passed(c, [other]))
    a.commit()
    assert waiting.result() == []
    assert row_of(a, other).parked == "lock x"


def test_a_claim_beside_other_code_waits_and_finds_it_held(engine: Engine, pair: Pair) -> None:
    a, b = pair
    (first,) = made(a, ["x", "y"])
    ask = ask_of(exclusive=["x", "y"])
    insert_resources(b, ask)
    b.commit()
    assert isinstance(acquire(b, ask), GrantedLocks)
    waiting = blocked(engine, a, b, lambda c: passed(c, [first]))
    b.commit()
    assert waiting.result() == []


def test_other_code_beside_a_claim_waits_and_finds_it_held(engine: Engine, pair: Pair) -> None:
    a, b = pair
    (first,) = made(a, ["x", "y"])
    ask = ask_of(exclusive=["y", "x"])
    insert_resources(b, ask)
    b.commit()
    assert [t.task_id for t in passing(a, [first])] == [first]
    waiting = blocked(engine, b, a, lambda c: acquire(c, ask))
    a.commit()
    assert not isinstance(waiting.result(), GrantedLocks)


def test_a_run_ends_while_another_is_parked_and_the_last_look_wakes_it(pair: Pair) -> None:
    a, b = pair
    first, second = made(a, "r", "r")
    (run,) = passing(a, [first])
    a.commit()
    assert passing(b, [second]) == []  # it saw the first one run, and has not committed
    end(a, run)
    assert gates_with_waiters(a, [Gate(GateKind.LOCK, "r")]) == []
    b.commit()
    assert wake(b, "r") == [second]


def test_what_it_wants_changes_before_its_claim_and_it_is_left(pair: Pair) -> None:
    a, b = pair
    (first,) = made(a, "r")
    found = order_and_limits.waiting(a, [first])
    insert_gates(a, found.gates)
    a.commit()
    b.execute(text("""UPDATE task_pending SET locks = '{"exclusive": ["other"]}'"""))
    b.commit()
    assert let_pass(a, found, claimer(), uuid4())[0] == []
    a.commit()
    assert passed(a, [first]) == [first]
    assert [h.resource for h in find_holders(a)] == ["other"]


def test_who_replaces_the_payload_gives_its_locks_too(pair: Pair) -> None:
    a, _ = pair
    first, second = made(a, "r", "r", unique_key=None)
    a.execute(text("UPDATE task_pending SET unique_key = 'k' WHERE id = :id"), {"id": second})
    assert passed(a, [first, second]) == [first]
    again = pending_task(a, unique_key="k", on_conflict="replace_payload", locks="other")
    a.commit()
    assert (int(again), row_of(a, second).locks) == (second, {"exclusive": ["other"]})
    assert passed(a, [second]) == [second]


def test_two_who_park_a_task_at_the_same_time_give_it_one_place(pair: Pair) -> None:
    a, _ = pair
    first, second = made(a, "r", "r")
    passed(a, [first])
    found = order_and_limits.waiting(a, [second])
    for _ in range(2):
        assert let_pass(a, found, claimer(), uuid4())[0] == []
        a.commit()
    assert [h.task_id for h in find_holders(a) if h.state == "waiting"] == [second]


def test_a_requeued_task_keeps_its_locks(pair: Pair) -> None:
    a, _ = pair
    (first,) = made(a, "r")
    (run,) = passing(a, [first])
    a.commit()
    settle_one(a, ending(run, Event.FAIL, failures=1))
    requeue(a, first)
    a.commit()
    assert row_of(a, first).locks == {"exclusive": ["r"]}
