"""Commands of operators: left as files, carried out by one child, told to all."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from tasks_app.domain.tasks.states import State
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.worker.control_inbox import ControlCommand, Do, Mailbox
from tests.runtime.bench import Bench
from tests.waiting import until


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
def test_a_command_that_somebodys_lock_holds_up_is_carried_out_later(
    bench: Bench, mailbox: Mailbox
) -> None:
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
