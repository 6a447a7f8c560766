"""What signals mean to ``tasks-app work``, parent and child alike."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType

from tasks_app.runtime.inflight.inflight import InFlight
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard


def heed_signals(slots: Scoreboard) -> list[int]:
    """SIGTERM and SIGINT drain; a second one of them, or SIGQUIT, lets go of what runs.

    Returns the signals that have come, a list that grows.

    The stage in the slot file is all that is written: a signal handler must take no lock.
    """
    asked: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        if number == signal.SIGQUIT or len(asked) > 1:
            slots.leave()
        else:
            slots.drain()

    _on_each(stop)
    return asked


def heed_signals_of_child(inflight: InFlight) -> None:
    """A signal to this child asks it alone to end; one to its group also reaches the parent."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        if inflight.asked_at is None:
            inflight.asked_at = time.monotonic()

    _on_each(stop)


def _on_each(stop: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, stop)
