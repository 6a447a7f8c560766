"""A worker that stops: its children start nothing more, give back, and let go in the end."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from tasks_app.runtime.worker.child import Child
from tests.clock import until
from tests.runtime.bench import EFFECT, Bench, effect

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"  # how one ends here: see ``ended``
)


class Held:
    """A handler that leaves an effect and runs until the test lets it go, whatever is raised."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.started = threading.Event()
        self.go_on = bench.event()

        @bench.handler("held")
        def held(ctx: Any) -> None:
            effect(ctx)
            self.started.set()
            assert self.go_on.wait(30)

    def run(self, ids: list[int], **options: Any) -> None:
        """Let a child carry out a message in a thread, and wait until the handler runs."""
        self.ids, self.task_id = ids, ids[0]
        self.child, self.thread = carried_out(self.bench, ids, **options)
        assert self.started.wait(10)


@pytest.fixture(autouse=True)
def ended(bench: Bench) -> threading.Event:
    """Set when the process would end; its housekeeper ends instead."""
    ended = threading.Event()

    def end(status: int) -> None:
        assert status == 0
        ended.set()
        raise SystemExit

    bench.tuning["shutdown.end_process"] = end
    return ended


def carried_out(bench: Bench, ids: list[int], **options: Any) -> tuple[Child, threading.Thread]:
    """A child that carries out a message in a thread."""
    child = bench.child(**options)
    return child, bench.beside(child.execute, ids)


def running(bench: Bench, *behind: str, **options: Any) -> Held:
    """Such a handler, at work; others of its message wait behind it."""
    held = Held(bench)
    held.run([bench.create(name) for name in ("held", *behind)], **options)
    return held


@pytest.mark.test_all
def test_what_has_not_started_goes_back_uncharged_when_the_parent_drains(bench: Bench) -> None:
    started = []

    @bench.handler("t")
    def t(ctx: Any) -> None:
        started.append(ctx.task_id)
        bench.slots.drain()

    ids = [bench.create() for _ in range(25)]
    bench.execute(ids)
    assert len(started) == 1
    assert sorted(bench.states(ids)) == ["PENDING"] * 24 + ["SUCCEEDED"]
    assert {bench.task(i).failures + bench.task(i).crashes for i in ids} == {0}


@pytest.mark.test_all
def test_claims_and_queues_go_back_while_a_task_still_runs(bench: Bench) -> None:
    held = Held(bench)
    first, rest = bench.create("held"), [bench.create("held") for _ in range(14)]
    held.run([first, *rest])
    bench.slots.drain()
    until(lambda: bench.states(rest) == ["PENDING"] * 14)
    until(lambda: bench.sql("SELECT queues FROM task_worker") == [])
    assert bench.state(first) == "RUNNING"
    held.go_on.set()
    held.thread.join(10)
    assert (bench.state(first), bench.effects(first)) == ("SUCCEEDED", 1)


def test_the_lease_is_renewed_while_it_drains(bench: Bench) -> None:
    held = running(bench, lease=0.6)
    bench.slots.drain()
    until(lambda: bench.sql("SELECT queues FROM task_worker") == [])
    first = bench.task(held.task_id).lease_until
    until(lambda: bench.sql("SELECT now() > CAST(:at AS timestamptz)", at=first))
    assert bench.sql("SELECT lease_until > now() FROM task_pending")


def test_what_is_let_go_writes_nothing_here(bench: Bench, ended: threading.Event) -> None:
    held = running(bench)

    bench.slots.leave()

    assert ended.wait(10)
    task = bench.task(held.task_id)
    assert (task.state, task.attempt, task.failures, task.crashes) == ("PENDING", 1, 0, 0)
    assert bench.slots.occupied() == []
    assert bench.sql("SELECT count(*) FROM task_worker") == 0
    held.go_on.set()
    held.thread.join(10)
    assert (bench.state(held.task_id), bench.effects(held.task_id)) == ("PENDING", 0)
    assert bench.slots.occupied() == []


