"""The hinter: the one thread of a process that tells the broker what was committed.

Whoever offers it ids never waits for it. It publishes at once; what comes while it sends, or while
many were sent just now, goes out together. When the broker fails or has enough, it drops hints: the
scan finds the tasks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty
from typing import NamedTuple

from tasks_app.domain.logs import quiet_logger
from tasks_app.runtime.due_queue import DueQueue
from tasks_app.runtime.publisher import HintPublisher

log = quiet_logger(__name__)

WINDOW_S = 0.005
"""Between two rounds, in the long run: more than 200 messages a second hinder those who work."""
BURST = 8
"""Rounds that need not keep that distance, after a quiet time as long as they would take."""
MOST_IDS = 500
"""Per round; a message holds no more."""
MOST_WAITING = 10_000
"""Hints that wait while the broker is slow: about one megabyte. More are dropped."""
DEEP = 32
"""Messages in a queue from which on a hint helps nobody: the scan fills it in better order."""
LOOK_EVERY = 16
"""Messages between two looks at a queue's depth: so many may this process put on top."""
DEEP_SILENCE_S = 1.0
"""How long a deep queue gets no hints: the scan comes as often."""
SILENCE_S, LONGEST_SILENCE_S = 2.0, 60.0
"""How long a broker that failed gets no hints; doubles with each failure."""


class Hint(NamedTuple):
    """One committed task."""

    queue: str
    task_id: int
    at: float = 0.0
    """Not before this instant of the monotonic clock."""


@dataclass(slots=True)
class Counts:
    """What became of this process's hints. Producers count without a lock: nearly exact."""

    sent: int = 0
    dropped: int = 0
    """Too many waited already."""
    failed: int = 0
    """The broker did not take them, or perhaps."""
    silent: int = 0
    """Not tried: the broker had just failed, or the queue was deep or did not exist."""


class Hinter:
    """Takes hints of all threads, sends them from one, which starts with the first hint."""

    def __init__(self, connect: Callable[[], HintPublisher]) -> None:
        self.counts = Counts()
        self._connect = connect
        self._publisher: HintPublisher | None = None
        self._waiting: DueQueue[Hint | threading.Event] = DueQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._works = False
        self._patience_s = SILENCE_S
        self._silent_until = 0.0
        self._deep_until: dict[str, float] = {}
        self._unlooked: dict[str, int] = {}

    def reliable(self, queue: str) -> bool:
        """Whether a hint for the queue will most likely go out: the last one did."""
        return self._works and not self._silent(queue) and len(self._waiting) < MOST_WAITING

    def offer(self, hints: Iterable[Hint]) -> None:
        """Take hints to be sent, or drop them; returns at once."""
        idle = not self._waiting
        for hint in hints:
            if self._silent(hint.queue):
                self.counts.silent += 1
            elif len(self._waiting) >= MOST_WAITING:
                self.counts.dropped += 1
            else:
                self._waiting.put(hint, hint.at)
        if self._thread is None and self._waiting:
            self._start()
        if idle and self._waiting:
            time.sleep(0)  # lets the thread begin: else it waits until this one waits for something

    def flush(self, patience_s: float) -> None:
        """Wait until what was offered is sent or dropped, at most so long; silent ones never."""
        if self._thread is None or self._waits_for_broker():
            return
        sent = threading.Event()
        self._waiting.put(sent)
        sent.wait(patience_s)

    def _start(self) -> None:
        if not self._starting.acquire(blocking=False):
            return  # another thread is at it
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="tasks_app hints", daemon=True)
                thread.start()
                self._thread = thread
        finally:
            self._starting.release()

    def _silent(self, queue: str) -> bool:
        return self._waits_for_broker() or time.monotonic() < self._deep_until.get(queue, 0.0)

    def _waits_for_broker(self) -> bool:
        return time.monotonic() < self._silent_until

    # -- in the thread

    def _run(self) -> None:
        booked_until = 0.0
        while True:
            first = self._waiting.get()
            now = time.monotonic()
            if booked_until > now + BURST * WINDOW_S:
                time.sleep(booked_until - now - BURST * WINDOW_S)
            booked_until = max(booked_until, time.monotonic()) + WINDOW_S
            self._round(first)

    def _round(self, first: Hint | threading.Event) -> None:
        """Send what waits, a message for each queue; then tell those who wait for it."""
        messages: dict[str, list[int]] = {}
        flushed: list[threading.Event] = []
        for item in (first, *self._more()):
            if isinstance(item, Hint):
                messages.setdefault(item.queue, []).append(item.task_id)
            else:
                flushed.append(item)
        for queue, ids in messages.items():
            self._send(queue, ids)
        for event in flushed:
            event.set()

    def _more(self) -> Iterator[Hint | threading.Event]:
        with suppress(Empty):
            for _ in range(MOST_IDS - 1):
                yield self._waiting.get_due()

    def _send(self, queue: str, ids: list[int]) -> None:
        if self._silent(queue):
            self.counts.silent += len(ids)
            return
        try:
            if self._publisher is None:
                self._publisher = self._connect()
            if queue not in self._unlooked and self._is_deep(queue, self._publisher):
                self.counts.silent += len(ids)
                return
            self._publisher.publish(queue, ids)
        except BaseException as error:  # celeryconfig.py is imported in here, and may even exit
            self.counts.failed += len(ids)
            self._fall_silent(error)
            return
        self.counts.sent += len(ids)
        self._works = True
        self._patience_s = SILENCE_S
        self._unlooked[queue] += 1
        if self._unlooked[queue] >= LOOK_EVERY:  # behind the message: nobody waits for the answer
            try:
                self._is_deep(queue, self._publisher)
            except Exception as error:
                self._fall_silent(error)

    def _is_deep(self, queue: str, publisher: HintPublisher) -> bool:
        """Look, and leave a deep queue alone; what other processes add is bounded likewise."""
        depth = publisher.depth(queue)
        if depth is None or depth >= DEEP:
            self._unlooked.pop(queue, None)
            self._deep_until[queue] = time.monotonic() + DEEP_SILENCE_S
            return True
        self._unlooked[queue] = 0
        return False

    def _fall_silent(self, error: BaseException) -> None:
        if self._patience_s == SILENCE_S:  # once per outage
            log.warning(
                "the broker takes no hints (%s): tasks start at the next scan until it does",
                type(error).__name__,
            )
        self._works = False
        self._silent_until = time.monotonic() + self._patience_s
        self._patience_s = min(2 * self._patience_s, LONGEST_SILENCE_S)
