"""Work without a broker: reader and runners, and when a drain ends."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from tasks_app.domain.creation import NewTask
from tasks_app.domain.durations import MIB
from tasks_app.domain.flow_control.limits import GateKind, Limit
from tasks_app.pool.dispatch.notifications import notify
from tasks_app.pool.flow_control.order_and_limits import set_limit
from tasks_app.runtime.api.groups import create_group
from tasks_app.runtime.execution import in_flight
from tasks_app.runtime.worker import standalone
from tasks_app.runtime.worker.standalone import RecycleLimits, run_work
from tests.clock import until
from tests.factory import claimed_task
from tests.runtime.bench import Bench
from tests.runtime.notify.conftest import LISTENERS, until_quiet

pytestmark = pytest.mark.timeout(60, method="thread")  # limits in handlers use the alarm


@pytest.mark.test_all
def test_a_drain_ends_when_nothing_is_due(bench: Bench) -> None:
    bench.succeeding()
    due = [bench.create() for _ in range(25)]
    later = bench.create(delay="1h")
    unknown = bench.run_one("nobody.knows")
    assert bench.states(due) == ["SUCCEEDED"] * 25
    assert bench.states([later, unknown]) == ["PENDING", "PENDING"]


def test_a_drain_runs_what_its_own_tasks_create(bench: Bench) -> None:
    from tasks_app import create_task

    @bench.handler()
    def h(ctx: Any, payload: dict) -> None:
        if payload["left"]:
            create_task(ctx.session, "t", {"left": payload["left"] - 1})

    bench.run_one(payload={"left": 5})
    assert bench.sql("SELECT count(*) FROM task_completed") == 6


def test_a_drain_runs_what_it_has_rescued(bench: Bench) -> None:
    """Which is due again only after a random distance, here of up to a second."""
    bench.succeeding()
    with bench.engine.begin() as connection:
        vanished = [
            int(claimed_task(connection, name="t", lease=timedelta(0)).task_id) for _ in range(9)
        ]
    bench.drain(lease=0.5)
    assert bench.states(vanished) == ["SUCCEEDED"] * 9


def test_a_drain_waits_for_what_it_gave_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that has to run alone is turned away while another one runs on and on."""
    monkeypatch.setattr(in_flight, "EXCLUSIVE_WAIT", timedelta(seconds=0.5))
    bench.succeeding()
    crashed = "UPDATE task_pending SET attempt = 1, crashes = 1 WHERE id = :id"
    away = "SELECT state = 'PENDING' AND scan_at > now() FROM task_pending WHERE id = :id"

    @bench.handler("slow")
    async def slow(ctx: Any) -> None:
        await asyncio.to_thread(until, lambda: bench.sql(away, id=suspect))

    bench.create("slow")
    suspect = bench.create()
    bench.sql(crashed, id=suspect)

    bench.drain(give_back_after=0.1)

    assert bench.sql("SELECT count(*) FROM task_completed") == 2


def test_tasks_run_in_order_of_priority_then_age(bench: Bench) -> None:
    bench.succeeding()
    low, normal, high, first = (
        bench.create(priority=9), bench.create(), bench.create(priority=0),
        bench.create(priority=0, delay="0s"),
    )  # fmt: skip
    bench.drain()
    assert bench.runs == [high, first, normal, low]


def test_a_drain_sweeps_and_parks(bench: Bench) -> None:
    bench.succeeding()
    disabled = bench.create(enabled=False)
    unknown = bench.run_one("nobody.knows")
    assert bench.states([disabled, unknown]) == ["SKIPPED", "PENDING"]
    assert bench.task(unknown).parked == (
        "no live worker of this queue has a handler named nobody.knows"
    )


def test_who_looks_for_due_tasks_leaves_its_mark(bench: Bench) -> None:
    bench.succeeding()
    unmarked = bench.sql("SELECT count(*) FROM task_lease WHERE name = 'scan'")
    work = bench.work()
    work.tidy()
    assert unmarked == 0
    holder = bench.sql("SELECT holder FROM task_lease WHERE name = 'scan' AND done_at IS NOT NULL")
    assert holder == f"work {work.child.identity.owner}"


