"""The dispatcher: finds due tasks and publishes their ids, as many as the children can use."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import NamedTuple, TypeAlias

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import NoQueueError, PublishError
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.pool.dispatch.scan import DueRows, find_due, find_upcoming
from tasks_app.pool.fragments.conditions import stopped_queues
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime import scan
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.admission import AdmissionControl, AdmissionVerdict, Fairness
from tasks_app.runtime.hint_sender import Hint, Message, Publisher
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.run_times import KnownRunTimes, grouped
from tasks_app.runtime.scan import QueuePositions, ScanPosition, ScanResult, triage_found

log = quiet_logger(__name__)
Served: TypeAlias = "dict[str, ServedQueue]"
# Where a pass from the front of the index takes 0.1 s, such passes get a fifth of the time.
FRONT = scan.Pace(0.1, 4, scan.LONGEST_PAUSE_S)
# A pass reads at most this many times more rows than the last messages held: where tasks are slow
# and each makes a message, it need not read thousands.
REACH = 4


class _Found(NamedTuple):
    """What a pass found in its transaction."""

    messages: list[Message]
    scan_at: dict[int, float]  # of each id in them, as its row was read
    crowded: set[str]  # queues with more due tasks than room
    swept: list[Notice]
    verdicts: list[AdmissionVerdict]


class Dispatcher:
    """One pass at a time; any number of dispatchers may exist without harm."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        publisher: Publisher,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._database = database
        self._publisher = publisher
        self._clock = clock
        self._lookahead = DelayLookahead(settings, clock)
        self._probe_first = False
        self._run_times = KnownRunTimes()
        self._positions = QueuePositions()
        self._front = ScanPosition(FRONT, clock)
        self._admission = AdmissionControl(database)
        self._fairness = Fairness()
        self._published = RecentlyPublished(clock)
        # Queues that had no message in the broker, and for which none was published since.
        self._empty: set[str] = set()
        # How many ids the largest message of a queue held last, where its tasks are slow.
        self._reach: dict[str, int] = {}

    def run_once(self, *, fill_up: bool = False, now: datetime | None = None) -> ScanResult:
        """Scan all served queues and publish what is due.

        ``fill_up``: go on where the last pass ended. After a PublishError nothing is lost: the next
        pass probes the broker, and remembers nothing.
        """
        self.probe()
        with self._database.begin() as connection:
            served = served_queues(connection, self._settings, self._fairness, now=now)
        depths = self._depths(served)
        room: dict[str, int] = {}
        for queue, serves in served.items():
            depth = depths.get(queue, 0)
            self._published.forget(queue, depth, serves.threads)
            room[queue] = max(0, serves.most_messages - depth)
        with self._database.begin() as connection:
            if not fill_up:
                self._positions.forget()
            began = self._clock()
            within = None if now else self._front.within(began)
            found = self._collect(connection, served, room, within, now)
            if not fill_up:
                self._front.was_read(began, within, left=len(found.crowded))
            hinted = [queue for queue, serves in served.items() if not serves.fair]
            next_due_s = None if fill_up else self._lookahead.announce(connection, hinted, now=now)
        HOOKS.tell(found.swept)
        self._admission.hold(found.verdicts, now=now)
        return ScanResult(
            published=self._publish(found),
            more=bool(found.crowded),
            next_due_s=next_due_s,
            depths={queue: depth for queue, depth in depths.items() if depth},
        )

    def probe_first(self) -> None:
        self._probe_first = True

    def probe(self) -> None:
        """Probe the broker, unless the last message went out; PublishError: it does not answer."""
        if self._probe_first:
            self._publisher.probe()
            self._probe_first = False

    def _depths(self, served: Served) -> dict[str, int]:
        """Return how many messages wait, read outside any transaction."""
        for queue in self._published.queues - served.keys():
            self._published.forget(queue, 0, 0)
        asked = sorted(served.keys() - self._empty)
        try:
            depths = self._publisher.depths(asked) if asked else {}
        except PublishError:
            self._reset()
            raise
        self._empty |= {queue for queue, depth in depths.items() if not depth}
        return depths

    def _collect(
        self,
        connection: Connection,
        served: Served,
        room: dict[str, int],
        within: timedelta | None,
        now: datetime | None,
    ) -> _Found:
        free: dict[str, int] = {}  # how many ids each queue has room for
        for queue, serves in served.items():
            largest = serves.largest(self._settings)
            free[queue] = room[queue] * min(largest, REACH * self._reach.get(queue, largest))
        wanted = {
            queue: number + (0 if self._positions.cover(queue) else self._published.number(queue))
            for queue, number in free.items()
            if number and not served[queue].fair
        }
        crowded = {queue for queue, number in free.items() if not number}
        result = _Found([], {}, crowded, [], [])
        places = self._positions.places
        plain = find_due(connection, wanted, after=places, within=within, now=now) if wanted else []
        for found in chain(plain, self._due_of_fair_queues(connection, served, free, now)):
            queue, serves = found.queue, served[found.queue]
            visible = [
                (task_id, name)
                for task_id, name, scan_at in found.rows()
                if not self._published.hides(queue, task_id, scan_at)
            ]
            ready, swept = triage_found(
                connection, visible, found, serves.names, self._settings, now=now
            )
            result.swept.extend(swept)
            if found.gated:  # leave out what the gates would only hold
                gated = [task_id for task_id, _ in ready if task_id in found.gated]
                verdict = self._admission.judge(connection, gated, now=now)
                held = set(gated) - set(verdict.admission.ids)
                ready = [each for each in ready if each[0] not in held]
                result.verdicts.append(verdict)
            fits = ready[: free[queue]]
            size = min(max(1, -(-len(fits) // room[queue])), serves.largest(self._settings))
            run_times = self._run_times.of(connection, {name for _, name in fits})
            groups = grouped(fits, run_times, messages=room[queue], largest=size)
            result.messages.extend(Message(queue, ids) for ids in groups)
            result.scan_at.update(zip(found.ids, found.scan_at, strict=True))
            grouped_ids = sum(map(len, groups))
            if serves.fair:
                self._fairness.went(queue, chain.from_iterable(groups))
            else:  # the next pass begins at the first row that is left
                left = ready[grouped_ids:]
                done = found.ids.index(left[0][0]) if left else len(found.ids)
                self._positions.move(found, done)
            if grouped_ids < len(fits):
                self._reach[queue] = max(map(len, groups))
            else:
                self._reach.pop(queue, None)
            if grouped_ids < len(ready) or len(found.ids) == wanted.get(queue, free[queue]):
                crowded.add(queue)
        return result

    def _due_of_fair_queues(
        self, connection: Connection, served: Served, free: dict[str, int], now: datetime | None
    ) -> Iterator[DueRows]:
        for queue, serves in served.items():
            if serves.fair and free[queue]:
                out = self._published.of(queue)
                found = self._fairness.due(connection, queue, free[queue], out, now=now)
                if found is not None:
                    yield found

    def _publish(self, found: _Found) -> int:
        """Send, and remember what the broker took; return how many ids that were."""
        if not found.messages:
            return 0
        wrong = self._publisher.publish(found.messages)
        out = [message for place, message in enumerate(found.messages) if place not in wrong]
        self._published.remember(out, found.scan_at)
        self._empty -= {message.queue for message in found.messages}
        for error in {str(error): error for error in wrong.values()}.values():
            if not isinstance(error, NoQueueError):  # that one concerns this queue alone
                self._reset()
                raise error
            log.info("%s", error)
        return sum(len(message.ids) for message in out)

    def _reset(self) -> None:
        """Probe the broker next and start afresh: what it has is unknown."""
        self._probe_first = True
        self._empty.clear()
        self._published.forget_all()
        self._positions.forget()


# Messages per queue beyond two for each thread: what waits in the broker while the scan sleeps.
SPARE_MESSAGES = 4
# Ids of a queue that wait in the broker at most: each pass reads past them.
MOST_AHEAD = 20_000


@dataclass(slots=True)
class ServedQueue:
    """A queue that a live child serves and that is neither paused nor closed."""

    queue: str
    threads: int = 0
    names: set[str] = field(default_factory=set)
    fair: bool = False  # few of its messages are out, so that new tasks wait shortly

    @property
    def most_messages(self) -> int:
        """How many messages of the queue may wait in the broker."""
        return 2 * self.threads + (0 if self.fair else SPARE_MESSAGES)

    def largest(self, settings: Settings) -> int:
        """Return how many ids a message may have."""
        return min(settings.message_size, max(1, MOST_AHEAD // self.most_messages))


def served_queues(
    connection: Connection, settings: Settings, fairness: Fairness, *, now: datetime | None = None
) -> dict[str, ServedQueue]:
    served: dict[str, ServedQueue] = {}
    stopped = stopped_queues(connection, now=now)
    if EVERY_QUEUE in stopped:
        return served
    for worker in heartbeats.live_workers(connection, settings.lease, now=now):
        for queue in set(worker.queues) - stopped:
            found = served.setdefault(queue, ServedQueue(queue))
            found.threads += worker.threads
            found.names.update(worker.handlers)
    for queue in fairness.among(connection, served):
        served[queue].fair = True
    return served


KEPT_S = 10.0  # the longest that a message is remembered
# A message that left its queue is remembered for that long: a child works on its ids.
IN_HAND_S = 1.0


class RecentlyPublished:
    """The messages of one dispatcher."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # By queue, oldest first, with the instants of the clock.
        self._messages: defaultdict[str, deque[tuple[float, Sequence[int]]]] = defaultdict(deque)
        # Each id's instant, and its row's scan_at: a task that came back has another.
        self._ids: defaultdict[str, dict[int, tuple[float, float]]] = defaultdict(dict)

    @property
    def queues(self) -> set[str]:
        return {queue for queue, messages in self._messages.items() if messages}

    def remember(self, messages: Iterable[Message], scan_at: Mapping[int, float]) -> None:
        """Remember what the broker has taken; ``scan_at`` as their rows were read."""
        now = self._clock()
        for queue, ids in messages:
            self._messages[queue].append((now, ids))
            self._ids[queue].update((task_id, (now, scan_at[task_id])) for task_id in ids)

    def forget(self, queue: str, depth: int, threads: int) -> None:
        """Forget what is old, or has left the queue of ``depth`` messages, the oldest first."""
        messages, ids, now = self._messages[queue], self._ids[queue], self._clock()
        out = depth + threads if depth else 0
        while messages:
            at, oldest = messages[0]
            if now - at < (KEPT_S if len(messages) <= out else IN_HAND_S):
                break
            messages.popleft()
            for task_id in oldest:
                if task_id in ids and ids[task_id][0] == at:
                    del ids[task_id]

    def forget_all(self) -> None:
        self._messages.clear()
        self._ids.clear()

    def of(self, queue: str) -> dict[int, float]:
        """Return the ids that are published, with the ``scan_at`` of their rows."""
        return {task_id: scan_at for task_id, (_, scan_at) in self._ids[queue].items()}

    def hides(self, queue: str, task_id: int, scan_at: float) -> bool:
        """Whether the row is published as it is."""
        known = self._ids[queue].get(task_id)
        return known is not None and known[1] == scan_at

    def number(self, queue: str) -> int:
        return len(self._ids[queue])


AHEAD = timedelta(seconds=0.5)  # beyond the scan's interval: a late pass leaves no gap
MOST = 1_000  # hints per pass, the nearest first; the scan finds the rest
# Two estimates of one instant differ by less: each is late by its own way from the database.
SAME_S = 0.05


class DelayLookahead:
    """Hints at the delayed tasks of one dispatcher before they are due."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._span = settings.scan_interval + AHEAD
        self._clock = clock
        self._announced: dict[int, float] = {}  # when each task is due, by the clock

    def announce(
        self, connection: Connection, queues: Sequence[str], *, now: datetime | None = None
    ) -> float | None:
        """Announce what is due soon; return the seconds until the first that is not announced.

        A queue that gets no hints just now is left out. None: all is announced.
        """
        near = find_upcoming(connection, queues, self._span, MOST, now=now)
        read_at = self._clock()  # after the database's answer: no hint is early
        over = read_at - SAME_S
        self._announced = {i: due_at for i, due_at in self._announced.items() if due_at > over}
        hinted = {queue for queue in {task.queue for task in near} if HINTS.takes(queue)}
        for task in near:
            if task.queue not in hinted:
                continue
            due_at, known = read_at + task.due_in_s, self._announced.get(task.id)
            if known is None or abs(known - due_at) > SAME_S:
                self._announced[task.id] = due_at
                HINTS.offer([Hint(task.queue, task.id, time.monotonic() + task.due_in_s)])
        return next((task.due_in_s for task in near if task.queue not in hinted), None)
