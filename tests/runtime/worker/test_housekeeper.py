"""The housekeeper: renews, flushes, gives back, and repeats what was not answered."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text

from tasks_app import cancel_task
from tasks_app.domain.handlers.settlement import settle_return
from tasks_app.embedded.servers import Postgres
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.schema import migrate
from tests.clock import until
from tests.factory import do, some
from tests.runtime.bench import Bench
from tests.runtime.refusing import Refusals
from tests.tiers import starts_processes

LOCK = text("SELECT FROM task_pending WHERE id = :id FOR UPDATE")


class Slow:
    """A handler that runs until the test lets it go."""

    def __init__(self, bench: Bench, name: str = "slow", **options: Any) -> None:
        self.started = threading.Event()
        self.go_on = bench.event()

        @bench.handler(name, **options)
        def slow(ctx: Any) -> Any:
            self.started.set()
            assert self.go_on.wait(30)
            return "at last"


def running_elsewhere(bench: Bench, ids: list[int], **options: Any) -> threading.Thread:
    child = bench.child(**options)
    return bench.beside(child.execute, ids)


def test_a_task_may_run_longer_than_its_lease(bench: Bench) -> None:
    slow = Slow(bench)
    task_id = bench.create("slow")
    thread = running_elsewhere(bench, [task_id], lease=0.6)
    assert slow.started.wait(10)
    first = bench.task(task_id).lease_until
    until(lambda: bench.sql("SELECT now() > CAST(:at AS timestamptz)", at=first))
    assert bench.sql("SELECT lease_until > now() FROM task_pending")
    slow.go_on.set()
    thread.join(10)
    assert (bench.state(task_id), bench.task(task_id).attempt) == ("SUCCEEDED", 1)


def test_what_waits_behind_a_slow_task_goes_back_and_others_run_it(bench: Bench) -> None:
    slow = Slow(bench)
    bench.succeeding("fast")
    first = bench.create("slow")
    rest = [bench.create("fast") for _ in range(9)]
    child = bench.child(give_back_after=0.1)
    thread = bench.beside(child.execute, [first, *rest])
    assert slow.started.wait(10)

    until(lambda: bench.states(rest) == ["PENDING"] * 9)
    other = bench.child()
    other.execute(rest)

    assert bench.states(rest) == ["SUCCEEDED"] * 9
    assert [(bench.task(i).failures, bench.task(i).crashes) for i in rest] == [(0, 0)] * 9
    assert bench.state(first) == "RUNNING"
    slow.go_on.set()
    thread.join(10)
    assert bench.state(first) == "SUCCEEDED"


def test_a_locked_row_is_given_back_when_it_can_be_and_not_forgotten(bench: Bench) -> None:
    """Interleaving: a user's transaction holds a waiting row while the housekeeper gives back."""
    slow = Slow(bench)
    bench.succeeding("fast")
    first, locked, free = bench.create("slow"), bench.create("fast"), bench.create("fast")
    thread = running_elsewhere(bench, [first, locked, free], give_back_after=0.3)
    assert slow.started.wait(10)
    with bench.engine.begin() as user:
        user.execute(LOCK, {"id": locked})
        until(lambda: bench.state(free) == "PENDING")
        assert bench.state(locked) == "RUNNING"

    until(lambda: bench.state(locked) == "PENDING")

    assert bench.task(locked).crashes == 0
    slow.go_on.set()
    thread.join(10)


def test_outcomes_are_written_while_a_slow_task_runs(bench: Bench) -> None:
    """An outcome waits for company at most flush_after, whatever comes next."""
    slow = Slow(bench)
    bench.succeeding("fast")
    warm = [bench.create("fast") for _ in range(2)]  # now it is known to be fast
    fast, last = bench.create("fast"), bench.create("slow")
    thread = running_elsewhere(bench, [*warm, fast, last], flush_after=0.05)
    assert slow.started.wait(10)
    until(lambda: bench.states([*warm, fast]) == ["SUCCEEDED"] * 3, 2)
    slow.go_on.set()
    thread.join(10)


