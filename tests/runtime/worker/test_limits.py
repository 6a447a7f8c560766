"""Commands of operators: left as files, carried out by one child, told to all."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from tasks_app import TaskCancelledError, cancel_task
from tasks_app.domain.tasks.run import ClaimedTask, Run
from tasks_app.domain.tasks.states import State
from tasks_app.pool.runs.claim import claim
from tasks_app.runtime import scoreboard
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.worker import housekeeper, supervisor
from tasks_app.runtime.worker.control_inbox import ControlCommand, Do, Mailbox
from tasks_app.runtime.worker.reaper import Reaper
from tests.clock import until
from tests.factory import claimer
from tests.runtime.bench import Bench


@pytest.fixture
def mailbox(bench: Bench) -> Mailbox:
    """The parent's view of the box."""
    return Mailbox.beside(bench.slots.path)


def test_each_command_is_taken_once_and_whole(tmp_path: Path) -> None:
    commands = [ControlCommand(Do.CANCEL, ids=(n, n + 1)) for n in range(5)]
    one, other = Mailbox(tmp_path / "box"), Mailbox(tmp_path / "box")
    for command in commands:
        one.leave(command)
    first, second = one.take(), other.take()
    taken = [next(first), next(second), next(first), *second, *first]
    assert sorted(command.ids for _, command in taken) == [command.ids for command in commands]
    assert list(one.take()) == []


def test_what_is_put_back_is_taken_again_and_what_is_done_is_gone(tmp_path: Path) -> None:
    box = Mailbox(tmp_path / "box")
    box.leave(ControlCommand(Do.PAUSE, queue="mail", reason="why"))
    ((path, command),) = box.take()
    box.put_back(path)
    ((path, again),) = box.take()
    box.done(path)
    assert again == command == ControlCommand(Do.PAUSE, queue="mail", reason="why")
    assert list(box.take()) == []
    assert list((tmp_path / "box").iterdir()) == []


def test_an_empty_or_missing_box_has_no_news(tmp_path: Path) -> None:
    box = Mailbox(tmp_path / "box")
    assert not box.has_news()
    box.leave(ControlCommand(Do.RESUME, queue="*"))
    assert box.has_news()
    assert not box.has_news()


def test_a_waiting_task_is_cancelled_and_told_of(bench: Bench, mailbox: Mailbox) -> None:
    told: list[Notice] = []
    HOOKS.subscribe(told.append)
    bench.at_end(lambda: HOOKS.unsubscribe(told.append))
    task_id = bench.create("later", delay="1h")
    bench.child()
    mailbox.leave(ControlCommand(Do.CANCEL, ids=(task_id, 10**15)))
    until(lambda: bench.state(task_id) == State.CANCELLED, 5)
    until(lambda: [(n.kind, n.task_id, n.name) for n in told] == [("cancelled", task_id, "later")])


def test_a_running_task_of_a_sibling_is_told_within_seconds(bench: Bench, mailbox: Mailbox) -> None:
    """Any child's housekeeper may take the command, not only that of the child that runs it."""
    begun, go = bench.event(), bench.event()

    @bench.handler()
    def h(ctx) -> None:
        begun.set()
        until(lambda: ctx.cancelled or go.is_set(), 20)
        raise ValueError

    task_id = bench.create()
    runs, other = bench.child(lease=3600), bench.child(lease=3600)
    running = bench.beside(runs.execute, [task_id])
    begun.wait(10)

    mailbox.leave(ControlCommand(Do.CANCEL, ids=(task_id,)))

    running.join(10)
    assert not running.is_alive()
    until(lambda: bench.state(task_id) == State.CANCELLED, 5)  # a renewal may hold its row
    assert other.inflight.empty


@pytest.mark.test_all
def test_a_queue_is_paused_and_resumed(bench: Bench, mailbox: Mailbox) -> None:
    count = "SELECT count(*) FROM task_queue_pause WHERE queue = 'mail' AND reason = 'why'"
    bench.child()
    mailbox.leave(ControlCommand(Do.PAUSE, queue="mail", reason="why"))
    until(lambda: bench.sql(count) == 1, 5)
    mailbox.leave(ControlCommand(Do.RESUME, queue="mail"))
    until(lambda: bench.sql(count) == 0, 5)


