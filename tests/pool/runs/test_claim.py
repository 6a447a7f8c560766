"""Claims by id and from the pool, and their races."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from tasks_app.domain.tasks.states import Event
from tasks_app.pool.dispatch.scan import find_due
from tasks_app.pool.dispatch.set_aside import park_tasks
from tasks_app.pool.fragments.conditions import Place
from tasks_app.pool.runs.claim import Claimer, claim, claim_next, claims_of, fetch_payload
from tasks_app.pool.runs.leases import release
from tasks_app.pool.runs.settle import settle_one
from tasks_app.pool.tasks.create import create_many, create_one
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
from tests.pool.interleave import blocked, two

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


def test_a_task_is_not_claimed_from_the_instant_it_expires_on(connection: Connection) -> None:
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


def test_a_policy_once_written_stays_when_the_handler_changes(connection: Connection) -> None:
    task = claimed_task(connection, max_attempts=3)
    release(connection, [task.fence])
    (again,) = claim(connection, [task.task_id], claimer(max_attempts=9), uuid4())
    assert again.max_attempts == 3


@pytest.mark.parametrize("alone", [{"at_most_once": True}, {"crashes": 1}])
def test_what_must_run_alone_is_left_out_beside_others(connection: Connection, alone) -> None:
    lonely = pending_task(connection, **alone)
    others = [pending_task(connection) for _ in range(2)]
    assert claimed_ids(connection, [lonely, *others]) == others
    assert row_of(connection, lonely).state == "PENDING"


@pytest.mark.parametrize("alone", [{"at_most_once": True}, {"crashes": 1}])
def test_what_must_run_alone_is_taken_one_at_a_time(connection: Connection, alone) -> None:
    lonely = [pending_task(connection, **alone) for _ in range(3)]
    taken = [claimed_ids(connection, lonely) for _ in range(4)]
    assert taken == [[lonely[0]], [lonely[1]], [lonely[2]], []]


def test_an_at_most_once_handler_runs_its_tasks_alone_at_once(connection: Connection) -> None:
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
def test_what_must_run_alone_and_is_first_does_not_wait(connection: Connection, alone) -> None:
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


def test_it_goes_on_behind_what_was_taken_by_queue_and_priority(connection: Connection) -> None:
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


PROCESSES, TASKS, OFFERS, MESSAGE = 8, 2_000, 10, 50
# The modules are imported once, then the racers fork; each makes an engine of its own, says that it
# is ready, and all start at once when the test lets go of a lock.
RACERS = """
import os, sys
from pathlib import Path
from uuid import uuid4
from sqlalchemy import create_engine
from tasks_app.pool.runs.claim import Claims, claim
from tests.factory import claimer

def race(me, url, messages):
    engine, won = create_engine(url, isolation_level="READ COMMITTED"), []
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
        os.write(1, b"ready\\n")
        connection.exec_driver_sql("SELECT pg_advisory_lock_shared(4712)")
        connection.commit()
        for number, message in enumerate(messages):
            ids = [int(task_id) for task_id in message.split(",")]
            way = (Claims.UNGATED, Claims.UNHINDERED)[number % 2]
            mine = claim(connection, ids, claimer(owner=f"w{me}"), uuid4(), way)
            won += [t.task_id for t in mine]
            connection.commit()
    Path(sys.argv[1], str(me)).write_text(" ".join(map(str, won)))

number = int(sys.argv[2])
url, *messages = sys.stdin.read().split()
children = []
for me in range(number):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            race(me, url, messages[me::number])
            code = 0
        finally:
            os._exit(code)
    children.append(child)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""
NAIVE = text("""
    UPDATE naive SET state = 'RUNNING', claims = claims + 1
    WHERE id = (SELECT id FROM naive WHERE state = 'PENDING' ORDER BY id LIMIT 1) RETURNING id
""")


def naive_claim(connection: Connection) -> list[int]:
    return list(connection.execute(NAIVE).scalars())


def our_claim(connection: Connection, ids: Sequence[int]) -> list[int]:
    return [task.task_id for task in claim(connection, ids, claimer(), uuid4())]


@pytest.mark.test_all
def test_eight_processes_race_over_ten_copies_of_each_id_and_each_is_claimed_once(
    engine: Engine, database_url: str, project: Path, tmp_path: Path
) -> None:
    with engine.begin() as connection:
        ids = create_many(connection, [a_row()] * TASKS)
    copies = [int(task_id) for task_id in ids] * OFFERS
    random.Random(7).shuffle(copies)
    messages = [
        ",".join(map(str, copies[start : start + MESSAGE]))
        for start in range(0, len(copies), MESSAGE)
    ]

    command = [sys.executable, "-c", RACERS, str(tmp_path), str(PROCESSES)]
    pipe = subprocess.PIPE
    with (
        engine.connect() as starter,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=project) as racers,
    ):
        starter.exec_driver_sql("SELECT pg_advisory_xact_lock(4712)")
        assert racers.stdin is not None
        assert racers.stdout is not None
        racers.stdin.write(f"{database_url} {' '.join(messages)}")
        racers.stdin.close()
        assert [racers.stdout.readline() for _ in range(PROCESSES)] == ["ready\n"] * PROCESSES
        starter.rollback()
        assert racers.wait(timeout=60) == 0

    won = [(tmp_path / str(me)).read_text().split() for me in range(PROCESSES)]
    claims = Counter(int(task_id) for ids_of_one in won for task_id in ids_of_one)
    assert set(claims) == set(ids)
    assert set(claims.values()) == {1}
    assert sum(1 for ids_of_one in won if ids_of_one) > 1, "nobody raced"
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT DISTINCT state, attempt FROM task_pending")
        assert rows.all() == [("RUNNING", 1)]


def test_the_naive_claim_reads_then_waits_then_claims_what_another_claimed(engine: Engine) -> None:
    with two(engine) as (a, b):
        a.exec_driver_sql("DROP TABLE IF EXISTS naive")
        a.exec_driver_sql("CREATE TABLE naive (id int, state text, claims int)")
        a.exec_driver_sql("INSERT INTO naive VALUES (1, 'PENDING', 0), (2, 'PENDING', 0)")
        a.commit()
        first = naive_claim(a)
        waiting = blocked(engine, b, a, naive_claim)

        a.commit()
        second = waiting.result()
        b.commit()

        assert first == second == [1], "both hold row 1"
        claims = a.exec_driver_sql("SELECT claims FROM naive ORDER BY id").scalars().all()
        a.exec_driver_sql("DROP TABLE naive")
        a.commit()
        assert list(claims) == [2, 0]


def test_our_claim_in_the_same_interleaving_skips_and_takes_the_other_row(engine: Engine) -> None:
    with two(engine) as (a, b):
        one, other = (pending_task(a) for _ in range(2))
        a.commit()
        first = our_claim(a, [one])
        second = our_claim(b, [one, other])
        a.commit()
        b.commit()
        assert (first, second) == ([one], [other])
        assert our_claim(b, [one, other]) == []
