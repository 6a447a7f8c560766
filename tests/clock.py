"""The database's clock in tests, and waiting until something is so."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar


class Clock:
    """Stands still unless it is told; by seconds, as ``time.monotonic``."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


T = TypeVar("T")
POLL_S = 0.01
_NEVER = threading.Event()


def until(condition: Callable[[], T], timeout_s: float = 10.0, what: str = "it") -> T:
    """Return the first true answer of ``condition``.

    Raises:
        AssertionError: there was none within ``timeout_s``.
    """
    ends = time.monotonic() + timeout_s
    while not (answer := condition()):
        if time.monotonic() > ends:
            raise AssertionError(f"{what} did not happen within {timeout_s:g} s (last: {answer!r})")
        _NEVER.wait(POLL_S)
    return answer


async def eventually(condition: Callable[[], bool], patience_s: float = 10.0) -> None:
    await asyncio.to_thread(until, condition, patience_s)
