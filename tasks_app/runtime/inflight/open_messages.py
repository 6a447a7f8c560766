"""The messages in a child's hands: one in each thread that carries one out."""

from __future__ import annotations

import threading
import time


class OpenMessages:
    """Part of the in-flight set, under its mutex; only :attr:`gave_back` is asked without it."""

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._gave_back: set[int] = set()
        """Threads the rest of whose message went back."""
        self._idle_since = time.monotonic()

    def __len__(self) -> int:
        return len(self._threads)

    def open(self) -> None:
        self._threads.add(threading.get_ident())
        self._gave_back.discard(threading.get_ident())

    def close(self) -> None:
        self._threads.discard(threading.get_ident())
        self._idle_since = time.monotonic()

    def idle_s(self) -> float:
        return 0.0 if self._threads else time.monotonic() - self._idle_since

    @property
    def gave_back(self) -> bool:
        """Whether the rest of this thread's message went back."""
        return threading.get_ident() in self._gave_back

    def give_back(self) -> None:
        """Leave what is not claimed yet of all messages to the next scan."""
        self._gave_back |= self._threads