@pytest.mark.test_all
def test_all_that_run_side_by_side_are_let_go(bench: Bench, ended: threading.Event) -> None:
    go_on, aboard = bench.event(), []

    @bench.handler("async")
    async def waits(ctx: Any) -> None:
        aboard.append(ctx.task_id)
        await ctx.session.execute(text(EFFECT), {"id": ctx.task_id, "note": ""})
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    held = Held(bench)
    ids = [*(bench.create("async") for _ in range(5)), bench.create("held")]
    held.run(ids)
    until(lambda: len(aboard) == 5)

    bench.slots.leave()

    assert ended.wait(10)
    assert bench.states(ids) == ["PENDING"] * 6
    assert {bench.task(i).failures + bench.task(i).crashes for i in ids} == {0}
    held.go_on.set()
    go_on.set()
    held.thread.join(10)
    assert bench.states(ids) == ["PENDING"] * 6
    assert bench.sql("SELECT count(*) FROM effect") == 0


def test_finished_outcomes_are_written_before_the_end(bench: Bench, ended: threading.Event) -> None:
    bench.succeeding("quick")
    held = Held(bench)
    quick, slow = bench.create("quick"), bench.create("held")
    child = bench.child(flush_after=60)
    child.executor.run_times.learn("held", 0.0)  # so that nobody flushes before it
    bench.beside(child.execute, [quick, slow])
    assert held.started.wait(10)
    assert bench.state(quick) == "RUNNING"

    bench.slots.leave()

    assert ended.wait(10)
    assert bench.states([quick, slow]) == ["SUCCEEDED", "PENDING"]


def test_a_task_to_be_cancelled_does_not_return(bench: Bench, ended: threading.Event) -> None:
    held = running(bench)
    bench.sql("UPDATE task_pending SET cancel_requested_at = now()")
    bench.slots.leave()
    assert ended.wait(10)
    assert bench.state(held.task_id) == "CANCELLED"


