"""Prompt hand-over: an idle child gets its message within the round of the loop that read it."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from celery.concurrency.asynpool import AsynPool
from celery.worker import state

from tasks_app.broker.prompt import PromptPool

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
