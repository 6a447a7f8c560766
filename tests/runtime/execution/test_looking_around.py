"""A child that gets hints and stale messages alone: it looks by itself for what none told of."""

from __future__ import annotations

import pytest

from tasks_app.runtime.execution import executor
from tests.runtime.bench import Bench


def test_it_takes_the_first_now_and_then(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "LOOK_AROUND_EVERY_S", 3600.0)
    bench.succeeding()
    child = bench.child(claim_size=1)
    by_sql = [bench.create(priority=0) for _ in range(3)]
    hinted = [bench.create() for _ in range(3)]
    for task_id in hinted:
        child.execute([task_id], queue="default")
    assert set(bench.states(hinted)) == {"SUCCEEDED"}
    assert bench.states(by_sql) == ["SUCCEEDED", "PENDING", "PENDING"]


@pytest.mark.parametrize(
    ("wake", "queue"), [(True, "default"), (False, "theirs"), (False, None)],
    ids=["the scan has room", "a forged queue", "an unknown queue"],
)  # fmt: skip
def test_it_does_not(bench: Bench, wake: bool, queue: str | None) -> None:
    bench.succeeding()
    child = bench.child()
    by_sql, told = bench.create(), bench.create()
    theirs = bench.create(queue="theirs")
    child.execute([told], wake=wake, queue=queue)
    assert bench.states([told, by_sql, theirs]) == ["SUCCEEDED", "PENDING", "PENDING"]


def test_messages_whose_tasks_are_done_keep_nobody_waiting(bench: Bench) -> None:
    """Copies of what the scan sent long ago leave it no room in the broker, as hints do."""
    bench.succeeding()
    child = bench.child()
    done = bench.create()
    child.execute([done], wake=True)
    waiting = bench.create()
    child.execute([done], wake=True, queue="default")
    assert bench.states([done, waiting]) == ["SUCCEEDED", "SUCCEEDED"]


def test_what_the_scan_sends_of_another_queue_does_not_count(bench: Bench) -> None:
    bench.succeeding()
    child = bench.child()
    by_sql, hinted = bench.create(), bench.create()
    theirs = bench.create(queue="theirs")
    child.executor.execute([theirs], wake=True, queue="theirs")
    child.executor.execute([hinted], queue="default")
    assert set(bench.states([theirs, hinted, by_sql])) == {"SUCCEEDED"}
