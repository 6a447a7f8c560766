"""Sends hints from a thread, one message at a time, and none where they would not help."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, Protocol, TypeVar

from tasks_app.domain.errors import ConfigurationError, PublishError
from tasks_app.domain.tasks.error_text import quiet_logger

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


WINDOW_S = 0.005
"""Between two rounds, in the long run: more than 200 messages a second hinder the workers."""


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


log = quiet_logger(__name__)
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


T = TypeVar("T")


class DelayQueue(Generic[T]):
    """Any thread may put, and never waits; one thread gets."""

    def __init__(self) -> None:
        self._new: SimpleQueue[tuple[float, T]] = SimpleQueue()
        self._later: list[tuple[float, int, T]] = []
        self._number = count()

    def put(self, item: T, at: float = 0.0) -> None:
        """Add an item that may come out from the instant ``at`` on, by ``time.monotonic``."""
        self._new.put((at, item))

    def __len__(self) -> int:
        """Nearly exact."""
        return self._new.qsize() + len(self._later)

    def get(self) -> T:
        """Wait for an item that is due, and return it."""
        while True:
            left_s = self._later[0][0] - time.monotonic() if self._later else None
            if left_s is not None and left_s <= 0:
                return heapq.heappop(self._later)[2]
            with suppress(Empty):
                at, item = self._new.get(timeout=left_s)
                if at <= time.monotonic():
                    return item
                heapq.heappush(self._later, (at, next(self._number), item))

    def get_due(self) -> T:
        """Return an item that is due.

        Raises:
            queue.Empty: none is.
        """
        while True:
            if self._later and self._later[0][0] <= time.monotonic():
                return heapq.heappop(self._later)[2]
            at, item = self._new.get_nowait()
            if at <= time.monotonic():
                return item
            heapq.heappush(self._later, (at, next(self._number), item))


class Message(NamedTuple):
    """A message that wakes a child of a queue; the ids are what to begin with."""

    queue: str
    ids: Sequence[int]


class Publisher(Protocol):
    """Sends messages. It may lose, repeat or delay them: the next scan makes up for it."""

    def publish(self, messages: Sequence[Message]) -> dict[int, PublishError]:
        """Send messages in one go; return what went wrong with which of them, by their place."""

    def depths(self, queues: Sequence[str]) -> dict[str, int]:
        """Return how many messages wait in each queue; 0 where the broker has no such queue.

        Raises:
            PublishError: the broker does not answer.
        """

    def probe(self) -> None:
        """Pass if the broker answers.

        Raises:
            PublishError: it does not.
        """


class HintPublisher(Protocol):
    """Sends hints on a connection of its own, for one thread at a time. May raise anything."""

    def publish(self, queue: str, ids: Sequence[int]) -> None:
        """Send one message, and wait until the broker has it."""

    def start(self, queue: str, ids: Sequence[int]) -> bool:
        """Send one and wait for nothing; False: that is not possible just now.

        After True, :meth:`finish` is called before anything else.
        """

    def finish(self) -> None:
        """Wait until the broker has what was started."""

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait in the queue; None: no worker has made it yet."""