@pytest.mark.test_all
def test_a_command_that_a_lock_holds_up_comes_later(bench: Bench, mailbox: Mailbox) -> None:
    task_id = bench.create("later", delay="1h")
    child = bench.child()
    with bench.engine.begin() as connection:
        connection.execute(
            text("SELECT FROM task_pending WHERE id = :id FOR UPDATE"), {"id": task_id}
        )
        mailbox.leave(ControlCommand(Do.CANCEL, ids=(task_id,)))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        until(lambda: bench.sql(waits) == 1, 5)
        until(lambda: bench.sql(waits) == 0, 5)

    until(lambda: bench.state(task_id) == State.CANCELLED, 10)
    assert child.inflight.empty


NOBODY = 2**22 + 1
"""No process has this id."""
LIMIT_S = 3.0


def killed_at_a_limit(
    bench: Bench, past: list[ClaimedTask], others: list[ClaimedTask], cancelled: int = 0
) -> None:
    """Leave the slot of a child that its parent killed, as these were past their limits.

    Of the first ``cancelled`` a cancel asked for it.
    """
    now = time.monotonic()
    runs = [(task.run, now - LIMIT_S) for task in past] + [(task.run, now) for task in others]
    for place, (run, since) in enumerate(runs):
        sign = -1 if place < cancelled else 1
        entry = scoreboard.RUN.pack(*run, since, sign * (since + LIMIT_S))
        bench.slots.write(scoreboard.run_offset(0, place), entry)
    head = scoreboard.HEAD.pack(NOBODY, 1.0, b"dead", now, 0.0, len(runs), 0, 0, 0)
    bench.slots.write(scoreboard.head_offset(0), head)
    (view,) = bench.slots.occupied()
    bench.slots.note_kill(view, now)


def claimed(bench: Bench, number: int, name: str = "t") -> list[ClaimedTask]:
    ids = [bench.create(name) for _ in range(number)]
    return bench.do(claim, ids, claimer(name, owner="dead", at_most_once=name == "once"), uuid4())


def reap(bench: Bench) -> None:
    database = bench.database()
    Reaper(database, bench.slots, bench.registry, bench.settings()).reap_dead()


def charges(bench: Bench, tasks: list[ClaimedTask]) -> list[tuple[str, int, int]]:
    rows = [bench.task(task.task_id) for task in tasks]
    return [(row.state.value, row.failures, row.crashes) for row in rows]


