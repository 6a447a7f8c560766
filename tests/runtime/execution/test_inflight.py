"""Claims that a child holds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.domain.handlers.settlement import ABORTED, OUTCOME_UNKNOWN
from tasks_app.domain.tasks.records import TaskId
from tasks_app.domain.tasks.run import ClaimedTask, Fence, Settlement
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flow_control.order_and_limits import drop_limit, set_limit
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.api.queues import pause_queue
from tasks_app.runtime.execution.claim_states import (
    CLAIM_TRANSITIONS,
    WAITING,
    ClaimEvent,
    ClaimState,
)
from tasks_app.runtime.execution.claims import FORWARD_AFTER_S
from tasks_app.runtime.execution.in_flight import InFlight
from tests.clock import until
from tests.factory import LEASE, some
from tests.runtime.bench import QUEUE, Bench
from tests.runtime.hints.ear import Ear, told
from tests.statements import Seen, watched

SHORT, LONG = "taken AS MATERIALIZED", "candidate AS MATERIALIZED"


def ways(claims: list[Seen]) -> list[str]:
    """How ids were claimed, one after the other; of none: the housekeeper prepares statements."""
    return [LONG if LONG in each.sql else SHORT for each in claims if each.values["ids"] != "{}"]


def limit(bench: Bench, *, there: bool) -> None:
    with bench.engine.begin() as connection:
        if there:
            set_limit(connection, Limit(GateKind.NAME, "other", 1))
        else:
            drop_limit(connection, GateKind.NAME, "other")


def test_a_task_that_nothing_stands_before_is_claimed_by_one_short_statement(bench: Bench) -> None:
    bench.succeeding()
    child = bench.child()
    with watched(child.database.engine, SHORT) as claims:
        child.executor.execute([bench.create()])
    assert len(bench.runs) == 1
    assert ways(claims) == [SHORT]


def test_while_something_stands_somewhere_the_short_way_is_tried_now_and_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.succeeding()
    child = bench.child()
    executor = child.executor
    limit(bench, there=True)
    monkeypatch.setattr("tasks_app.runtime.execution.claims.HINDERED_S", 3600.0)
    with watched(child.database.engine, SHORT) as claims:
        for _ in range(2):
            executor.execute([bench.create()])
    assert ways(claims) == [SHORT, LONG, LONG]

    limit(bench, there=False)
    executor.fetcher.hindered_until = 0.0
    with watched(child.database.engine, SHORT) as claims:
        for _ in range(2):
            executor.execute([bench.create()])

    assert ways(claims) == [SHORT, SHORT]


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def task(number: int) -> ClaimedTask:
    return ClaimedTask(
        fence=Fence(number, 1, uuid4()), name="t", queue="default", biz_key=None, payload="{}",
        headers=None, failures=0, crashes=0, retry_level=0, max_attempts=3, at_most_once=False,
        retry=None, timeout_ms=None, hard_timeout_ms=None, key_text=str(uuid4()),
        created_s=0.0, due_s=0.0, cancel_requested=False,
    )  # fmt: skip


def holding(
    *tasks: ClaimedTask, opened: bool = False, start: bool = True, **options: Any
) -> InFlight:
    """Claims that a child has received; it carries out a message, and has started the first."""
    inflight = InFlight(**options)
    if opened:
        inflight.open_message()
    inflight.receive(tasks)
    if start:
        inflight.start_next()
    return inflight


def done(claimed: ClaimedTask) -> Settlement:
    return Settlement(claimed.fence, Event.SUCCEED, 0, 0)


def fences_on_the_way_back(inflight: InFlight) -> list[Fence]:
    return [item.fence for item in inflight.returning()]


def test_what_the_housekeeper_took_back_no_thread_starts() -> None:
    first, second, third = task(1), task(2), task(3)
    inflight = holding(first, second, third, start=False)
    assert inflight.start_next() is not None
    inflight.take_back(0.0)
    assert fences_on_the_way_back(inflight) == [second.fence, third.fence]
    assert inflight.start_next() is None
    assert set(inflight.held()) == {first.fence, second.fence, third.fence}


def test_nothing_is_taken_back_while_nothing_runs_long() -> None:
    inflight = holding(task(1), task(2))
    inflight.take_back(3600.0)
    assert inflight.returning() == []
    assert inflight.start_next() is not None


def test_a_free_thread_keeps_what_waits_here() -> None:
    inflight = holding(task(1), task(2), task(3), threads=2)
    inflight.take_back(0.0)
    kept = inflight.returning()
    inflight.start_next()
    inflight.take_back(0.0)
    assert kept == []
    assert [item.fence.task_id for item in inflight.returning()] == [3]


def test_a_thread_without_a_message_takes_nothing_from_the_inflight() -> None:
    """A pool of eight threads with one message: when its task is slow, nobody else comes."""
    inflight = holding(task(1), task(2), opened=True, threads=8)
    inflight.take_back(0.0)
    assert inflight.gave_back
    assert [fence.task_id for fence in fences_on_the_way_back(inflight)] == [2]


def test_a_quick_neighbour_with_a_message_keeps_what_waits_here() -> None:
    inflight = InFlight(threads=8)
    inflight.open_message()
    neighbour = threading.Thread(target=inflight.open_message)
    neighbour.start()
    neighbour.join()
    inflight.receive([task(1), task(2)])
    inflight.start_next()
    inflight.take_back(0.0)
    assert fences_on_the_way_back(inflight) == []


def test_every_task_is_either_started_or_taken_back_never_both() -> None:
    """Four starters against one housekeeper, a hundred times."""
    for _ in range(100):
        inflight = InFlight()
        inflight.receive([task(n) for n in range(20)])
        inflight.start_next()
        started: list[int] = []
        together = threading.Barrier(5)

        def start(inflight=inflight, started=started, together=together) -> None:
            together.wait()
            while (run := inflight.start_next()) is not None:
                started.append(run.task.task_id)

        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        together.wait()
        inflight.take_back(0.0)
        for thread in threads:
            thread.join()

        taken = [fence.task_id for fence in fences_on_the_way_back(inflight)]
        assert sorted(started + taken) == list(range(1, 20))


def test_the_rest_of_a_message_is_given_back_and_the_next_one_is_not() -> None:
    inflight = holding(task(1), opened=True)
    inflight.take_back(0.0)
    assert inflight.gave_back
    inflight.close_message()
    inflight.open_message()
    assert not inflight.gave_back


def test_nothing_starts_after_the_stop() -> None:
    inflight = holding(task(1), start=False)
    inflight.stop()
    assert inflight.start_next() is None
    inflight.take_all_back()
    assert len(inflight.returning()) == 1


def test_a_child_that_stops_returns_what_was_to_be_written_alone() -> None:
    first = task(1)
    inflight = holding(first)
    inflight.collect(done(first))
    inflight.split_off(done(first))
    inflight.stop()
    inflight.take_all_back()
    assert fences_on_the_way_back(inflight) == [first.fence]
    assert inflight.start_separate() is None


def test_each_state_is_reached_and_left() -> None:
    assert {after for after in CLAIM_TRANSITIONS.values() if after} == {*ClaimState} - {WAITING}
    assert {state for state, _ in CLAIM_TRANSITIONS} == {*ClaimState}
    assert {event for _, event in CLAIM_TRANSITIONS} == {*ClaimEvent}


def test_an_event_that_is_not_listed_changes_nothing() -> None:
    first, strange = task(1), task(2)
    inflight = holding(first, start=False)
    for claimed in (first, strange):
        inflight.collect(done(claimed))
        inflight.drop(claimed.fence)
    assert (inflight.held(), inflight.finished()) == ([first.fence], [])
    assert not inflight.begin_commit(first.fence)
    assert inflight.waiting == 1


def test_what_is_let_go_can_neither_commit_nor_be_collected() -> None:
    first = task(1)
    inflight = holding(first)
    taken = inflight.disown()
    inflight.collect(done(first))
    inflight.give_back(first, LEASE)
    assert taken == [first]
    assert not inflight.begin_commit(first.fence)
    assert inflight.held() == []


def test_a_run_that_is_being_committed_is_let_go_only_when_told_so() -> None:
    first = task(1)
    inflight = holding(first)
    assert inflight.begin_commit(first.fence)
    assert inflight.disown() == []
    assert inflight.begin_commit(first.fence)
    assert inflight.disown(committing=True) == [first]
    assert not inflight.begin_commit(first.fence)


def test_all_is_taken_back_with_the_rest_of_the_message() -> None:
    inflight = holding(task(1), task(2), opened=True)
    assert inflight.busy
    inflight.take_all_back()
    assert inflight.gave_back
    assert [item.fence.task_id for item in inflight.returning()] == [2]


def test_an_answer_to_one_run_does_not_end_the_next() -> None:
    """Interleaving: the housekeeper settles run 1 as RETRY; this child claims run 2; it drops 1."""
    run_1, run_2 = task(1), task(1)
    inflight = holding(run_1)
    inflight.collect(done(run_1))
    inflight.receive([run_2])
    inflight.start_next()
    inflight.drop(run_1.fence)
    assert [run.task for run in inflight.running()] == [run_2]
    assert inflight.held() == [run_2.fence]


def test_a_task_that_runs_alone_waits_for_the_others_and_they_for_it() -> None:
    first, alone, last = task(1), task(2)._replace(at_most_once=True), task(3)
    inflight = holding(first, alone, last, start=False)
    together = [inflight.start_next(), inflight.start_next(), inflight.start_next()]
    inflight.drop(first.fence)
    inflight.drop(last.fence)
    by_itself = some(inflight.start_next())
    inflight.receive([task(4)])
    assert [run and run.task.task_id for run in together] == [1, 3, None]
    assert by_itself.task is alone
    assert inflight.start_next() is None


def test_outcomes_stay_until_the_database_has_answered() -> None:
    claimed = task(1)
    inflight = holding(claimed)
    inflight.collect(done(claimed))
    assert [s.fence for s in inflight.finished()] == [claimed.fence]
    assert (inflight.running(), inflight.held(), inflight.empty) == ([], [claimed.fence], False)
    inflight.drop(claimed.fence)
    assert inflight.empty


def test_pending_writes_count_until_they_are_done() -> None:
    inflight = InFlight()
    inflight.write_later(print)
    pending_writes = inflight.pending_writes.take()
    assert not inflight.empty
    inflight.pending_writes.leave(pending_writes)
    assert inflight.pending_writes.take() == [print]
    inflight.pending_writes.leave([])
    assert inflight.empty


def test_a_task_that_suits_nobody_else_is_left_for_who_it_suits() -> None:
    inflight = holding(task(1), task(2), start=False)
    run = some(inflight.start_next(lambda one: one.task_id == 2))
    assert run.task.task_id == 2
    assert inflight.start_next(lambda one: one.task_id == 2) is None


def test_one_call_takes_no_exclusive_task_and_none_with_limits_of_its_own() -> None:
    limited, other = task(3)._replace(timeout_ms=5), task(5)._replace(name="other")
    inflight = holding(
        task(1), lonely(2), limited, task(4), other, task(6), task(7), start=False, at_once={"t": 3}
    )
    assert inflight.of_one_call == 3
    calls = [some(inflight.start_next()) for _ in range(4)]
    started = [[run.task.task_id for run in (call, *call.others)] for call in calls]
    assert started == [[1, 4, 6], [3], [5], [7]]


def test_a_call_of_many_keeps_one_thread_busy() -> None:
    inflight = holding(task(1), task(2), task(3), task(4), threads=3, at_once={"t": 3})
    inflight.take_back(0.0)
    assert inflight.returning() == []


def anything(_: ClaimedTask) -> bool:
    return True


class TestTheAsyncPool:
    def test_takes_a_group_and_leaves_what_runs_alone(self) -> None:
        inflight = InFlight(for_async_pool=anything)
        inflight.receive([lonely(1), task(2), task(3), task(4)])

        first = inflight.start_async_pool(2)
        second = inflight.start_async_pool(9)
        third = inflight.start_async_pool(9)
        for run in [*first, *second]:
            inflight.drop(run.task.fence)
        last = inflight.start_async_pool(9)

        ids = [[run.task.task_id for run in runs] for runs in (first, second, third, last)]
        assert ids == [[2, 3], [4], [], [1]]
        inflight.receive([task(5)])
        assert inflight.start_async_pool(9) == []
        assert inflight.start_next() is None

    def test_takes_no_thread_so_nothing_goes_back(self) -> None:
        inflight = InFlight(places=2, for_async_pool=anything)
        inflight.open_message()
        inflight.receive([task(1)])
        inflight.start_async_pool(1)
        inflight.receive([task(2)])

        inflight.take_back(0.0)
        one = inflight.gave_back
        inflight.start_async_pool(1)
        inflight.take_back(0.0)

        # All places are taken: the rest of the message is others'.
        assert (one, inflight.gave_back) == (False, True)
        assert inflight.returning() == []

    def test_a_call_of_many_takes_one_place(self) -> None:
        inflight = InFlight(places=3, for_async_pool=anything, at_once={"t": 3})
        inflight.open_message()
        inflight.receive([task(1), task(2), task(3)])
        assert len(inflight.start_async_pool(1)[0].others) == 2
        inflight.take_back(0.0)
        assert not inflight.gave_back

    def test_what_runs_alone_is_turned_away_thrice_and_then_waits_for_its_turn(self) -> None:
        inflight = InFlight(places=2, for_async_pool=anything)
        inflight.receive([task(1)])
        inflight.start_async_pool(1)
        turned_away = []
        for _ in range(5):
            lone = lonely(2)
            inflight.receive([lone])
            inflight.take_back(0.0)
            turned_away.append(lone.fence in fences_on_the_way_back(inflight))
            inflight.drop(lone.fence)

        assert turned_away == [True, True, True, False, False]


def lonely(number: int) -> ClaimedTask:
    return task(number)._replace(crashes=1)


def test_a_run_whose_thread_is_dead_goes_back_and_one_at_most_once_is_unknown() -> None:
    inflight = InFlight()
    usual, once = task(1), task(2)._replace(at_most_once=True)
    for claimed in (usual, once):
        inflight.receive([claimed])
        thread = threading.Thread(target=inflight.start_next)
        thread.start()
        thread.join()
        (run,) = inflight.running()
        inflight.return_unowned()
        inflight.return_unended(run)  # its lane may do so, too

    assert [(item.fence, item.crash) for item in inflight.returning()] == [(usual.fence, ABORTED)]
    (settlement,) = inflight.finished()
    assert (settlement.fence, settlement.event) == (once.fence, Event.FAIL)
    assert settlement.cause is not None
    assert settlement.cause.kind == OUTCOME_UNKNOWN
    assert inflight.running() == []


def test_who_carries_out_a_run_owns_it_and_leaves_none_that_has_ended() -> None:
    inflight = holding(task(1), task(2), start=False)
    first, second = inflight.start_next(), inflight.start_next()
    assert first is not None
    assert second is not None
    inflight.collect(done(first.task))
    inflight.return_unended(first)
    inflight.return_unowned()
    assert inflight.returning() == []
    assert inflight.running() == [second]


def test_who_loses_its_connection_right_after_everybody_did_is_not_suspected() -> None:
    first, second = task(1), task(2)
    inflight = holding(first, second, start=False)
    for claimed in (first, second):
        inflight.start_next()
        inflight.give_back(claimed, LEASE, crash="lost")
        inflight.note_outage()
    assert [item.crash for item in inflight.returning()] == ["", ""]


def lives(bench: Bench, *handlers: str, queues: Sequence[str] = (QUEUE,)) -> None:
    """Let another service's child live."""
    bench.do(heartbeats.write_heartbeat, owner="theirs", node="n", queues=queues, handlers=handlers)


