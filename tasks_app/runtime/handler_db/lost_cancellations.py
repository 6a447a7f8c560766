"""A cancellation that psycopg 3.2 loses on Python 3.11, and with it a handler's time limit.

It waits with ``asyncio.wait_for``, which before Python 3.12 keeps a cancellation to itself if the
server's answer came in the same moment. psycopg 3.3 waits otherwise.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from tasks_app.runtime.handler_db.driver_internals import IS_PSYCOPG_3_2


class Heeding:
    """Raises at its end what was asked for within it, and did not come."""

    __slots__ = ("_before", "_task")

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task else 0

    def __exit__(self, error: object, *_: object) -> None:
        if error is None and self._task and self._task.cancelling() > self._before:
            raise asyncio.CancelledError


heeding_cancellations: Callable[[], AbstractContextManager[None]] = (
    Heeding if IS_PSYCOPG_3_2 and sys.version_info < (3, 12) else nullcontext
)