@pytest.mark.test_all
def test_a_row_runs_when_it_is_due_not_an_interval_later(bench: Bench) -> None:
    bench.succeeding()
    task_id = bench.create(delay="300ms")
    work = bench.work(scan_interval=30)
    bench.beside(work.run)
    until(lambda: bench.state(task_id) == "SUCCEEDED", 10)
    late = "SELECT started_at - due_at < interval '1s' FROM task_completed WHERE id = :id"
    assert bench.sql(late, id=task_id)


def test_no_nap_passes_over_what_became_due_after_the_claim(bench: Bench) -> None:
    """Interleaving: the claim came too early for it, and the look ahead too late."""
    bench.succeeding()
    work = bench.work(scan_interval=30)
    work.tidy()
    assert work.claim() == 0
    bench.create()
    work._claimed_at = time.monotonic()  # as if the look were that much longer on its way

    nap = bench.beside(work.nap)
    nap.join(10)

    assert not nap.is_alive()
    assert work.claim() == 1


@pytest.mark.test_all
def test_a_notice_ends_the_nap(bench: Bench) -> None:
    bench.succeeding()
    bench.beside(bench.work(scan_interval=30).run)
    until(lambda: bench.sql(LISTENERS))
    for _ in range(3):
        until_quiet(bench)
        task_id = bench.create()
        bench.do(notify, "default")
        until(lambda task=task_id: bench.state(task) == "SUCCEEDED")


def test_a_child_that_is_woken_in_vain_rests(bench: Bench) -> None:
    bench.succeeding()
    work = bench.work()
    rests = []
    for queues in (set(), {"other"}, {"default"}, {"default", "other"}):
        work.notice(queues)
        assert work.claim() == 0
        rests.append(work._pause_s)
        work._pause_s = 0.0
    assert rests[:2] == [0, 0]  # one slow look is no sign
    assert all(0 < rest <= 0.1 for rest in rests[2:])


def test_a_child_that_has_just_got_a_task_does_not_rest(bench: Bench) -> None:
    bench.succeeding()
    work = bench.work()
    for _ in range(2):
        work.notice({"default"})
        assert work.claim() == 0
    bench.create()
    assert work.claim() == 1
    work._pause_s = 0.0

    work.notice({"default"})  # of the task that is claimed already
    assert work.claim() == 0

    assert work._pause_s == 0


@pytest.mark.test_all
def test_async_handlers_run_in_every_thread(bench: Bench) -> None:
    @bench.handler()
    async def h(ctx: Any) -> int:
        from sqlalchemy import text

        return (await ctx.session.execute(text("SELECT 1"))).scalar_one()

    ids = [bench.create() for _ in range(20)]
    bench.drain(concurrency=3)
    assert [bench.task(i).result for i in ids] == [1] * 20


def test_an_exit_in_a_runner_thread_does_not_end_the_runner(bench: Bench) -> None:
    @bench.handler(retry="0s,0s")
    def h(ctx: Any) -> None:
        raise SystemExit(1)

    ids = [bench.create() for _ in range(12)]
    bench.drain(concurrency=3)
    assert bench.states(ids) == ["FAILED"] * 12


@pytest.mark.test_all
def test_a_drain_does_not_take_silence_for_emptiness(bench: Bench) -> None:
    """Interleaving: the database goes away just when the last look would find the rest."""
    bench.succeeding()
    with bench.proxy() as (proxy, url):
        proxy.refusing = True
        work = bench.work(url=url)
        ids = [bench.create() for _ in range(3)]
        thread = bench.beside(lambda: work.run(drain=True))
        refused = proxy.refused
        until(lambda: proxy.refused > refused + 3)

        assert thread.is_alive()
        proxy.refusing = False
        thread.join(20)

        assert not thread.is_alive()
        assert bench.states(ids) == ["SUCCEEDED"] * 3


def test_work_stops_after_the_running_task_and_gives_the_rest_back(bench: Bench) -> None:
    started, go_on = threading.Event(), bench.event()

    @bench.handler()
    def h(ctx: Any) -> None:
        started.set()
        go_on.wait(20)

    ids = [bench.create() for _ in range(5)]
    work = bench.work()
    thread = bench.beside(work.run)
    assert started.wait(10)

    work.child.inflight.stop()
    go_on.set()
    thread.join(10)
    bench.children[-1].stop()

    assert sorted(bench.states(ids)) == ["PENDING"] * 4 + ["SUCCEEDED"]


