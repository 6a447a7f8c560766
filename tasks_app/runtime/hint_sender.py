"""The channel by which hints go out: one message at a time, and none where it would not help.

When the broker, or the database, fails, or a queue has enough messages, hints are dropped for a
while: the scan finds the tasks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tasks_app.domain.errors import ConfigurationError
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.runtime.publisher import HintPublisher

log = quiet_logger(__name__)

WINDOW_S = 0.005
"""Between two rounds, in the long run: more than 200 messages a second hinder the workers."""
BURST = 8
"""Rounds that may follow each other at once after a quiet time of ``BURST * WINDOW_S``."""
DEEP = 32
"""With so many messages in a queue a hint does not help: the scan fills it in better order."""
LOOK_EVERY = 16
"""Messages between two looks at a queue's depth: this process puts at most so many on top."""
DEEP_SILENCE_S = 1.0
"""How long a deep queue gets no hints: the scan comes as often."""
SILENCE_S, LONGEST_SILENCE_S = 2.0, 60.0
"""How long a broker that failed gets no hints: doubled with each failure, up to the longest."""


class HintMessage(NamedTuple):
    """The ids of tasks of one queue."""

    queue: str
    ids: list[int]


@dataclass(slots=True)
class HintCounts:
    """What became of this process's hints; nearly exact, since producers count without a lock."""

    sent: int = 0
    dropped: int = 0
    """Too many waited already."""
    failed: int = 0
    """The broker did not take them, or did not say so."""
    silent: int = 0
    """Not tried: the broker had just failed, or the queue was deep or did not exist."""


class HintChannel:
    """Any thread may start a message; one thread sends, and waits for the answers to all."""

    def __init__(
        self,
        connect: Callable[[], HintPublisher],
        counts: HintCounts,
        whom: str = "broker",
        window_s: float = WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.works = False
        """Whether the last message went out."""
        self._counts = counts
        self._connect = connect
        self._whom = whom
        self._window_s = window_s
        self._clock = clock
        self._publisher: HintPublisher | None = None
        self._turn = threading.Lock()
        """Held by the thread that uses the publisher."""
        self._started: HintMessage | None = None
        self._booked_until = 0.0
        self._patience_s = SILENCE_S
        self._silent_until = 0.0
        self._deep_until: dict[str, float] = {}
        self._unlooked: dict[str, int] = {}

    def silent(self, queue: str) -> bool:
        """Whether the queue gets no hints just now."""
        return self.waits_for_broker() or self._clock() < self._deep_until.get(queue, 0.0)

    def waits_for_broker(self) -> bool:
        """Whether no queue gets any."""
        return self._clock() < self._silent_until

    def rest_s(self) -> float:
        """Return how long the next message has to wait because many went out lately."""
        return max(0.0, self._booked_until - self._clock() - BURST * self._window_s)

    def start(self, message: HintMessage) -> bool:
        """Send a message and wait for nothing; False: send it with :meth:`send` instead.

        After True, call :meth:`send` soon: it reads the answer.
        """
        if not self.works or self.silent(message.queue) or not self._turn.acquire(blocking=False):
            return False
        try:
            known = message.queue in self._unlooked and not self._started and not self.rest_s()
            if known and self._publisher is not None and self._publisher.start(*message):
                self._started = message
                self._book()
        except Exception:  # send() will meet the same error, and logs it
            return False
        else:
            return self._started is message
        finally:
            self._turn.release()

    def send(self, messages: Iterable[HintMessage]) -> None:
        """Read the answer to what was started, then send messages. Raises nothing."""
        with self._turn:
            self._finish()
            for message in messages:
                self._book()
                self._send(message)

    def _book(self) -> None:
        self._booked_until = max(self._booked_until, self._clock()) + self._window_s

    def _finish(self) -> None:
        started, self._started = self._started, None
        if started is None or self._publisher is None:
            return
        try:
            self._publisher.finish()
        except Exception:
            self._send(started)  # over a new connection, if one can be made
        else:
            self._was_sent(started, self._publisher)

    def _send(self, message: HintMessage) -> None:
        queue, ids = message
        if self.silent(queue):
            self._counts.silent += len(ids)
            return
        try:
            if self._publisher is None:
                self._publisher = self._connect()
            if queue not in self._unlooked and self._is_deep(queue, self._publisher):
                self._counts.silent += len(ids)
                return
            self._publisher.publish(queue, ids)
        except BaseException as error:  # celeryconfig.py is imported in here, and may even exit
            self._counts.failed += len(ids)
            self._fall_silent(error)
            return
        self._was_sent(message, self._publisher)

    def _was_sent(self, message: HintMessage, publisher: HintPublisher) -> None:
        queue, ids = message
        self._counts.sent += len(ids)
        self.works = True
        self._patience_s = SILENCE_S
        self._unlooked[queue] += 1
        if (
            self._unlooked[queue] >= LOOK_EVERY
        ):  # after the message, so that it does not wait for the answer
            try:
                self._is_deep(queue, publisher)
            except Exception as error:
                self._fall_silent(error)

    def _is_deep(self, queue: str, publisher: HintPublisher) -> bool:
        """Read the queue's depth; a deep one gets no hints for a while. Others do the same."""
        depth = publisher.depth(queue)
        if depth is None or depth >= DEEP:
            self._unlooked.pop(queue, None)
            self._deep_until[queue] = self._clock() + DEEP_SILENCE_S
            return True
        self._unlooked[queue] = 0
        return False

    def _fall_silent(self, error: BaseException) -> None:
        if self._patience_s == SILENCE_S:  # once per outage
            log.warning(
                "the %s takes no hints (%s): tasks start at the next scan until it does",
                self._whom,
                str(error).rstrip(".")
                if isinstance(error, ConfigurationError)
                else type(error).__name__,
            )
        self.works = False
        self._silent_until = self._clock() + self._patience_s
        self._patience_s = min(2 * self._patience_s, LONGEST_SILENCE_S)