def test_who_was_past_the_hard_limit_is_charged_and_who_ran_beside_it_is_not(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.succeeding(retry="1h,1h")
    slow, beside = claimed(bench, 2)
    killed_at_a_limit(bench, [slow], [beside])

    reap(bench)

    assert charges(bench, [slow, beside]) == [("PENDING", 1, 0), ("PENDING", 0, 1)]
    (charged,), (rescued,) = bench.attempts(slow.task_id), bench.attempts(beside.task_id)
    assert (charged.event, charged.kind) == ("retry", "process died")
    assert (charged.message or "").endswith("was killed at its hard limit of 3 s.")
    assert (rescued.event, rescued.kind) == ("rescue", "process killed")
    assert f"task {slow.task_id} (t) ran past the hard limit and is charged" in caplog.text
    assert bench.slots.occupied() == []


def test_of_a_bulk_call_past_its_limit_nobody_is_charged_until_each_runs_alone(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.handler(at_once=10, retry="1h,1h")(lambda ctx, items: None)
    tasks = claimed(bench, 2)
    killed_at_a_limit(bench, tasks, [])

    reap(bench)

    assert charges(bench, tasks) == [("PENDING", 0, 1)] * 2
    assert "no task is charged; it was one of" in caplog.text


def test_one_that_a_bulk_handler_ran_alone_is_charged(bench: Bench) -> None:
    bench.handler(at_once=10, retry="1h,1h")(lambda ctx, items: None)
    tasks = claimed(bench, 1)
    killed_at_a_limit(bench, tasks, [])

    reap(bench)

    assert charges(bench, tasks) == [("PENDING", 1, 0)]


def test_a_kill_for_a_cancel_charges_nobody(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """But of one that may run once nobody knows what it did."""
    bench.succeeding(retry="1h,1h")
    bench.succeeding("once", at_most_once=True)
    (stubborn, beside), (once,) = claimed(bench, 2), claimed(bench, 1, name="once")
    bench.do(cancel_task, stubborn.task_id, kill_after="0s")
    killed_at_a_limit(bench, [stubborn], [beside, once], cancelled=1)

    reap(bench)

    assert charges(bench, [stubborn, beside]) == [("CANCELLED", 0, 0), ("PENDING", 0, 0)]
    assert bench.error(stubborn.task_id).endswith(" was killed, as whoever cancelled it asked for.")
    assert bench.attempts(beside.task_id) == []
    assert bench.error(once.task_id).startswith("outcome unknown: ")
    assert f"task {stubborn.task_id} (t) was cancelled, and killed; 2 that ran" in caplog.text


def test_a_kill_for_a_cancel_and_a_hard_limit_is_one_for_the_limit(bench: Bench) -> None:
    bench.succeeding(retry="1h,1h")
    stubborn, slow, beside = claimed(bench, 3)
    bench.do(cancel_task, stubborn.task_id, kill_after="0s")
    killed_at_a_limit(bench, [stubborn, slow], [beside], cancelled=1)

    reap(bench)

    ends = [("CANCELLED", 1, 0), ("PENDING", 1, 0), ("PENDING", 0, 1)]
    assert charges(bench, [stubborn, slow, beside]) == ends


def test_the_child_has_its_parent_kill_what_does_not_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its housekeeper shortens the limit of that run alone, and says so once."""
    monkeypatch.setattr(housekeeper, "CANCEL_LOOK_S", 0.0)

    @bench.handler(hard_timeout="1h")
    def h(ctx: Any) -> None:
        with suppress(TaskCancelledError):
            bench.runs.append(ctx.task_id)
            until(lambda: False, 20)
        until(lambda: bench.slots.occupied()[0].limits[0][1] < 0, 5)
        (view,) = bench.slots.occupied()
        bench.runs.append((view.kill_at - time.monotonic(), view.is_cancel(view.kill_at)))

    task_id, child = bench.create(), bench.child(start=False)
    child.housekeeper.cancels._watched = True
    child.start()
    running = bench.beside(child.execute, [task_id])
    until(lambda: bench.runs, 10)
    bench.do(cancel_task, task_id, kill_after="1m")
    running.join(30)
    (left_s, is_cancel) = bench.runs[1]
    assert 50 < left_s < 60
    assert is_cancel


def test_a_pool_that_can_kill_no_child_says_so_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(housekeeper, "CANCEL_LOOK_S", 0.0)

    @bench.handler()
    def h(ctx: Any) -> None:
        with suppress(TaskCancelledError):
            bench.do(cancel_task, ctx.task_id, kill_after="0s")
            until(lambda: False, 20)
        until(lambda: "use prefork" in caplog.text, 5)

    assert bench.state(bench.execute_one()) == "SUCCEEDED"
    assert caplog.text.count("was cancelled and does not end") == 1


def test_who_ran_alone_at_the_end_is_not_charged_for_one_that_ended_meanwhile(bench: Bench) -> None:
    """Interleaving: the parent decides to kill; the one past its limit ends; the signal comes."""
    bench.succeeding(retry="1h,1h")
    (beside,) = claimed(bench, 1)
    killed_at_a_limit(bench, [], [beside])
    reap(bench)
    assert charges(bench, [beside]) == [("PENDING", 0, 1)]


def test_the_log_of_a_kill_names_who_was_past_the_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slot = bench.slots.take("slow")
    slot.start(Run(19, 1), 0.0)
    slot.start(Run(26, 1), 3600.0)
    signals: list[int] = []
    system = SimpleNamespace(getpid=lambda: 0, kill=lambda pid, _: signals.append(pid))
    monkeypatch.setattr(supervisor, "os", system)

    supervisor.kill_overdue(bench.slots)

    (view,) = bench.slots.occupied()
    assert signals == [view.pid]
    assert "ran past the hard limit (tasks [19])" in caplog.text
    assert list(view.past(view.killed)) == [Run(19, 1)]


def test_a_note_of_a_kill_is_not_of_the_next_child_in_the_slot(bench: Bench) -> None:
    bench.slots.take("next")
    (view,) = bench.slots.occupied()
    bench.slots.note_kill(replace(view, pid=NOBODY), 1.0)
    (view,) = bench.slots.occupied()
    assert not view.killed
