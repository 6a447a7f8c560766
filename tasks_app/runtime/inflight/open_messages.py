"""The messages in a child's hands: one in each thread that carries one out."""

from __future__ import annotations

import threading
import time


class OpenMessages:
    """Part of the in-flight set, under its mutex; only :attr:`gave_back` is asked without it."""

    def __init__(self) -> None:
        self._of_thread: dict[int, int] = {}
        self._gave_back: set[int] = set()
        """Threads the rest of whose message went back."""
        self._idle_since = time.monotonic()

    def __len__(self) -> int:
        return len(self._of_thread)

    def open(self, dispatch_id: int) -> None:
        self._of_thread[threading.get_ident()] = dispatch_id
        self._gave_back.discard(threading.get_ident())

    def close(self) -> None:
        self._of_thread.pop(threading.get_ident(), None)
        self._idle_since = time.monotonic()

    def idle_s(self) -> float:
        return 0.0 if self._of_thread else time.monotonic() - self._idle_since

    @property
    def gave_back(self) -> bool:
        """Whether the rest of this thread's message went back."""
        return threading.get_ident() in self._gave_back

    def give_back(self) -> list[int]:
        """Give the rest of all back; return those that the ledger knows, each once."""
        open_ones = {t: d for t, d in self._of_thread.items() if t not in self._gave_back}
        self._gave_back.update(open_ones)
        return [dispatch_id for dispatch_id in open_ones.values() if dispatch_id]
