"""Two services on one queue: who does not know a task leaves it to those who do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tasks_app.domain.tasks.records import TaskId
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.api.queues import pause_queue
from tasks_app.runtime.execution.claims import PASS_ON_AFTER_S
from tests.runtime.bench import QUEUE, Bench
from tests.runtime.hints.ear import Ear, told
from tests.waiting import until


def lives(bench: Bench, *handlers: str, queues: Sequence[str] = (QUEUE,)) -> None:
    """Let another service's child live."""
    with bench.engine.begin() as connection:
        heartbeats.write_heartbeat(
            connection, owner="theirs", node="n", queues=queues, handlers=handlers
        )


@pytest.fixture
def theirs(bench: Bench) -> TaskId:
    bench.succeeding("ours")
    return bench.create("theirs")


def test_what_only_others_know_is_passed_on_and_ours_is_run(
    bench: Bench,
    ear: Ear,
    theirs: TaskId,
) -> None:
    lives(bench, "theirs")
    ours = bench.create("ours")

    bench.execute([theirs, ours])

    assert bench.states([theirs, ours]) == ["PENDING", "SUCCEEDED"]
    assert told(ear) == [theirs]


def test_what_nobody_on_the_queue_knows_stays_with_the_scan(
    bench: Bench,
    ear: Ear,
    theirs: TaskId,
) -> None:
    lives(bench, "theirs", queues=["elsewhere"])

    bench.execute([theirs])

    assert told(ear) == []


def test_what_may_not_run_is_not_passed_on(
    bench: Bench,
    ear: Ear,
    theirs: TaskId,
) -> None:
    lives(bench, "theirs")
    later = bench.create("theirs", delay="1h")
    with bench.engine.begin() as connection:
        pause_queue(connection, QUEUE, "a test")

    bench.execute([theirs, later])

    assert told(ear) == []


@pytest.mark.test_all
def test_what_comes_back_again_and_again_is_left_to_the_scan(
    bench: Bench,
    ear: Ear,
    theirs: TaskId,
) -> None:
    lives(bench, "theirs")
    child = bench.child()

    for _ in range(len(PASS_ON_AFTER_S) + 2):
        child.execute([theirs])

    until(lambda: told(ear) == [theirs] * len(PASS_ON_AFTER_S))


def test_a_worker_without_a_broker_parks_only_what_nobody_knows(
    bench: Bench, theirs: TaskId
) -> None:
    lives(bench, "theirs")
    nobodys = bench.create("nobodys")

    bench.drain()

    assert bench.task(theirs).parked is None
    assert bench.task(nobodys).parked is not None
