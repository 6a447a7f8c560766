"""The desk: one mutex decides who owns a task."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from uuid import uuid4

from tasks_app.domain.tasks.records import ClaimedTask, Fence, Settlement
from tasks_app.domain.tasks.states import Event
from tasks_app.runtime.inflight.inflight import Desk
from tests.factory import LEASE

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def task(number: int) -> ClaimedTask:
    return ClaimedTask(
        fence=Fence(number, 1, uuid4()), name="t", queue="default", biz_key=None, payload="{}",
        headers=None, failures=0, crashes=0, retry_level=0, max_attempts=3, at_most_once=False,
        retry=None, timeout_ms=None, hard_timeout_ms=None, key_text=str(uuid4()),
        created_s=0.0, due_s=0.0, cancel_requested=False,
    )  # fmt: skip


def done(claimed: ClaimedTask) -> Settlement:
    return Settlement(claimed.fence, Event.SUCCEED, 0, 0)


def fences_on_the_way_back(desk: Desk) -> list[Fence]:
    return [item.fence for item in desk.returning()]


def test_what_the_clerk_took_back_no_thread_starts() -> None:
    desk = Desk()
    first, second, third = task(1), task(2), task(3)
    desk.receive([first, second, third])
    assert desk.start_next() is not None

    desk.take_back(0.0)

    assert fences_on_the_way_back(desk) == [second.fence, third.fence]
    assert desk.start_next() is None
    assert set(desk.held()) == {first.fence, second.fence, third.fence}


def test_nothing_is_taken_back_while_nothing_runs_long() -> None:
    desk = Desk()
    desk.receive([task(1), task(2)])
    desk.start_next()

    assert desk.take_back(3600.0) == []
    assert desk.returning() == []
    assert desk.start_next() is not None


def test_a_free_thread_keeps_what_waits_here() -> None:
    desk = Desk(threads=2)
    desk.receive([task(1), task(2), task(3)])
    desk.start_next()

    desk.take_back(0.0)
    kept = desk.returning()
    desk.start_next()
    desk.take_back(0.0)

    assert kept == []
    assert [item.fence.task_id for item in desk.returning()] == [3]


def test_a_thread_without_a_message_takes_nothing_from_the_desk() -> None:
    """A pool of eight threads with one message: when its task is slow, nobody else comes."""
    desk = Desk(threads=8)
    desk.open_message(7)
    desk.receive([task(1), task(2)])
    desk.start_next()

    messages = desk.take_back(0.0)

    assert messages == [7]
    assert [fence.task_id for fence in fences_on_the_way_back(desk)] == [2]


def test_a_quick_neighbour_with_a_message_keeps_what_waits_here() -> None:
    desk = Desk(threads=8)
    desk.open_message(7)
    neighbour = threading.Thread(target=desk.open_message, args=(8,))
    neighbour.start()
    neighbour.join()
    desk.receive([task(1), task(2)])
    desk.start_next()

    assert desk.take_back(0.0) == []
    assert fences_on_the_way_back(desk) == []


def test_every_task_is_either_started_or_taken_back_never_both() -> None:
    """Four starters against one clerk, a hundred times."""
    for _ in range(100):
        desk = Desk()
        desk.receive([task(n) for n in range(20)])
        desk.start_next()
        started: list[int] = []
        together = threading.Barrier(5)

        def start(desk=desk, started=started, together=together) -> None:
            together.wait()
            while (run := desk.start_next()) is not None:
                started.append(run.task.task_id)

        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        together.wait()
        desk.take_back(0.0)
        for thread in threads:
            thread.join()

        taken = [fence.task_id for fence in fences_on_the_way_back(desk)]
        assert sorted(started + taken) == list(range(1, 20))


def test_the_message_of_a_thread_is_given_back_once() -> None:
    desk = Desk()
    desk.open_message(7)
    desk.receive([task(1)])
    desk.start_next()

    first, second = desk.take_back(0.0), desk.take_back(0.0)

    assert (first, second) == ([7], [])
    assert desk.gave_back
    desk.close_message()
    desk.open_message(8)
    assert not desk.gave_back


def test_a_hint_has_no_ledger_row_to_give_back() -> None:
    desk = Desk()
    desk.open_message(0)
    desk.receive([task(1)])
    desk.start_next()

    assert desk.take_back(0.0) == []
    assert desk.gave_back


def test_nothing_starts_after_the_stop() -> None:
    desk = Desk()
    desk.receive([task(1)])

    desk.stop()

    assert desk.start_next() is None
    desk.take_all_back()
    assert len(desk.returning()) == 1


def test_what_is_let_go_can_neither_commit_nor_be_collected() -> None:
    desk = Desk()
    first = task(1)
    desk.receive([first])
    desk.start_next()

    taken = desk.let_go()
    desk.collect(done(first))
    desk.give_back(first, LEASE)

    assert taken == [first]
    assert not desk.begin_commit(first.fence)
    assert desk.held() == []


def test_a_run_that_is_being_committed_is_let_go_only_when_told_so() -> None:
    desk = Desk()
    first = task(1)
    desk.receive([first])
    desk.start_next()

    assert desk.begin_commit(first.fence)
    assert desk.let_go() == []
    assert desk.begin_commit(first.fence)
    assert desk.let_go(committing=True) == [first]
    assert not desk.begin_commit(first.fence)


def test_all_that_is_taken_back_names_its_messages_once() -> None:
    desk = Desk()
    desk.open_message(7)
    desk.receive([task(1), task(2)])
    desk.start_next()

    assert desk.busy
    assert desk.take_all_back() == [7]
    assert desk.take_all_back() == []
    assert desk.gave_back
    assert [item.fence.task_id for item in desk.returning()] == [2]


def test_an_answer_to_one_run_does_not_end_the_next() -> None:
    """Interleaving: the clerk settles run 1 as RETRY; this child claims run 2; it drops 1."""
    desk = Desk()
    run_1, run_2 = task(1), task(1)
    desk.receive([run_1])
    desk.start_next()
    desk.collect(done(run_1))
    desk.receive([run_2])
    desk.start_next()

    desk.drop(run_1.fence)

    assert [run.task for run in desk.running()] == [run_2]
    assert desk.held() == [run_2.fence]


def test_a_task_that_runs_alone_waits_for_the_others_and_they_for_it() -> None:
    desk = Desk()
    first, alone, last = task(1), task(2)._replace(at_most_once=True), task(3)
    desk.receive([first, alone, last])

    together = [desk.start_next(), desk.start_next(), desk.start_next()]
    desk.drop(first.fence)
    desk.drop(last.fence)
    by_itself = desk.start_next()
    desk.receive([task(4)])

    assert [run and run.task.task_id for run in together] == [1, 3, None]
    assert by_itself is not None
    assert by_itself.task is alone
    assert desk.start_next() is None


def test_outcomes_stay_until_the_database_has_answered() -> None:
    desk = Desk()
    claimed = task(1)
    desk.receive([claimed])
    desk.start_next()

    desk.collect(done(claimed))

    assert [s.fence for s in desk.finished()] == [claimed.fence]
    assert (desk.running(), desk.held(), desk.empty) == ([], [claimed.fence], False)
    desk.drop(claimed.fence)
    assert desk.empty


def test_errands_count_until_they_are_done() -> None:
    desk = Desk()
    desk.errand(print)

    errands = desk.errands.take()

    assert not desk.empty
    desk.errands.leave(errands)
    assert desk.errands.take() == [print]
    desk.errands.leave([])
    assert desk.empty


def test_a_task_that_suits_nobody_else_is_left_for_who_it_suits() -> None:
    desk = Desk()
    desk.receive([task(1), task(2)])

    run = desk.start_next(lambda one: one.task_id == 2)

    assert run is not None
    assert run.task.task_id == 2
    assert desk.start_next(lambda one: one.task_id == 2) is None


def anything(_: ClaimedTask) -> bool:
    return True


class TestTheCrew:
    def test_takes_a_group_and_leaves_what_runs_alone(self) -> None:
        desk = Desk(for_crew=anything)
        desk.receive([lonely(1), task(2), task(3), task(4)])

        first = desk.start_crew(2)
        second = desk.start_crew(9)
        third = desk.start_crew(9)
        for run in [*first, *second]:
            desk.drop(run.task.fence)
        last = desk.start_crew(9)

        ids = [[run.task.task_id for run in runs] for runs in (first, second, third, last)]
        assert ids == [[2, 3], [4], [], [1]]
        desk.receive([task(5)])
        assert desk.start_crew(9) == []
        assert desk.start_next() is None

    def test_takes_no_thread_so_nothing_goes_back(self) -> None:
        desk = Desk(places=2, for_crew=anything)
        desk.open_message(7)
        desk.receive([task(1)])
        desk.start_crew(1)
        desk.receive([task(2)])

        one = desk.take_back(0.0)
        desk.start_crew(1)
        both = desk.take_back(0.0)

        assert (one, both) == ([], [7])  # all places are taken: the rest of the message is others'
        assert desk.returning() == []

    def test_what_runs_alone_is_turned_away_thrice_and_then_waits_for_its_turn(self) -> None:
        desk = Desk(places=2, for_crew=anything)
        desk.receive([task(1)])
        desk.start_crew(1)
        turned_away = []
        for _ in range(5):
            lone = lonely(2)
            desk.receive([lone])
            desk.take_back(0.0)
            turned_away.append(lone.fence in fences_on_the_way_back(desk))
            desk.drop(lone.fence)

        assert turned_away == [True, True, True, False, False]


def lonely(number: int) -> ClaimedTask:
    return task(number)._replace(crashes=1)


def test_who_loses_its_connection_right_after_everybody_did_is_not_suspected() -> None:
    desk = Desk()
    first, second = task(1), task(2)
    desk.receive([first, second])
    for claimed in (first, second):
        desk.start_next()
        desk.give_back(claimed, LEASE, suspect=True)
        desk.acquit()

    assert [item.suspect for item in desk.returning()] == [False, False]