def test_an_unknown_handler_starts_only_when_earlier_outcomes_are_written(bench: Bench) -> None:
    bench.succeeding("fast")
    bench.handler("unknown")(lambda ctx: bench.runs.append(bench.states(before)))
    before = [bench.create("fast") for _ in range(3)]
    bench.execute([*before, bench.create("unknown")], flush_after=60)
    assert bench.runs[-1] == ["SUCCEEDED"] * 3


@pytest.mark.test_all
def test_one_locked_member_of_a_group_does_not_delay_the_others(bench: Bench) -> None:
    """An open cancel of one task must neither stop its neighbours nor be killed by a deadlock."""
    locked = threading.Event()

    @bench.handler()
    def h(ctx: Any) -> None:
        if ctx.task_id == ids[1]:
            user.execute(LOCK, {"id": ids[1]})
            locked.set()

    ids = [bench.create() for _ in range(5)]
    child = bench.child()
    with bench.engine.begin() as user:
        began = time.monotonic()
        child.execute(ids)
        took = time.monotonic() - began

        others = [i for i in ids if i != ids[1]]
        assert bench.states(others) == ["SUCCEEDED"] * 4
        assert bench.state(ids[1]) == "RUNNING"
        assert took < 3

    until(lambda: bench.state(ids[1]) == "SUCCEEDED")


def test_many_locked_members_do_not_keep_the_housekeeper_from_renewing(bench: Bench) -> None:
    """Interleaving: 40 outcomes are locked by an open cancel_tasks; another task's lease is due."""
    slow = Slow(bench)

    @bench.handler("fast")
    def fast(ctx: Any) -> None:
        user.execute(LOCK, {"id": ctx.task_id})

    ids = [bench.create("fast") for _ in range(40)]
    last = bench.create("slow")
    with bench.engine.begin() as user:
        thread = running_elsewhere(bench, [*ids, last], lease=1.5, claim_size=50)
        assert slow.started.wait(20)
        first = bench.task(last).lease_until

        until(lambda: bench.task(last).lease_until > first, 5)

        slow.go_on.set()
    thread.join(10)
    until(lambda: bench.states(ids) == ["SUCCEEDED"] * 40)


def test_a_running_task_hears_that_it_shall_stop_and_may_still_succeed(bench: Bench) -> None:
    @bench.handler(cancellable=False)
    def h(ctx: Any) -> str:
        bench.runs.append(ctx.cancelled)
        until(lambda: ctx.cancelled)
        return "cleaned up"

    task_id = bench.create()
    thread = running_elsewhere(bench, [task_id], lease=0.6)
    until(lambda: bench.runs)
    asked = bench.do(cancel_task, task_id)

    thread.join(10)

    assert (asked, bench.runs) == ("requested", [False])
    assert (bench.state(task_id), bench.task(task_id).result) == ("SUCCEEDED", "cleaned up")


def test_a_cancelled_task_that_raises_is_cancelled_and_not_retried(bench: Bench) -> None:
    @bench.handler(retry="0s,0s")
    def h(ctx: Any) -> None:
        bench.runs.append(1)
        until(lambda: ctx.cancelled)
        raise ValueError

    task_id = bench.create()
    thread = running_elsewhere(bench, [task_id], lease=0.6)
    until(lambda: bench.runs)
    bench.do(cancel_task, task_id)
    thread.join(10)
    until(lambda: bench.state(task_id) == "CANCELLED", 5)  # a renewal may hold its row
    assert bench.runs == [1]


def test_it_looks_four_times_a_second_while_there_is_work_and_once_without(bench: Bench) -> None:
    slow = Slow(bench)
    child = bench.child()
    housekeeper = child.housekeeper
    until(lambda: child.housekeeper.renewer.due_at)
    idle = housekeeper.next_nap_s()
    bench.beside(child.execute, [bench.create("slow")])
    assert slow.started.wait(10)
    assert (idle, housekeeper.next_nap_s() <= 0.25) == (1.0, True)


