"""What signals mean to ``tasks-app work``, parent and child alike."""

from __future__ import annotations

import signal
from types import FrameType

from tasks_app.runtime.slot import SlotFile


def heed_signals(slots: SlotFile) -> None:
    """SIGTERM and SIGINT drain; a second one of them, or SIGQUIT, lets go of what runs.

    The stage in the slot file is all that is written: a signal handler must take no lock. Each
    process counts for itself, because a signal to the whole group reaches both.
    """
    asked: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        if number == signal.SIGQUIT or len(asked) > 1:
            slots.leave()
        else:
            slots.drain()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, stop)
