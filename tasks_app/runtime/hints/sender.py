"""The sender: tells broker or database what was committed, by a thread that waits for answers.

A thread that offers hints never waits. Where the channel works and is free, hints go out at once
from the thread that offers them: to wake another takes as long as to send. Hints that come while
something is under way, or just after many were sent, go out together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from queue import Empty
from typing import NamedTuple

from tasks_app.runtime.hint_sender import WINDOW_S
from tasks_app.runtime.hint_sender import HintChannel
from tasks_app.runtime.hint_sender import HintCounts
from tasks_app.runtime.hint_sender import HintMessage
from tasks_app.runtime.hints.delay_queue import DelayQueue
from tasks_app.runtime.publisher import HintPublisher

MOST_IDS = 500
"""Per round; a message holds no more."""
MOST_AT_ONCE = 100
"""Ids that the thread which offers them may send: they surely fit into the socket's buffer."""
MOST_WAITING = 10_000
"""Hints that wait while the broker is slow: about one megabyte. More are dropped."""


class Hint(NamedTuple):
    """One committed task."""

    queue: str
    task_id: int
    at: float = 0.0
    """Not before this instant of the monotonic clock."""


class HintSender:
    """Takes hints of all threads; its own thread starts with the first hint that it has to send."""

    def __init__(
        self,
        connect: Callable[[], HintPublisher],
        whom: str = "broker",
        window_s: float = WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``whom`` is for the log; ``window_s`` and ``clock`` pace the channel."""
        self.counts = HintCounts()
        self._channel = HintChannel(connect, self.counts, whom, window_s, clock)
        self._waiting: DelayQueue[Hint | threading.Event | None] = DelayQueue()
        """None: an answer is to be read. An Event: set it when all hints before it are sent."""
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def takes(self, queue: str) -> bool:
        """Whether a hint for the queue would not be dropped at once."""
        return not self._channel.silent(queue) and len(self._waiting) < MOST_WAITING

    def offer(self, hints: Iterable[Hint]) -> None:
        """Take hints to be sent, or drop them; returns at once."""
        given = list(hints)
        idle = not self._waiting
        if idle and self._start_now(given):
            return
        put = False  # CPython 3.13 hands an item to the thread that waits: the queue stays empty
        for hint in given:
            if self._channel.silent(hint.queue):
                self.counts.silent += 1
            elif len(self._waiting) >= MOST_WAITING:
                self.counts.dropped += 1
            else:
                self._waiting.put(hint, hint.at)
                put = True
        if put and self._thread is None:
            self._start()
        if put and idle:
            time.sleep(0)  # lets the thread begin: else it waits until this one waits for something

    def flush(self, patience_s: float) -> None:
        """Wait until what was offered is sent or dropped; not while the broker gets no hints."""
        if self._thread is None or self._channel.waits_for_broker():
            return
        sent = threading.Event()
        self._waiting.put(sent)
        sent.wait(patience_s)

    def _start_now(self, hints: Sequence[Hint]) -> bool:
        """Send hints from this thread, if they are due and of one queue."""
        if not 0 < len(hints) <= MOST_AT_ONCE:
            return False
        queue, now = hints[0].queue, time.monotonic()
        if any(hint.queue != queue or hint.at > now for hint in hints):
            return False
        started = self._channel.start(HintMessage(queue, [hint.task_id for hint in hints]))
        if started:
            self._waiting.put(None)
        return started

    def _start(self) -> None:
        if not self._starting.acquire(blocking=False):
            return  # another thread starts it
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="tasks_app hints", daemon=True)
                thread.start()
                self._thread = thread
        finally:
            self._starting.release()

    # -- in the thread

    def _run(self) -> None:
        while True:
            first = self._waiting.get()
            if first is None:
                self._channel.send(())
                continue
            if rest_s := self._channel.rest_s():
                time.sleep(rest_s)
            self._round(first)

    def _round(self, first: Hint | threading.Event) -> None:
        """Send what waits, one message for each queue; then wake the threads that flush."""
        messages: dict[str, list[int]] = {}
        flushed: list[threading.Event] = []
        for item in (first, *self._more()):
            if isinstance(item, Hint):
                messages.setdefault(item.queue, []).append(item.task_id)
            elif item is not None:
                flushed.append(item)
        self._channel.send(HintMessage(queue, ids) for queue, ids in messages.items())
        for event in flushed:
            event.set()

    def _more(self) -> Iterator[Hint | threading.Event | None]:
        with suppress(Empty):
            for _ in range(MOST_IDS - 1):
                yield self._waiting.get_due()
