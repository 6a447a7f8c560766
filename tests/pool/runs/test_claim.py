"""Claim: compare-and-set by ids, alone where it must be, with everything the run needs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.tasks.states import Event
from tasks_app.pool.dispatch.set_aside import park_tasks
from tasks_app.pool.runs.claim import Claimer, claim, claims_of, fetch_payload
from tasks_app.pool.runs.leases import release
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.create import create_one
from tests.factory import (
    LEASE,
    a_row,
    claimed_task,
    claimer,
    count,
    ending,
    pending_task,
    row_of,
    unknown,
)
from tests.pool.interleave import two

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def claimed_ids(connection: Connection, ids, who: Claimer | None = None, now=None) -> list[int]:
    return [task.task_id for task in claim(connection, ids, who or claimer(), uuid4(), now=now)]


def test_a_claim_makes_the_row_running_under_a_lease(connection: Connection) -> None:
    task_id, token = pending_task(connection, now=NOON), uuid4()

    (task,) = claim(connection, [task_id], claimer(owner="me"), token, now=NOON)

    row = row_of(connection, task_id)
    assert (row.state, row.attempt, row.owner) == ("RUNNING", 1, "me")
    assert (row.lease_token, row.lease_until) == (token, NOON + LEASE)
    assert row.started_at == NOON
    assert task.fence == (task_id, 1, token)


def test_a_claim_charges_nothing_and_leaves_due_at_alone(connection: Connection) -> None:
    task_id = pending_task(connection, now=NOON)

    claimed_ids(connection, [task_id], now=NOON + timedelta(hours=1))

    row = row_of(connection, task_id)
    assert (row.failures, row.crashes, row.retry_level, row.due_at) == (0, 0, 0, NOON)


def test_a_claimed_task_carries_what_its_run_needs(connection: Connection) -> None:
    task_id = create_one(
        connection,
        a_row(
            payload={"é": [1]},
            queue="q",
            biz_key="order:1",
            retry="5s,30s",
            wait_first=True,
            timeout=1,
            hard_timeout=2,
            headers={"trace": "x"},
        ),
        now=NOON,
    )
    row = row_of(connection, task_id)

    (task,) = claim(connection, [task_id], claimer(), uuid4(), now=NOON + timedelta(hours=1))

    assert (task.name, task.queue, task.biz_key) == ("t", "q", "order:1")
    assert (task.payload, task.headers) == ('{"é": [1]}', '{"trace": "x"}')
    assert (task.failures, task.crashes, task.retry_level) == (0, 0, 1)
    assert (task.retry, task.max_attempts, task.at_most_once) == ("5s,30s", 2, False)
    assert (task.timeout_ms, task.hard_timeout_ms) == (1000, 2000)
    assert task.idempotency_key == row.idempotency_key
    assert (task.created_at, task.due_at) == (row.created_at, row.due_at)
    assert task.cancel_requested is False


def test_the_second_copy_of_a_message_claims_nothing(connection: Connection) -> None:
    task_id = pending_task(connection)

    assert claimed_ids(connection, [task_id]) == [task_id]
    assert claimed_ids(connection, [task_id]) == []


def test_every_claim_raises_the_attempt_by_one(connection: Connection) -> None:
    task_id = pending_task(connection)

    for attempt in (1, 2, 3):
        task = claimed_task(connection, task_id)
        assert task.fence.attempt == attempt
        release(connection, [task.fence])


def test_claims_come_in_the_order_of_the_message(connection: Connection) -> None:
    ids = [pending_task(connection) for _ in range(5)]
    message = [ids[n] for n in (3, 0, 4, 1, 2)]

    assert claimed_ids(connection, message) == message


def test_an_id_that_the_message_names_twice_is_claimed_once(connection: Connection) -> None:
    task_id = pending_task(connection)

    assert claimed_ids(connection, [task_id, task_id]) == [task_id]
    assert row_of(connection, task_id).attempt == 1


def test_ids_that_are_nowhere_are_dropped(connection: Connection) -> None:
    task_id = pending_task(connection)

    assert claimed_ids(connection, [task_id + 10**9, task_id, -1]) == [task_id]
    assert claimed_ids(connection, []) == []


def test_a_finished_task_is_not_claimed(connection: Connection) -> None:
    task = claimed_task(connection)
    settle_one(connection, ending(task))

    assert claimed_ids(connection, [task.task_id]) == []


def test_a_task_is_not_claimed_before_it_is_due(connection: Connection) -> None:
    task_id = pending_task(connection, run_at=NOON)

    assert claimed_ids(connection, [task_id], now=NOON - timedelta(microseconds=1)) == []
    assert claimed_ids(connection, [task_id], now=NOON) == [task_id]


def test_without_now_a_task_of_the_future_is_not_claimed(connection: Connection) -> None:
    assert claimed_ids(connection, [pending_task(connection, delay=60)]) == []


def test_a_disabled_task_is_not_claimed(connection: Connection) -> None:
    assert claimed_ids(connection, [pending_task(connection, enabled=False)]) == []


def test_a_task_is_not_claimed_from_the_instant_on_at_which_it_expires(
    connection: Connection,
) -> None:
    until = NOON + timedelta(minutes=1)
    task_id = pending_task(connection, run_at=NOON, expires_at=until)

    assert claimed_ids(connection, [task_id], now=until) == []
    assert claimed_ids(connection, [task_id], now=until - timedelta(microseconds=1)) == [task_id]


def test_a_name_that_the_worker_does_not_know_is_not_claimed(connection: Connection) -> None:
    strange, known = pending_task(connection, "strange"), pending_task(connection, "t")

    assert claimed_ids(connection, [strange, known]) == [known]
    assert row_of(connection, strange).attempt == 0


def test_a_worker_without_handlers_claims_nothing(connection: Connection) -> None:
    task_id = pending_task(connection)

    assert claimed_ids(connection, [task_id], Claimer("w", LEASE, (), (), ())) == []


def test_a_parked_task_may_still_be_claimed_and_loses_its_reason(connection: Connection) -> None:
    task_id = pending_task(connection)
    park_tasks(connection, [task_id], unknown("unknown handler"), timedelta(seconds=15))

    assert claimed_ids(connection, [task_id]) == [task_id]
    assert row_of(connection, task_id).parked is None


def test_the_handlers_policies_are_written_into_the_rows(connection: Connection) -> None:
    a, b = pending_task(connection, "a"), pending_task(connection, "b")

    claim(connection, [a], Claimer("w", LEASE, ("a", "b"), (3, 7), (False, True)), uuid4())
    claim(connection, [b], Claimer("w", LEASE, ("a", "b"), (3, 7), (False, True)), uuid4())

    rows = [row_of(connection, task_id) for task_id in (a, b)]
    assert [(row.max_attempts, row.at_most_once) for row in rows] == [(3, False), (7, True)]


def test_the_tasks_own_policy_wins_over_the_handlers(connection: Connection) -> None:
    task_id = pending_task(connection, max_attempts=5, at_most_once=False)

    (task,) = claim(connection, [task_id], claimer(max_attempts=3, at_most_once=True), uuid4())

    assert (task.max_attempts, task.at_most_once) == (5, False)


def test_a_policy_that_was_written_once_stays_when_the_handler_changes(
    connection: Connection,
) -> None:
    task = claimed_task(connection, max_attempts=3)
    release(connection, [task.fence])

    (again,) = claim(connection, [task.task_id], claimer(max_attempts=9), uuid4())

    assert again.max_attempts == 3


@pytest.mark.parametrize("alone", [{"at_most_once": True}, {"crashes": 1}])
def test_what_must_run_alone_is_left_out_while_there_are_others(
    connection: Connection, alone
) -> None:
    lonely = pending_task(connection, **alone)
    others = [pending_task(connection) for _ in range(2)]

    assert claimed_ids(connection, [lonely, *others]) == others
    assert row_of(connection, lonely).state == "PENDING"


@pytest.mark.parametrize("alone", [{"at_most_once": True}, {"crashes": 1}])
def test_what_must_run_alone_is_taken_one_at_a_time(connection: Connection, alone) -> None:
    lonely = [pending_task(connection, **alone) for _ in range(3)]

    taken = [claimed_ids(connection, lonely) for _ in range(4)]

    assert taken == [[lonely[0]], [lonely[1]], [lonely[2]], []]


def test_an_at_most_once_handler_makes_its_tasks_run_alone_from_the_first_claim(
    connection: Connection,
) -> None:
    ids = [pending_task(connection) for _ in range(2)]

    assert claimed_ids(connection, ids, claimer(at_most_once=True)) == ids[:1]


def test_a_task_that_only_failed_is_claimed_with_others(connection: Connection) -> None:
    ids = [pending_task(connection, failures=2), pending_task(connection)]

    assert claimed_ids(connection, ids) == ids


def test_a_large_payload_is_left_behind_and_can_be_fetched(connection: Connection) -> None:
    import random

    noise = random.Random(7).randbytes(60_000).hex()  # does not shrink when stored
    row = a_row()
    task_id = create_one(connection, row)
    small = pending_task(connection, payload={"a": 1})
    connection.execute(
        text(
            "UPDATE task_pending SET payload = jsonb_build_object('x', CAST(:x AS text))"
            " WHERE id = :id"
        ),
        {"x": noise, "id": task_id},
    )

    tasks = claim(connection, [task_id, small], claimer(), uuid4())

    assert [task.payload for task in tasks] == [None, '{"a": 1}']
    assert fetch_payload(connection, tasks[0].fence) == f'{{"x": "{noise}"}}'


@pytest.mark.parametrize("wrong", ["token", "attempt", "task_id"])
def test_a_payload_is_not_fetched_without_the_fence(connection: Connection, wrong: str) -> None:
    fence = claimed_task(connection).fence
    stale = {"token": uuid4(), "attempt": fence.attempt + 1, "task_id": fence.task_id + 1}

    assert fetch_payload(connection, fence._replace(**{wrong: stale[wrong]})) is None
    assert fetch_payload(connection, fence) == "{}"


def test_a_payload_is_not_fetched_after_the_claim_was_given_back(connection: Connection) -> None:
    task = claimed_task(connection)
    release(connection, [task.fence])

    assert fetch_payload(connection, task.fence) is None


def test_the_claims_of_a_child_are_its_running_rows_and_no_others(connection: Connection) -> None:
    mine = [claimed_task(connection, owner="me") for _ in range(2)]
    claimed_task(connection, owner="you")
    given_back = claimed_task(connection, owner="me")
    release(connection, [given_back.fence])

    assert claims_of(connection, "me") == mine


def test_the_claims_of_a_child_tell_of_a_wish_to_cancel(connection: Connection) -> None:
    task = claimed_task(connection, owner="me")
    connection.execute(text("UPDATE task_pending SET cancel_requested_at = now()"))

    assert [t.cancel_requested for t in claims_of(connection, "me")] == [True]
    assert task.cancel_requested is False


def test_a_claim_that_rolls_back_was_none(engine: Engine) -> None:
    with two(engine) as (a, b):
        task_id = pending_task(a)
        a.commit()
        claimed_ids(a, [task_id])
        a.rollback()

        assert claimed_ids(b, [task_id]) == [task_id]
        assert row_of(b, task_id).attempt == 1


def test_a_retried_task_is_not_claimed_before_its_wait_is_over(connection: Connection) -> None:
    task = claimed_task(connection, now=NOON)
    settle_one(connection, ending(task, Event.RETRY, wait=timedelta(seconds=5)), now=NOON)

    assert claimed_ids(connection, [task.task_id], now=NOON + timedelta(seconds=4.9)) == []
    assert claimed_ids(connection, [task.task_id], now=NOON + timedelta(seconds=5)) != []


@pytest.mark.parametrize("number", [1, 500])
def test_a_whole_message_is_claimed_in_one_statement(connection: Connection, number: int) -> None:
    ids = [pending_task(connection) for _ in range(number)]

    assert claimed_ids(connection, ids) == ids
    assert count(connection) == number