@pytest.mark.test_all
def test_two_workers_share_a_backlog_without_doing_anything_twice(bench: Bench) -> None:
    bench.handler()(lambda ctx: bench.runs.append(ctx.task_id))
    ids = [bench.create() for _ in range(300)]
    workers = [bench.work(concurrency=2) for _ in range(2)]
    began = time.monotonic()
    for thread in [bench.beside(lambda w=w: w.run(drain=True)) for w in workers]:
        thread.join(30)
    assert sorted(bench.runs) == ids
    assert time.monotonic() - began < 30


@pytest.mark.test_all
@pytest.mark.parametrize(
    "options", [{"order_key": "k"}, {"limit_key": "l"}, {"order_key": "k", "limit_key": "l"}]
)
def test_who_waits_behind_a_run_starts_at_its_end(bench: Bench, options: dict[str, Any]) -> None:
    bench.succeeding()
    bench.do(set_limit, Limit(GateKind.KEY, "l", 1))
    ids = [bench.create(**options) for _ in range(20)]
    bench.beside(bench.work(concurrency=4, scan_interval=30).run)
    until(lambda: bench.states(ids) == ["SUCCEEDED"] * 20, 10)


@pytest.mark.test_all
def test_a_retry_starts_when_it_is_due_not_at_the_next_scan(bench: Bench) -> None:
    @bench.handler(retry="50ms, 50ms, 50ms, 50ms, 50ms")
    def fails(ctx: Any) -> None:
        if ctx.failures < 5:
            raise LookupError

    ids = [bench.create() for _ in range(3)]
    bench.beside(bench.work(concurrency=4, scan_interval=30).run)
    until(lambda: bench.states(ids) == ["SUCCEEDED"] * 3, 10)


def test_a_callback_starts_when_its_group_ends_not_at_the_next_scan(bench: Bench) -> None:
    bench.succeeding()
    bench.succeeding("then")
    bench.do(create_group, [NewTask("t"), NewTask("t")], then=NewTask("then"))
    bench.beside(bench.work(concurrency=4, scan_interval=30).run)
    done = "SELECT count(*) FROM task_completed WHERE state = 'SUCCEEDED'"
    until(lambda: bench.sql(done) == 3, 10)


def test_a_child_takes_no_more_tasks_than_its_limit_and_ends_those(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.succeeding()
    ids = [bench.create() for _ in range(7)]
    given = {"registry": bench.registry, "slots": bench.slots, "drain": True}
    with caplog.at_level("INFO"):
        ended = [
            run_work(bench.settings(), limits=RecycleLimits(tasks=3), **given) for _ in range(3)
        ]
    assert ended == [True, True, False]
    assert sorted(bench.runs) == sorted(ids)
    assert {bench.task(task_id).attempt for task_id in ids} == {1}
    assert caplog.text.count("ends after 3 tasks (--max-tasks)") == 2


def test_memory_counts_between_tasks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a limit that is too low does not keep a child from its first task."""
    monkeypatch.setattr(standalone, "resident_bytes", lambda: 600 * MIB)
    limits = RecycleLimits(memory=512 * MIB)
    assert limits.passed(0) == ""
    assert limits.passed(1) == "1 task, with 600 MB in memory (--max-memory)"
    assert RecycleLimits(memory=700 * MIB).passed(1) == ""


def test_the_parent_sees_who_retires_before_it_ends(bench: Bench) -> None:
    """Its successor starts while its last tasks run."""
    seen = []

    @bench.handler()
    def h(ctx: Any) -> None:
        until(lambda: seen or bench.slots.retiring())
        seen.append(bench.slots.retiring())

    bench.create()
    bench.create()
    run_work(
        bench.settings(),
        registry=bench.registry,
        slots=bench.slots,
        threads=2,
        drain=True,
        limits=RecycleLimits(tasks=2),
    )
    assert os.getpid() in seen[-1]
    assert bench.slots.retiring() == set()
