"""Nothing begins when its lease may be over: others may have declared it dead (P5, P6)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tasks_app import Notice
from tasks_app.runtime.hooks import HOOKS, NoticeKind
from tasks_app.runtime.leader.rescuer import Rescuer
from tasks_app.runtime.worker.child import Child
from tests.clock import until
from tests.runtime.bench import Bench

pytestmark = pytest.mark.test_all

LEASE_S = 1.0


def claimed(bench: Bench, name: str, **options: Any) -> tuple[Child, int]:
    """Return a child that has claimed a task and not begun it, as if it was stopped there."""
    child = bench.child(lease=LEASE_S, **options)
    task_id = bench.create(name)
    assert child.executor.fetcher.claim([task_id])
    return child, task_id


def declare(bench: Bench, *, is_async: bool = False) -> None:
    """Declare ``t``, and ``once``, which may run once."""

    async def aside(ctx: Any) -> None:
        bench.runs.append(ctx.attempt)

    def plain(ctx: Any) -> None:
        bench.runs.append(ctx.attempt)

    for name in ("t", "once"):
        function = aside if is_async else plain
        bench.handler(name, at_most_once=name == "once")(function)


def run_what_waits(child: Child) -> None:
    """Go on."""
    child.executor.run_waiting()
    until(lambda: not child.executor.async_pool.busy)


ASYNC = pytest.mark.parametrize("is_async", [False, True])


@ASYNC
def test_what_was_declared_unknown_does_not_begin_afterwards(bench: Bench, is_async: bool) -> None:
    """Interleaving: claim; the process is stopped; rescue; the process goes on."""
    declare(bench, is_async=is_async)
    child, task_id = claimed(bench, "once", start=False)
    rescuer = Rescuer(bench.settings(lease=LEASE_S), child.database)
    until(rescuer.run_once)
    run_what_waits(child)
    assert bench.runs == []
    assert bench.error(task_id).startswith("outcome unknown: The worker vanished")


@ASYNC
@pytest.mark.parametrize("name", ["t", "once"])
def test_what_nobody_rescued_runs_again_uncharged(bench: Bench, name: str, is_async: bool) -> None:
    declare(bench, is_async=is_async)
    child, task_id = claimed(bench, name, start=False)
    over = time.monotonic() + LEASE_S
    until(lambda: time.monotonic() > over)

    run_what_waits(child)
    child.start()
    until(lambda: child.inflight.empty)
    task = bench.task(task_id)
    assert (task.state, task.failures, task.crashes, bench.runs) == ("PENDING", 0, 0, [])
    bench.sql("UPDATE task_pending SET due_at = now(), scan_at = now()")
    bench.drain()

    assert (bench.state(task_id), bench.runs) == ("SUCCEEDED", [2])


def test_a_claim_counts_from_when_it_was_sent(bench: Bench) -> None:
    """Interleaving: claim; the process is stopped before it puts the task in flight."""
    declare(bench)
    child = bench.child(lease=LEASE_S, start=False)
    task_id = bench.create("once")
    rescuer = Rescuer(bench.settings(lease=LEASE_S), child.database)

    def stop(notice: Notice) -> None:
        if notice.kind is NoticeKind.RECEIVED:
            until(rescuer.run_once)

    HOOKS.subscribe(stop)
    bench.at_end(lambda: HOOKS.unsubscribe(stop))

    child.execute([task_id])

    assert bench.runs == []
    assert bench.error(task_id).startswith("outcome unknown: The worker vanished")


def test_who_renews_may_wait_for_longer_than_a_lease(bench: Bench) -> None:
    declare(bench)
    child, task_id = claimed(bench, "once")
    later = time.monotonic() + 2 * LEASE_S
    until(lambda: time.monotonic() > later)
    run_what_waits(child)
    assert (bench.state(task_id), bench.runs) == ("SUCCEEDED", [1])
