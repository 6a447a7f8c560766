"""Producers of one key meet each other, claims, retries and pruning: statement by statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.errors import UniqueKeyTakenError
from tasks_app.domain.tasks.records import CreateOutcome, TaskId, TaskRow
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.connection import execute
from tasks_app.pool.connection.execute import Statements
from tasks_app.pool.runs.claim import claim
from tasks_app.pool.runs.leases import release
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks import create, unique_keys
from tasks_app.pool.tasks.create import create_many, create_one
from tests.factory import claimed_task, claimer, count, ending, row_of
from tests.pool.interleave import blocked, gate

Pair = tuple[Connection, Connection]
SCOPES = (None, "queued", "for_period 1h", "forever")
PLACES = [*((scope, False) for scope in SCOPES), ("queued", True), ("for_period 1h", True)]
CHANGES = ("replace_payload", "reschedule")
OVER = text("UPDATE task_key SET until = statement_timestamp() WHERE until IS NOT NULL")


def keyed(scope: str | None, n: int = 0, key: str = "k", **options: Any) -> TaskRow:
    options = {"unique_key": key, "unique_scope": scope, **options}
    return validate_task(NewTask("t", {"n": n}, options), None, 65536)


def committed(connection: Connection, make: Callable[..., Any], *args: Any) -> Any:
    made = make(connection, *args)
    connection.commit()
    return made


def take(connection: Connection, task_id: int) -> list[int]:
    return [task.task_id for task in claim(connection, [task_id], claimer(), uuid4())]


def freed(connection: Connection, scope: str) -> TaskId:
    """Who had the key, that is free now and yet in the table."""
    task_id = create_one(connection, keyed(scope))
    if scope == "queued":
        claimed_task(connection, task_id)
    else:
        connection.execute(OVER)
    connection.commit()
    return task_id


class Steps:
    """A create that is carried out one statement at a time."""

    def __init__(self, connection: Connection, plan: Statements[Any]) -> None:
        self._connection, self._plan = connection, plan
        self._next = next(plan)
        self.result: Any = None

    def go(self) -> bool:
        """Carry out one more; False: there is none."""
        if self.result is not None:
            return False
        try:
            self._next = self._plan.send(execute.run_on_driver(self._connection, self._next))
        except StopIteration as end:
            self.result = end.value
        return True


# producer x producer


@pytest.mark.parametrize("make", [create_one, lambda c, row: create_many(c, [row])[0]])
@pytest.mark.parametrize(("scope", "is_free_again"), PLACES)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_second_waits_for_the_first_and_creates_only_after_its_rollback(
    engine: Engine, pair: Pair, scope: str, is_free_again: bool, end: str, make: Callable
) -> None:
    a, b = pair
    old = freed(a, scope) if is_free_again else None
    first = make(a, keyed(scope))
    assert first.created
    assert first != old
    waiting = blocked(engine, b, a, lambda c: make(c, keyed(scope)))
    getattr(a, end)()
    second = waiting.result()
    b.commit()
    assert second.created is (end == "rollback")
    assert (second == first) is (end == "commit")
    assert count(a) == 1 + is_free_again


@pytest.mark.parametrize("scope", SCOPES)
def test_who_only_gets_the_holder_holds_up_nobody_else(pair: Pair, scope: str) -> None:
    a, b = pair
    holder = committed(a, create_one, keyed(scope))
    assert create_one(a, keyed(scope)) == holder
    assert create_one(b, keyed(scope)) == holder
    with pytest.raises(UniqueKeyTakenError):
        create_one(b, keyed(scope, on_conflict="raise"))


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("point", range(5))
def test_another_create_commits_between_two_statements(pair: Pair, scope: str, point: int) -> None:
    a, b = pair
    if scope in ("queued", "for_period 1h"):
        freed(a, scope)
    before = count(a)
    a.commit()
    mine = Steps(a, create._one(keyed(scope), None))
    if any(not mine.go() for _ in range(point)) or mine.result:
        return  # it was through by then

    theirs = committed(b, create_one, keyed(scope))
    while mine.go():
        pass
    a.commit()

    assert theirs.created
    assert (mine.result, mine.result.created) == (theirs, False)
    assert count(a) == before + 1


@pytest.mark.parametrize("scope", SCOPES)
def test_same_keys_in_any_order_do_not_deadlock(engine: Engine, pair: Pair, scope: str) -> None:
    a, b = pair
    rows = [keyed(scope, key=key) for key in ("b", "B", "ä", "a", "_", "Z", "aa")]
    create_many(a, rows)
    waiting = blocked(engine, b, a, lambda c: create_many(c, rows[::-1]))
    a.commit()
    assert not any(i.created for i in waiting.result())


def test_a_key_freed_behind_its_turn_deadlocks_no_batches(engine: Engine, pair: Pair) -> None:
    a, b = pair
    holder = committed(a, create_one, keyed(None, key="a"))
    rows = [keyed(None, key="a"), keyed(None, key="b")]
    mine = Steps(a, create._many(rows, None, copy=True))
    while count(a) < 2:  # it has b, and a has a holder
        mine.go()
    with engine.begin() as worker:
        settle_one(worker, ending(claimed_task(worker, holder), Event.SUCCEED))
    waiting = blocked(engine, b, a, lambda c: committed(c, create_many, rows))

    while mine.go():
        pass

    theirs = waiting.result()
    assert [i.created for i in theirs] == [True, True]
    assert [(i, i.created) for i in mine.result] == [(i, False) for i in theirs]


@pytest.mark.parametrize("policy", CHANGES)
def test_changes_in_opposite_order_do_not_deadlock(engine: Engine, pair: Pair, policy: str) -> None:
    a, b = pair
    rows = [keyed("queued", 1, key, on_conflict=policy) for key in "abc"]
    committed(a, create_many, rows[:2])
    create_many(a, rows)
    waiting = blocked(engine, b, a, lambda c: create_many(c, rows[::-1]))
    a.commit()
    assert not any(i.created for i in waiting.result())


# producer x claim


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_create_for_the_queue_waits_for_a_claim(engine: Engine, pair: Pair, end: str) -> None:
    a, b = pair
    first = committed(a, create_one, keyed("queued"))
    assert take(a, first) == [first]
    waiting = blocked(engine, b, a, lambda c: create_one(c, keyed("queued")))
    getattr(a, end)()
    second = waiting.result()
    assert second.created is (end == "commit")
    assert (second == first) is (end == "rollback")


@pytest.mark.parametrize("policy", ["return_existing", *CHANGES])
def test_who_was_told_of_a_queued_task_commits_before_that_starts(pair: Pair, policy: str) -> None:
    a, b = pair
    first = committed(a, create_one, keyed("queued"))
    create_one(a, keyed("queued", 7, on_conflict=policy))
    assert take(b, first) == []
    b.rollback()
    a.commit()
    assert take(b, first) == [first]
    assert row_of(b, first).payload == {"n": 7 if policy == "replace_payload" else 0}


@pytest.mark.parametrize("point", range(4))
def test_the_holder_is_claimed_between_any_two_statements(pair: Pair, point: int) -> None:
    a, b = pair
    first = committed(a, create_one, keyed("queued"))
    mine = Steps(a, create._one(keyed("queued"), None))
    for _ in range(point):
        mine.go()

    claimed = committed(b, take, first)
    while mine.go():
        pass
    a.commit()

    assert bool(claimed) is mine.result.created
    assert (mine.result == first) is not mine.result.created


@pytest.mark.parametrize("policy", CHANGES)
@pytest.mark.parametrize("scope", SCOPES)
def test_a_claim_is_open_then_who_would_change_the_task_waits_and_leaves_it_alone(
    engine: Engine, pair: Pair, scope: str, policy: str
) -> None:
    a, b = pair
    first = committed(a, create_one, keyed(scope, 1))
    before = row_of(a, first)
    take(a, first)
    waiting = blocked(
        engine, b, a, lambda c: create_one(c, keyed(scope, 2, on_conflict=policy, delay=60))
    )

    a.commit()
    second = waiting.result()
    b.commit()

    after = row_of(a, first)
    assert (after.payload, after.due_at) == (before.payload, before.due_at)
    assert second.outcome == ("created" if scope == "queued" else "existing")


@pytest.mark.parametrize("scope", [None, "for_period 1h", "forever"])
def test_a_create_that_changes_nothing_stops_no_claim_of_its_holder(pair: Pair, scope: str) -> None:
    a, b = pair
    first = committed(a, create_one, keyed(scope))
    create_one(a, keyed(scope))
    assert take(b, first) == [first]


# producer x what comes back


def test_a_task_that_comes_back_meets_the_one_that_was_given_its_key(pair: Pair) -> None:
    a, _ = pair
    task = claimed_task(a, create_one(a, keyed("queued")))
    second = create_one(a, keyed("queued"))
    settle_one(a, ending(task, Event.RETRY))
    states = a.execute(text("SELECT id, state FROM task_pending ORDER BY id")).all()
    assert states == [(task.task_id, "PENDING"), (second, "PENDING")]
    assert create_one(a, keyed("queued")) == second


def test_a_release_is_open_then_a_create_does_not_wait_for_it(pair: Pair) -> None:
    a, b = pair
    task = claimed_task(a, create_one(a, keyed("queued")))
    a.commit()
    release(a, [task.fence])
    assert create_one(b, keyed("queued")).created


# producer x prune


@pytest.mark.parametrize("scope", ["queued", "for_period 1h"])
def test_a_prune_is_open_then_a_create_waits_for_it(engine: Engine, pair: Pair, scope: str) -> None:
    a, b = pair
    old = freed(a, scope)
    a.execute(text("DELETE FROM task_pending WHERE id = :id"), {"id": old})
    a.commit()
    assert unique_keys.prune_keys(a, 9) == 1
    waiting = blocked(engine, b, a, lambda c: create_one(c, keyed(scope)))
    a.commit()
    assert waiting.result().created


@pytest.mark.parametrize("scope", ["queued", "for_period 1h"])
def test_a_key_that_is_being_given_away_is_not_pruned(pair: Pair, scope: str) -> None:
    a, b = pair
    old = freed(a, scope)
    a.execute(text("DELETE FROM task_pending WHERE id = :id"), {"id": old})
    a.commit()
    second = create_one(a, keyed(scope))
    assert unique_keys.prune_keys(b, 9) == 0
    b.rollback()
    a.commit()
    assert unique_keys.prune_keys(b, 9) == 0
    assert create_one(b, keyed(scope)) == second


@pytest.mark.parametrize("scope", ["queued", "for_period 1h"])
def test_prune_leaves_a_key_given_away_meanwhile(engine: Engine, pair: Pair, scope: str) -> None:
    a, b = pair
    old = freed(a, scope)
    committed(a, create_one, keyed("for_period 1ms", key="for the gate"))
    a.execute(text("DELETE FROM task_pending WHERE id = :id"), {"id": old})
    a.commit()
    with gate(engine) as stop:
        half_way = stop(b, lambda c: unique_keys.prune_keys(c, 9))
        second = committed(a, create_one, keyed(scope))

    assert half_way.result() == 1
    b.commit()
    assert create_one(a, keyed(scope)) == second


# what goes wrong for others


@pytest.mark.parametrize("scope", [None, "forever"])
def test_who_cannot_see_the_holder_gets_an_error_and_no_second_task(pair: Pair, scope: str) -> None:
    a, b = pair
    b.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
    count(b)
    committed(a, create_one, keyed(scope))
    with pytest.raises(Exception, match=r"could not serialize|cannot see"):
        create_one(b, keyed(scope))


def test_a_savepoint_that_rolls_back_gives_back_what_was_replaced(pair: Pair) -> None:
    a, b = pair
    first = committed(a, create_one, keyed(None, 1))
    savepoint = a.begin_nested()
    again = create_one(a, keyed(None, 2, on_conflict="replace_payload"))
    savepoint.rollback()
    assert again.outcome is CreateOutcome.REPLACED
    assert row_of(a, first).payload == {"n": 1}
    assert take(b, first) == [first]
