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

log = quiet_logger(__name__)
T = TypeVar("T")
MOST_IDS = 500  # per round; a message holds no more
MOST_AT_ONCE = 100  # ids that a producer's thread may send: they surely fit into a socket's buffer
MOST_WAITING = 10_000  # hints, one megabyte, that wait while the broker is slow; more are dropped
WINDOW_S = 0.005  # between two rounds, on average: over 200 messages a second hinder the workers


class Hint(NamedTuple):
    """One committed task."""

    queue: str
    task_id: int
    at: float = 0.0  # not before this instant of the monotonic clock


class Message(NamedTuple):
    """A message that wakes a child of a queue; it begins with the tasks of these ids."""

    queue: str
    ids: Sequence[int]


class Publisher(Protocol):
    """Sends messages. It may lose, repeat or delay them: the next scan makes up for it."""

    def publish(self, messages: Sequence[Message]) -> dict[int, PublishError]:
        """Send messages in one go; return the errors by the place of their message."""

    def depths(self, queues: Sequence[str]) -> dict[str, int]:
        """Return how many messages wait in each queue, 0 if it is missing; or PublishError."""

    def probe(self) -> None:
        """Raise PublishError if the broker does not answer."""


class HintPublisher(Protocol):
    """Sends hints on a connection of its own, for one thread at a time. May raise anything."""

    def publish(self, queue: str, ids: Sequence[int]) -> None:
        """Send one message, and wait until the broker has it."""

    def start(self, queue: str, ids: Sequence[int]) -> bool:
        """Send one without waiting, then :meth:`finish` is called; False: not possible just now."""

    def finish(self) -> None:
        """Wait until the broker has what was started."""

    def depth(self, queue: str) -> int | None:
        """Return how many messages wait in the queue; None: no worker has made it yet."""


@dataclass(slots=True)
class HintCounts:
    """What became of this process's hints; nearly exact, since producers count without a lock."""

    sent: int = 0
    dropped: int = 0  # too many waited already
    failed: int = 0  # the broker did not confirm them
    silent: int = 0  # not tried: the broker had just failed, or the queue was deep or missing


class HintSender:
    """Takes hints of all threads; its own thread starts with the first hint that it has to send.

    ``whom`` is for the log; ``clock`` paces the channel.
    """

    def __init__(
        self,
        connect: Callable[[], HintPublisher],
        whom: str = "broker",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = HintCounts()
        self._channel = HintChannel(connect, self.counts, whom, clock)
        # None: read an answer. An Event: set it when all hints before it are sent.
        self._waiting: DelayQueue[Hint | threading.Event | None] = DelayQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def takes(self, queue: str) -> bool:
        """Whether a hint for the queue would not be dropped at once."""
        return not self._channel.silent(queue) and len(self._waiting) < MOST_WAITING

    def offer(self, hints: Iterable[Hint]) -> None:
        """Queue hints to be sent, or drop them; returns at once."""
        given = list(hints)
        idle = not self._waiting
        if idle and self._sent_here(given):
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
        if put and self._thread is None and self._starting.acquire(blocking=False):
            try:  # otherwise another thread, or what a signal interrupted, starts it
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="tasks_app hints", daemon=True)
                    thread.start()
                    self._thread = thread
            finally:
                self._starting.release()
        if put and idle:
            time.sleep(0)  # lets the thread run before this one blocks

    def flush(self, patience_s: float) -> None:
        """Wait until what was offered is sent or dropped; not while the broker gets no hints."""
        if self._thread is None or self._channel.waits_for_broker():
            return
        sent = threading.Event()
        self._waiting.put(sent)
        sent.wait(patience_s)

    def _sent_here(self, hints: Sequence[Hint]) -> bool:
        """Send hints from this thread, if they are due and of one queue."""
        if not 0 < len(hints) <= MOST_AT_ONCE:
            return False
        queue, now = hints[0].queue, time.monotonic()
        if any(hint.queue != queue or hint.at > now for hint in hints):
            return False
        started = self._channel.start(Message(queue, [hint.task_id for hint in hints]))
        if started:
            self._waiting.put(None)
        return started

    def _run(self) -> None:
        """Send what waits, a message for each queue; then wake the threads that flush."""
        while True:
            first = self._waiting.get()
            if first is None:
                self._channel.send(())
                continue
            if pause_s := self._channel.pause_s():
                time.sleep(pause_s)
            messages: dict[str, list[int]] = {}
            flushed: list[threading.Event] = []
            for item in (first, *self._due_now()):
                if isinstance(item, Hint):
                    messages.setdefault(item.queue, []).append(item.task_id)
                elif item is not None:
                    flushed.append(item)
            self._channel.send(Message(queue, ids) for queue, ids in messages.items())
            for event in flushed:
                event.set()

    def _due_now(self) -> Iterator[Hint | threading.Event | None]:
        with suppress(Empty):
            for _ in range(MOST_IDS - 1):
                yield self._waiting.get(wait=False)