def test_progress_is_shown_before_the_next_renewal(bench: Bench) -> None:
    going_on, seen = bench.event(), bench.event()

    @bench.handler()
    def h(ctx: Any) -> None:
        assert going_on.wait(20)
        ctx.progress(0.25, "a quarter")
        ctx.report("PACKING", {"parcel": 7})
        assert seen.wait(20)

    task_id = bench.create()
    running_elsewhere(bench, [task_id], lease=60)
    until(lambda: bench.sql("SELECT count(*) FROM task_worker") == 1)
    going_on.set()

    until(lambda: "state" in (bench.sql("SELECT running -> 0 FROM task_worker") or {}))

    shown = bench.sql("SELECT running -> 0 FROM task_worker")
    assert (shown["id"], shown["fraction"], shown["note"]) == (task_id, 0.25, "a quarter")
    with bench.engine.connect() as connection:
        owner = bench.task(task_id).owner or ""
        assert heartbeats.state_of_run(connection, owner, task_id, 1) == ("PACKING", {"parcel": 7})
        assert heartbeats.state_of_run(connection, owner, task_id, 2) is None
        (worker,) = heartbeats.live_workers(connection, timedelta(minutes=1))
    assert "details" not in worker.running[0]


def test_a_child_that_stops_leaves_no_trace(bench: Bench) -> None:
    bench.succeeding()
    child = bench.child()
    until(lambda: bench.sql("SELECT count(*) FROM task_worker") == 1)
    child.stop()
    assert bench.sql("SELECT count(*) FROM task_worker") == 0
    assert bench.slots.occupied() == []


@pytest.mark.test_all
def test_a_child_that_stops_waits_a_little_for_a_row_that_somebody_holds(bench: Bench) -> None:
    """Left behind, its outcome would be lost and the task run again, as after a crash."""
    locker = bench.engine.connect()
    bench.at_end(locker.close)

    @bench.handler()
    def h(ctx: Any) -> None:
        locker.execute(LOCK, {"id": ctx.task_id})

    task_id = bench.create()
    child = bench.child()
    child.execute([task_id])

    stopping = bench.beside(child.stop)
    until(lambda: not child.housekeeper.alive)
    held = bench.state(task_id)
    locker.rollback()
    stopping.join(10)

    assert (held, bench.state(task_id)) == ("RUNNING", "SUCCEEDED")
    assert bench.slots.occupied() == []


def test_a_stopped_child_gives_back_what_it_had_not_started(bench: Bench) -> None:
    bench.handler()(lambda ctx: child.inflight.stop())
    ids = [bench.create() for _ in range(5)]
    child = bench.child()
    child.execute(ids)
    child.stop()
    assert bench.states(ids) == ["SUCCEEDED"] + ["PENDING"] * 4
    assert [bench.task(i).failures for i in ids] == [0] * 5


@pytest.mark.test_all
def test_a_claim_whose_reply_is_lost_is_given_back_uncharged(bench: Bench) -> None:
    bench.succeeding()
    task_id = bench.create()
    with bench.proxy() as (proxy, url):
        child = bench.child(url=url, start=False)
        proxy.lose_reply_to(b"UPDATE task_pending p\n    SET state = 'RUNNING'")

        child.execute([task_id])
        child.start()
        until(lambda: child.inflight.empty)
        child.stop()

    assert proxy.lost == 1
    task = bench.task(task_id)
    assert (task.state, task.failures, task.crashes, bench.runs) == ("PENDING", 0, 0, [])


@pytest.fixture
@starts_processes
def own_database(bench: Bench, tmp_path: Path) -> Iterator[Postgres]:
    """A PostgreSQL of the test's own, so that it can be away; the bench looks at it, too."""
    with Postgres(tmp_path / "own") as server:
        engine, shared = create_engine(server.url), (bench.engine, bench.url)
        do(engine, migrate)
        bench.engine, bench.url = engine, server.url
        yield server
        if not server.running:
            server.start()
        bench.close()
        engine.dispose()
        bench.engine, bench.url = shared


