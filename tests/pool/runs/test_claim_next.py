"""claim_next: due tasks straight from the pool, for a worker without messages."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine

from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.dispatch.set_aside import park_tasks
from tasks_app.pool.fragments.conditions import Place
from tasks_app.pool.runs.claim import claim_next
from tests.factory import claimer, pending_task, row_of, unknown
from tests.pool.interleave import two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)


def next_ids(connection: Connection, most: int = 10, queues=("default",), who=None, now=LATER):
    tasks = claim_next(connection, queues, most, who or claimer(), uuid4(), now=now)
    return [task.task_id for task in tasks]


def test_tasks_come_by_priority_then_due_at_then_id(connection: Connection) -> None:
    low = pending_task(connection, priority=9, run_at=NOON)
    late = pending_task(connection, priority=1, run_at=NOON + timedelta(minutes=1))
    early = pending_task(connection, priority=1, run_at=NOON)
    same = pending_task(connection, priority=1, run_at=NOON)

    assert next_ids(connection) == [early, same, late, low]


def test_at_most_so_many_are_taken_and_the_rest_stays(connection: Connection) -> None:
    ids = [pending_task(connection, now=NOON) for _ in range(5)]

    assert next_ids(connection, most=2) == ids[:2]
    assert next_ids(connection, most=2) == ids[2:4]
    assert next_ids(connection, most=2) == ids[4:]
    assert next_ids(connection, most=2) == []


def test_a_limit_over_several_queues_and_priorities_is_one_limit(connection: Connection) -> None:
    for queue in ("a", "b"):
        for priority in (0, 5, 9):
            pending_task(connection, queue=queue, priority=priority, now=NOON)

    assert len(next_ids(connection, most=2, queues=("a", "b"))) == 2
    running = [row_of(connection, i) for i in next_ids(connection, 99, ("a", "b"))]
    assert len(running) == 4


def test_only_rows_of_the_named_queues_are_taken(connection: Connection) -> None:
    mine = pending_task(connection, queue="mine", now=NOON)
    pending_task(connection, queue="theirs", now=NOON)

    assert next_ids(connection, queues=("mine", "empty")) == [mine]
    assert next_ids(connection, queues=()) == []


def test_what_may_not_run_is_left(connection: Connection) -> None:
    pending_task(connection, "strange", now=NOON)
    pending_task(connection, now=NOON, enabled=False)
    pending_task(connection, now=NOON, expires_at=LATER)
    pending_task(connection, run_at=LATER + timedelta(microseconds=1))
    parked = pending_task(connection, now=NOON)
    park_tasks(connection, [parked], unknown("paused"), timedelta(seconds=30), now=LATER)

    assert next_ids(connection) == []


def test_what_must_run_alone_is_taken_alone(connection: Connection) -> None:
    lonely = [pending_task(connection, crashes=1, now=NOON) for _ in range(2)]

    assert next_ids(connection) == lonely[:1]
    assert next_ids(connection) == lonely[1:]


@pytest.mark.parametrize("alone", [{"at_most_once": True}, {"crashes": 1}])
def test_what_must_run_alone_and_is_first_in_line_does_not_wait_for_the_line_to_end(
    connection: Connection, alone
) -> None:
    others = [pending_task(connection, priority=9, now=NOON) for _ in range(2)]
    lonely = pending_task(connection, priority=0, now=NOON, **alone)

    assert next_ids(connection) == [lonely]
    assert next_ids(connection) == others


@pytest.mark.parametrize("alone", [{"at_most_once": True}, {"crashes": 1}])
def test_who_has_others_running_leaves_what_must_run_alone(connection: Connection, alone) -> None:
    lonely = pending_task(connection, priority=0, now=NOON, **alone)
    other = pending_task(connection, now=NOON)

    taken = claim_next(connection, ("default",), 9, claimer(), uuid4(), lonely=False, now=LATER)

    assert [task.task_id for task in taken] == [other]
    assert row_of(connection, lonely).state == "PENDING"


def test_what_must_run_alone_and_is_not_first_lets_the_others_go(connection: Connection) -> None:
    others = [pending_task(connection, priority=0, now=NOON) for _ in range(2)]
    lonely = pending_task(connection, priority=9, now=NOON, crashes=1)

    assert next_ids(connection) == others
    assert next_ids(connection) == [lonely]


def test_two_workers_that_ask_at_once_get_different_tasks(engine: Engine) -> None:
    with two(engine) as (a, b):
        ids = [pending_task(a, now=NOON) for _ in range(4)]
        a.commit()

        assert next_ids(a, most=2) == ids[:2]
        assert next_ids(b, most=2) == ids[2:]


def test_parked_rows_and_rows_that_are_not_due_are_not_taken(connection: Connection) -> None:
    parked = pending_task(connection, now=NOON)
    park_tasks(connection, [parked], unknown("nobody knows it"), timedelta(seconds=1), now=NOON)
    pending_task(connection, run_at=NOON + timedelta(seconds=1))

    assert find_due(connection, {"default": 9}, now=NOON) == []
    assert next_ids(connection, now=NOON) == []


def test_it_goes_on_behind_what_was_taken_in_each_queue_and_priority(
    connection: Connection,
) -> None:
    first = [pending_task(connection, queue=q, priority=p, now=NOON) for q in "ab" for p in (1, 2)]
    places: dict[tuple[str, int], Place] = {}

    def taken(most: int = 9) -> list[int]:
        found = claim_next(
            connection, ["a", "b", "c"], most, claimer(), uuid4(), places=places, now=LATER
        )
        return [task.task_id for task in found]

    assert sorted(taken()) == first
    assert places == {
        (q, p): (NOON.timestamp(), i)
        for (q, p), i in zip(itertools.product("ab", (1, 2)), first, strict=True)
    }
    instant, moment = timedelta(microseconds=1), NOON
    before = pending_task(connection, queue="a", priority=1, run_at=moment - instant)
    same = pending_task(connection, queue="a", priority=1, run_at=moment)
    behind = pending_task(connection, queue="b", priority=2, run_at=moment + instant)
    other = pending_task(connection, queue="c", priority=1, run_at=moment - instant)

    assert sorted(taken()) == [same, behind, other]
    assert places["b", 2] == ((moment + instant).timestamp(), behind)
    places.clear()
    assert taken() == [before]


def test_places_stay_where_nothing_is_found(connection: Connection) -> None:
    places: dict[tuple[str, int], Place] = {("default", 5): (NOON.timestamp(), 7)}

    assert not claim_next(connection, ["default"], 9, claimer(), uuid4(), places=places)
    assert places == {("default", 5): (NOON.timestamp(), 7)}