BURST = 8  # rounds that may follow each other at once after a quiet time of BURST * WINDOW_S
DEEP = 32  # with so many messages in a queue a hint does not help: the scan has a better order
READ_DEPTH_EVERY = 16  # messages between two reads of a depth: this process adds at most so many
DEEP_SILENCE_S = 1.0  # how long a deep queue gets no hints: the scan comes as often
# How long a broker that failed gets no hints: doubled with each failure, up to the longest.
SILENCE_S, LONGEST_SILENCE_S = 2.0, 60.0


class HintChannel:
    """Any thread may start a message; one thread sends, and waits for the answers to all."""

    def __init__(
        self,
        connect: Callable[[], HintPublisher],
        counts: HintCounts,
        whom: str = "broker",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._works = False  # whether the last message went out
        self._counts = counts
        self._connect = connect
        self._whom = whom
        self._clock = clock
        self._publisher: HintPublisher | None = None
        self._turn = threading.Lock()  # held by the thread that uses the publisher
        self._started: Message | None = None
        self._booked_until = 0.0
        self._patience_s = SILENCE_S
        self._silent_until = 0.0
        self._deep_until: dict[str, float] = {}
        self._since_depth: dict[str, int] = {}  # messages since the last read of a depth

    def silent(self, queue: str) -> bool:
        """Whether the queue gets no hints just now."""
        return self.waits_for_broker() or self._clock() < self._deep_until.get(queue, 0.0)

    def waits_for_broker(self) -> bool:
        """Whether no queue gets any."""
        return self._clock() < self._silent_until

    def pause_s(self) -> float:
        """Return how long the next message has to wait because many went out lately."""
        return max(0.0, self._booked_until - self._clock() - BURST * WINDOW_S)

    def start(self, message: Message) -> bool:
        """Send without waiting, then :meth:`send` reads the answer; False: use :meth:`send`."""
        if not self._works or self.silent(message.queue) or not self._turn.acquire(blocking=False):
            return False
        try:
            known = message.queue in self._since_depth and not self._started and not self.pause_s()
            if known and self._publisher is not None and self._publisher.start(*message):
                self._started = message
                self._book()
        except Exception:  # send() will meet the same error, and logs it
            return False
        else:
            return self._started is message
        finally:
            self._turn.release()

    def send(self, messages: Iterable[Message]) -> None:
        """Read the answer to what was started, then send messages. Raises nothing."""
        with self._turn:
            started, self._started = self._started, None
            if started is not None and self._publisher is not None:
                try:
                    self._publisher.finish()
                except Exception:
                    self._send(started)  # over a new connection, if one can be made
                else:
                    self._was_sent(started, self._publisher)
            for message in messages:
                self._book()
                self._send(message)

    def _book(self) -> None:
        self._booked_until = max(self._booked_until, self._clock()) + WINDOW_S

    def _send(self, message: Message) -> None:
        queue, ids = message
        if self.silent(queue):
            self._counts.silent += len(ids)
            return
        try:
            if self._publisher is None:
                self._publisher = self._connect()
            if queue not in self._since_depth and self._is_deep(queue, self._publisher):
                self._counts.silent += len(ids)
                return
            self._publisher.publish(queue, ids)
        except BaseException as error:  # celeryconfig.py is imported in here, and may even exit
            self._counts.failed += len(ids)
            self._fall_silent(error)
            return
        self._was_sent(message, self._publisher)

    def _was_sent(self, message: Message, publisher: HintPublisher) -> None:
        queue, ids = message
        self._counts.sent += len(ids)
        self._works = True
        self._patience_s = SILENCE_S
        self._since_depth[queue] += 1
        if (
            self._since_depth[queue] >= READ_DEPTH_EVERY
        ):  # after the message: it does not wait for this
            try:
                self._is_deep(queue, publisher)
            except Exception as error:
                self._fall_silent(error)

    def _is_deep(self, queue: str, publisher: HintPublisher) -> bool:
        """Read the queue's depth; a deep one gets no hints for a while. Others do the same."""
        depth = publisher.depth(queue)
        if depth is None or depth >= DEEP:
            self._since_depth.pop(queue, None)
            self._deep_until[queue] = self._clock() + DEEP_SILENCE_S
            return True
        self._since_depth[queue] = 0
        return False

    def _fall_silent(self, error: BaseException) -> None:
        if self._patience_s == SILENCE_S:  # once per outage
            mine = isinstance(error, ConfigurationError)
            log.warning(
                "the %s takes no hints (%s): tasks start at the next scan until it does",
                self._whom,
                str(error).rstrip(".") if mine else type(error).__name__,
            )
        self._works = False
        self._silent_until = self._clock() + self._patience_s
        self._patience_s = min(2 * self._patience_s, LONGEST_SILENCE_S)


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

    def get(self, *, wait: bool = True) -> T:
        """Return an item that is due; without ``wait``, raise queue.Empty if there is none."""
        while True:
            left_s = self._later[0][0] - time.monotonic() if self._later else None
            if left_s is not None and left_s <= 0:
                return heapq.heappop(self._later)[2]
            try:
                at, item = self._new.get(wait, left_s)
            except Empty:
                if wait:
                    continue
                raise
            if at <= time.monotonic():
                return item
            heapq.heappush(self._later, (at, next(self._number), item))