@pytest.mark.test_all
def test_an_outage_delays_outcomes_and_loses_none(bench: Bench, own_database: Postgres) -> None:
    """Its outcome and the give-back of its neighbours wait for the database."""
    slow = Slow(bench)
    bench.succeeding("fast")
    first, rest = bench.create("slow"), [bench.create("fast") for _ in range(3)]
    child = bench.child(give_back_after=0.5)
    thread = bench.beside(child.execute, [first, *rest])
    assert slow.started.wait(10)

    own_database.kill()
    bench.engine.dispose()
    until(child.inflight.returning, 5)
    slow.go_on.set()
    own_database.start()
    thread.join(20)

    until(lambda: bench.states(rest) == ["PENDING"] * 3)
    assert bench.state(first) == "SUCCEEDED"
    assert [bench.task(i).crashes for i in rest] == [0, 0, 0]


class Broken:
    """A duty that fails, and of which the line that says so cannot be written."""

    rounds = 0

    def __call__(self) -> None:
        self.rounds += 1
        raise MemoryError

    @property
    def __name__(self) -> str:
        raise MemoryError


def test_the_housekeeper_outlives_whatever_a_round_raises(bench: Bench) -> None:
    """A handler may have taken all memory, or broken the logs, just when the housekeeper works."""
    child, broken = bench.child(start=False), Broken()
    keeper = child.housekeeper
    keeper._duties = (broken,)
    keeper.start()
    until(lambda: broken.rounds > 2)
    keeper.stop(5)


@pytest.mark.test_all
def test_a_child_asks_a_database_that_is_away_at_most_twice_a_second(bench: Bench) -> None:
    """Housekeeper and main thread together, an outcome in hand; a hundred children are many."""

    @bench.handler()
    def h(ctx: Any) -> None:
        proxy.refusing = True
        proxy.cut()

    task_id = bench.create()
    with bench.proxy() as (proxy, url):
        child = bench.child(url=url)
        thread = bench.beside(child.execute, [task_id])
        until(lambda: proxy.refused)
        began, before = time.monotonic(), proxy.refused

        until(lambda: proxy.refused >= before + 6, 20)

        took = time.monotonic() - began
        proxy.refusing = False
        thread.join(10)
    assert 6 / took <= 2.5
    assert bench.state(task_id) == "SUCCEEDED"


def test_claim_and_settle_are_planned_before_the_first_message(bench: Bench) -> None:
    bench.succeeding()
    waits = bench.create()
    child = bench.child(start=False)
    statements: list[str] = []
    event.listen(
        child.database.engine, "before_cursor_execute",
        lambda *args: statements.append(args[2]),
    )  # fmt: skip

    child.start()
    until(lambda: sum("task_completed" in statement for statement in statements) == 2)

    claims = Counter(s for s in statements if "attempt = p.attempt + 1" in s)
    assert list(claims.values()) == [2, 2]  # the short one, and the long one
    assert bench.task(waits).attempt == 0


def test_who_was_answered_does_not_wait_any_more(bench: Bench, refusals: Refusals) -> None:
    """After a refusal outcomes rest for a while, but not when another thread's were written."""
    bench.succeeding()
    child = bench.child(start=False)
    first, second = (bench.create() for _ in range(2))
    child.executor.fetcher.claim([first, second])

    def run() -> None:
        run = some(child.inflight.start_next())
        child.inflight.collect(settle_return(run.task, None, 1, run.since))

    run()
    refusals.refuse("55P03", "settle successes", times=1)
    child.executor.settler.flush_quietly()
    child.executor.settler.flush_quietly()
    assert bench.state(first) == "RUNNING"
    child.executor.settler.flush()
    run()
    child.executor.settler.flush_quietly()

    assert bench.states([first, second]) == ["SUCCEEDED"] * 2


def test_an_error_of_ours_at_a_settle_leaves_nothing_behind(bench: Bench) -> None:
    """What is claimed would be held for ever by a child that gets no other message."""
    bench.succeeding()
    child = bench.child()
    known, errors = child.executor.settler.flush, iter([RuntimeError("ours"), RuntimeError("ours")])

    def flush() -> bool:
        if (error := next(errors, None)) is not None:
            raise error
        return known()

    child.executor.settler.flush = flush  # type: ignore[method-assign]
    ids = [bench.create() for _ in range(5)]

    child.execute(ids)

    until(lambda: child.inflight.empty, 30)
    assert set(bench.states(ids)) == {"SUCCEEDED"}