@pytest.fixture
def theirs(bench: Bench) -> TaskId:
    bench.succeeding("ours")
    return bench.create("theirs")


def test_what_only_others_know_is_passed_on(bench: Bench, ear: Ear, theirs: TaskId) -> None:
    lives(bench, "theirs")
    ours = bench.create("ours")
    bench.execute([theirs, ours])
    assert bench.states([theirs, ours]) == ["PENDING", "SUCCEEDED"]
    assert told(ear) == [theirs]


def test_what_nobody_there_knows_waits_for_a_scan(bench: Bench, ear: Ear, theirs: TaskId) -> None:
    lives(bench, "theirs", queues=["elsewhere"])
    bench.execute([theirs])
    assert told(ear) == []


def test_what_may_not_run_is_not_passed_on(bench: Bench, ear: Ear, theirs: TaskId) -> None:
    lives(bench, "theirs")
    later = bench.create("theirs", delay="1h")
    bench.do(pause_queue, QUEUE, "a test")
    bench.execute([theirs, later])
    assert told(ear) == []


@pytest.mark.test_all
def test_what_comes_back_often_is_left_to_the_scan(bench: Bench, ear: Ear, theirs: TaskId) -> None:
    lives(bench, "theirs")
    child = bench.child()
    for _ in range(len(FORWARD_AFTER_S) + 2):
        child.execute([theirs])
    until(lambda: told(ear) == [theirs] * len(FORWARD_AFTER_S))


def test_without_a_broker_it_parks_only_what_nobody_knows(bench: Bench, theirs: TaskId) -> None:
    lives(bench, "theirs")
    nobodys = bench.run_one("nobodys")
    assert bench.task(theirs).parked is None
    assert bench.task(nobodys).parked is not None
