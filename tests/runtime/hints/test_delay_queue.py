"""The due queue: items come out when their time has come, and not before."""

from __future__ import annotations

import threading
import time
from queue import Empty

import pytest

from tasks_app.runtime.hint_sender import DelayQueue

pytestmark = pytest.mark.test_all


def test_what_may_come_out_does_so_in_the_order_of_its_instants() -> None:
    queue: DelayQueue[str] = DelayQueue()
    now = time.monotonic()
    queue.put("third", now + 0.10)
    queue.put("second", now + 0.05)
    queue.put("first")

    assert [queue.get() for _ in range(3)] == ["first", "second", "third"]
    assert time.monotonic() >= now + 0.10
    assert len(queue) == 0


def test_nothing_comes_out_early() -> None:
    queue: DelayQueue[str] = DelayQueue()
    queue.put("later", time.monotonic() + 3600)

    with pytest.raises(Empty):
        queue.get(wait=False)
    assert len(queue) == 1


def test_who_waits_for_a_later_one_gets_what_comes_in_before() -> None:
    queue: DelayQueue[str] = DelayQueue()
    queue.put("later", time.monotonic() + 3600)
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(queue.get()), daemon=True)
    thread.start()

    queue.put("now")
    thread.join(10)

    assert got == ["now"]