def test_a_commit_in_progress_is_waited_for(
    bench: Bench, ended: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks_app.runtime.worker.shutdown.COMMITS_S", 10)
    at_the_end: list[str] = []

    def end(_status: int) -> None:
        at_the_end.append(bench.state(task_id))
        ended.set()
        raise SystemExit

    bench.tuning["shutdown.end_process"] = end
    commits, go_on = threading.Event(), bench.event()

    @bench.handler()
    def h(ctx: Any) -> None:
        effect(ctx)

        @event.listens_for(ctx.session, "before_commit")
        def wait(_session: Any) -> None:
            commits.set()
            assert go_on.wait(20)

    task_id = bench.create()
    # The commit goes on when it is waited for.
    bench.tuning["shutdown.sleep"] = lambda _seconds: go_on.set()
    _, thread = carried_out(bench, [task_id])
    assert commits.wait(10)

    bench.slots.leave()

    assert ended.wait(10)
    thread.join(10)
    assert at_the_end == ["SUCCEEDED"]
    assert bench.effects(task_id) == 1


WAITS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


def stuck_in_its_outcome(bench: Bench, holder: Connection) -> None:
    """Let each success wait, with its row deleted, until ``holder`` is closed."""
    bench.sql(
        "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;"
        " CREATE TRIGGER waits AFTER INSERT ON task_completed"
        " FOR EACH ROW EXECUTE FUNCTION waits()"
    )
    bench.at_end(lambda: bench.sql("DROP FUNCTION waits() CASCADE"))
    holder.execute(text("SELECT pg_advisory_xact_lock(4711)"))


@pytest.mark.test_all
@pytest.mark.parametrize("settled", [True, False], ids=["settled", "not settled"])
def test_a_commit_that_does_not_come_to_an_end_is_judged_by_the_fence(
    bench: Bench, ended: threading.Event, *, settled: bool
) -> None:
    """With its row deleted and locked, it is left to the lease; before that, it is let go."""
    stuck, go_on = threading.Event(), bench.event()

    def wait(*_: Any) -> None:
        stuck.set()
        assert go_on.wait(20)

    @bench.handler()
    def h(ctx: Any) -> None:
        effect(ctx)
        if not settled:
            ctx.session.flush = wait

    task_id = bench.create()
    with bench.engine.connect() as holder:
        if settled:
            stuck_in_its_outcome(bench, holder)
        _, thread = carried_out(bench, [task_id])
        until(lambda: stuck.is_set() or bench.sql(WAITS))

        bench.slots.leave()

        assert ended.wait(10)
        assert bench.state(task_id) == ("RUNNING" if settled else "PENDING")
        go_on.set()
    thread.join(10)
    assert bench.state(task_id) == ("SUCCEEDED" if settled else "PENDING")
    assert bench.effects(task_id) == int(settled)


def test_sigterm_may_have_a_grace_of_its_own(bench: Bench, ended: threading.Event) -> None:
    held = running(bench, stop_grace="300ms")
    bench.slots.drain()
    assert ended.wait(10)
    assert bench.state(held.task_id) == "PENDING"


def ask(child: Child) -> None:
    """As a signal handler does."""
    child.inflight.stop_requested_at = 0.0


def test_a_signal_to_this_child_alone_lets_go(bench: Bench, ended: threading.Event) -> None:
    held = running(bench)
    ask(held.child)
    assert ended.wait(10)
    task = bench.task(held.task_id)
    assert (task.state, task.failures, task.crashes) == ("PENDING", 0, 1)
    assert [line.kind for line in bench.attempts(held.task_id)] == ["interrupted"]


def test_neighbours_of_a_signalled_task_are_uncharged(bench: Bench, ended: threading.Event) -> None:
    bench.succeeding("next")
    held = running(bench, *["next"] * 15, give_back_after="1h")
    ask(held.child)
    assert ended.wait(10)
    assert bench.states(held.ids) == ["PENDING"] * 16
    assert [bench.task(task_id).crashes for task_id in held.ids] == [1] + [0] * 15


@pytest.mark.test_all
def test_what_ends_soon_is_kept_and_nothing_starts(bench: Bench, ended: threading.Event) -> None:
    """Else the housekeeper would let go of a task that came later, and count a crash for it."""
    bench.succeeding("next")
    held = running(bench, *["next"] * 15)
    held.child.inflight.stop_requested_at = time.monotonic()
    held.go_on.set()
    assert ended.wait(10)
    assert bench.states(held.ids) == ["SUCCEEDED"] + ["PENDING"] * 15
    assert [bench.task(task_id).crashes for task_id in held.ids] == [0] * 16


def test_who_signals_its_own_child_always_fails(bench: Bench, ended: threading.Event) -> None:
    held = running(bench, max_crashes=1)
    ask(held.child)
    assert ended.wait(10)
    assert bench.state(held.task_id) == "FAILED"
    assert bench.error(held.task_id).startswith("interrupted: A signal ended its process")


def test_a_signal_to_the_group_is_for_the_parent(bench: Bench, ended: threading.Event) -> None:
    held = running(bench)
    bench.slots.drain()
    ask(held.child)
    until(lambda: bench.sql("SELECT queues FROM task_worker") == [])
    assert not held.child.shutdown.due
    held.go_on.set()
    held.thread.join(10)
    assert bench.state(held.task_id) == "SUCCEEDED"
    assert not ended.is_set()


@pytest.mark.test_all
def test_no_idle_child_is_ended_by_its_housekeeper(bench: Bench, ended: threading.Event) -> None:
    child = bench.child()
    bench.slots.leave()
    until(lambda: bench.sql("SELECT queues FROM task_worker") == [])
    assert not child.shutdown.due
    assert not ended.is_set()


@pytest.mark.test_all
@pytest.mark.parametrize("once", [False, True], ids=["collected", "at_most_once"])
def test_a_child_that_stops_does_not_wait_for_a_database_for_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, once: bool
) -> None:
    monkeypatch.setattr("tasks_app.runtime.execution.settler.LAST_PATIENCE_S", 0.3)
    with bench.proxy() as (proxy, url):

        @bench.handler(at_most_once=once)
        def h(ctx: Any) -> None:
            proxy.refusing = True
            proxy.cut()
            bench.slots.drain()

        task_id = bench.create()
        child, thread = carried_out(bench, [task_id], url=url)

        thread.join(20)
        child.stop()

        assert not thread.is_alive()
    assert bench.state(task_id) == "RUNNING"


def test_the_end_comes_although_the_database_does_not_answer(
    bench: Bench, ended: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks_app.runtime.worker.shutdown.LONGEST_LEAVE_S", 0.3)
    held = running(bench)
    stuck, go_on = threading.Event(), bench.event()

    def write(connection: Any) -> None:
        connection.execute(text("SELECT 1"))
        stuck.set()
        go_on.wait(20)

    bench.slots.leave()
    held.child.inflight.write_later(write)

    assert ended.wait(10)
    go_on.set()
