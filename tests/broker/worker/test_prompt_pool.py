"""A prompt pool: an idle child gets its message within the round of the loop that read it.

A dead one is replaced although its pipe broke before it had ended. A worker that stops reads the
result of what it wrote to a child, however late it was told.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from typing import Any
from unittest.mock import Mock

import pytest
from billiard.pool import CLOSE, RUN, ApplyResult
from celery.concurrency.asynpool import AsynPool
from celery.worker import state
from kombu.asynchronous import Hub

from tasks_app.broker.worker_pool import REAP_TIMES, PromptPool
from tests.waiting import until

IDLE, BUSY, WRITTEN_TO = 3, 4, 5


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> PromptPool:
    """One that has three children; what is put into it only waits."""

    def made(self: Any, _hub: Any) -> None:
        self._quick_put = self.outbound_buffer.append

    monkeypatch.setattr(AsynPool, "_create_write_handlers", made)
    pool = PromptPool.__new__(PromptPool)
    pool.outbound_buffer = []
    pool._all_inqueues = {IDLE, BUSY, WRITTEN_TO}
    pool._busy_workers, pool._active_writes = {BUSY}, {WRITTEN_TO}
    return pool


@pytest.fixture
def write(pool: PromptPool) -> Mock:
    hub = Mock()
    pool._create_write_handlers(hub)
    return hub.consolidate_callback


def test_an_idle_child_gets_it_at_once(pool: PromptPool, write: Mock) -> None:
    write.side_effect = lambda _idle: pool.outbound_buffer.pop()

    pool._quick_put("job")

    write.assert_called_once_with([IDLE])
    assert pool.outbound_buffer == []


def test_it_waits_while_none_is_idle(pool: PromptPool, write: Mock) -> None:
    pool._busy_workers.add(IDLE)

    pool._quick_put("job")

    write.assert_not_called()
    assert pool.outbound_buffer == ["job"]


@pytest.mark.parametrize("flag", ["should_stop", "should_terminate"])
@pytest.mark.parametrize("status", [0, 1, True])
def test_it_waits_when_the_worker_is_about_to_stop(
    pool: PromptPool, write: Mock, monkeypatch: pytest.MonkeyPatch, flag: str, status: Any
) -> None:
    monkeypatch.setattr(state, flag, status)

    pool._quick_put("job")

    write.assert_not_called()


@pytest.fixture
def jobs(pool: PromptPool) -> dict[str, ApplyResult]:
    """One that waits here, one that was written to a child, and one that a child accepted."""
    pool._cache, pool.synack = {}, False
    pool.outbound_buffer, pool._active_writers = deque(), set()
    pool.maintain_pool = lambda: None
    jobs = {name: ApplyResult(pool._cache, None) for name in ("waits", "written", "accepted")}
    jobs["written"]._write_to = jobs["accepted"]._write_to = Mock(inqW_fd=BUSY)
    jobs["accepted"]._ack(0, 0.0, 4711, None)
    return jobs


def test_a_pool_that_ends_keeps_what_it_wrote_to_a_child(
    pool: PromptPool, jobs: dict[str, ApplyResult]
) -> None:
    pool._state = CLOSE

    pool.flush()

    assert {jobs["written"], jobs["accepted"]} <= set(pool._cache.values())


def test_after_a_lost_connection_it_forgets_what_the_broker_sends_again(
    pool: PromptPool, jobs: dict[str, ApplyResult]
) -> None:
    pool._state = RUN

    pool.flush()

    assert jobs["written"] not in pool._cache.values()


@pytest.fixture
def reaped(pool: PromptPool, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often was looked for the dead, in a pool that takes them out as Celery's does."""
    looks: list[int] = []

    def look() -> None:
        looks.append(len(pool._pool))
        pool._pool = [process for process in pool._pool if process.poll() is None]

    monkeypatch.setattr(AsynPool, "_event_process_exit", lambda *_: look())
    pool.maintain_pool = look
    return looks


@pytest.mark.test_all
def test_a_child_whose_pipe_broke_before_it_ended_is_replaced(
    pool: PromptPool, reaped: list[int]
) -> None:
    ends, says = os.pipe()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=ends) as child:
        pool._pool, hub = [child], Hub()
        pool._event_process_exit(hub, child)
        hub.fire_timers()
        assert pool._pool == [child]
        os.write(says, b"\n")

        until(lambda: hub.fire_timers() and not pool._pool)

    hub.close()
    os.close(ends)
    os.close(says)


def test_a_child_that_lives_on_without_its_pipe_is_left_to_celery(
    pool: PromptPool, reaped: list[int]
) -> None:
    child, hub = Mock(), Mock()
    child.poll.return_value = None
    pool._pool = [child]
    hub.call_later = lambda _after, look, *arguments: look(*arguments)

    pool._event_process_exit(hub, child)

    assert len(reaped) == 1 + REAP_TIMES
