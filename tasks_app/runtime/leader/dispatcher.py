"""The dispatcher: finds due tasks and publishes their ids, as many as the children can use."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import NamedTuple

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import NoQueueError, PublishError
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.pool.dispatch.scan import DueRows, Upcoming, due, upcoming
from tasks_app.pool.fragments.conditions import standing_still
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.admission import AdmissionControl, AdmissionVerdict, Fairness
from tasks_app.runtime.hint_sender import Hint, Message, Publisher
from tasks_app.runtime.hints import HINTS
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.run_times import KnownRunTimes, grouped
from tasks_app.runtime.scan import (
    LONGEST_REST_S,
    Pace,
    QueuePositions,
    ScanPosition,
    ScanResult,
    triage_found,
)

log = quiet_logger(__name__)
FRONT = Pace(0.1, 4, LONGEST_REST_S)
"""Where reading the front of the index takes this long, it may take a fifth of the time."""
REACH = 4
"""At most this many times more rows are read than the last messages held: a pass that finds slow
tasks, one of which makes a message, need not read thousands."""


class _Found(NamedTuple):
    """What a pass found in its transaction."""

    messages: list[Message]
    scan_at: dict[int, float]
    """Of each id in them, as its row was read."""
    crowded: set[str]
    """The queues that want more."""
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
        self.lookahead = DelayLookahead(settings, clock)
        self._probe_first = False
        self._run_times = KnownRunTimes()
        self._positions = QueuePositions()
        self._front = ScanPosition(FRONT, clock)
        self._admission = AdmissionControl(database)
        self._fairness = Fairness()
        self._published = RecentlyPublished(clock)
        self._empty: set[str] = set()
        """Queues that had no message in the broker, and for which none was published since."""
        self._reach: dict[str, int] = {}
        """How many ids the largest message of a queue held last, where its tasks are slow."""

    def run_once(self, *, fill_up: bool = False, now: datetime | None = None) -> ScanResult:
        """Scan all served queues and publish what is due.

        With ``fill_up`` it goes on where the last pass ended, a moment ago.

        Raises:
            PublishError: the broker did not take a message, or does not answer. Nothing is lost:
                the next pass asks the broker first, and remembers nothing.
        """
        self.probe()
        with self._database.begin() as connection:
            served = served_queues(connection, self._settings, self._fairness, now=now)
        depths = self._depths(served)
        room = {queue: self._room(each, depths.get(queue, 0)) for queue, each in served.items()}
        with self._database.begin() as connection:
            if not fill_up:
                self._positions.forget()
            began = self._clock()
            within = None if now else self._front.within(began)
            found = self._find(connection, served, room, within, now)
            if not fill_up:
                self._front.was_read(began, within, left=len(found.crowded))
            hinted = [queue for queue, serves in served.items() if not serves.fair]
            next_due_s = None if fill_up else self.lookahead.look(connection, hinted, now=now)
        HOOKS.tell(found.swept)
        self._admission.hold(found.verdicts, now=now)
        return ScanResult(
            published=self._publish(found),
            more=bool(found.crowded),
            next_due_s=next_due_s,
            depths={queue: depth for queue, depth in depths.items() if depth},
        )

    def doubt(self) -> None:
        """Ask the broker before anything is published: it refused somebody else's messages."""
        self._probe_first = True

    def probe(self) -> None:
        """Pass if the last message went out, or else if the broker answers now.

        Raises:
            PublishError: it does not.
        """
        if self._probe_first:
            self._publisher.probe()
            self._probe_first = False

    def _depths(self, served: dict[str, ServedQueue]) -> dict[str, int]:
        """Ask how many messages wait, outside of any transaction; forget what is over."""
        for queue in self._published.queues - served.keys():
            self._published.forget(queue, 0, 0)
        asked = sorted(served.keys() - self._empty)
        try:
            depths = self._publisher.depths(asked) if asked else {}
        except PublishError:
            self._fail()
            raise
        self._empty |= {queue for queue, depth in depths.items() if not depth}
        return depths

    def _room(self, served: ServedQueue, depth: int) -> int:
        """Return how many messages may go out; forget those that are no longer there."""
        self._published.forget(served.queue, depth, served.threads)
        return max(0, served.most_messages - depth)

    def _find(
        self,
        connection: Connection,
        served: dict[str, ServedQueue],
        room: dict[str, int],
        within: timedelta | None,
        now: datetime | None,
    ) -> _Found:
        swept: list[Notice] = []
        verdicts: list[AdmissionVerdict] = []
        free = {queue: room[queue] * self._largest(found) for queue, found in served.items()}
        crowded = {queue for queue, number in free.items() if not number}
        wanted = {
            queue: number + (0 if self._positions.cover(queue) else self._published.number(queue))
            for queue, number in free.items()
            if number and not served[queue].fair
        }
        messages: list[Message] = []
        scan_at: dict[int, float] = {}
        places = self._positions.places
        plain = due(connection, wanted, after=places, within=within, now=now) if wanted else []
        for found in chain(plain, self._shared(connection, served, free, now)):
            queue, serves = found.queue, served[found.queue]
            ready, told = triage_found(
                connection, self._visible(found), found, serves.names, self._settings, now=now
            )
            swept += told
            if found.gated:
                verdict, ready = self._passing(connection, ready, found.gated, now)
                verdicts.append(verdict)
            fits = ready[: free[queue]]
            groups = self._grouped(connection, fits, room[queue], serves.largest(self._settings))
            messages += [Message(queue, ids) for ids in groups]
            scan_at |= zip(found.ids, found.scan_at, strict=True)
            grouped_ids = sum(map(len, groups))
            if serves.fair:
                self._fairness.went(queue, chain.from_iterable(groups))
            else:
                self._go_on(found, ready[grouped_ids:])
            if grouped_ids < len(fits):
                self._reach[queue] = max(map(len, groups))
            else:
                self._reach.pop(queue, None)
            if grouped_ids < len(ready) or len(found.ids) == wanted.get(queue, free[queue]):
                crowded.add(queue)
        return _Found(messages, scan_at, crowded, swept, verdicts)

    def _go_on(self, found: DueRows, left: Sequence[tuple[int, str]]) -> None:
        """Begin the next pass at the first row that is left: others are out, parked or swept."""
        done = found.ids.index(left[0][0]) if left else len(found.ids)
        self._positions.move(found, done)

    def _largest(self, served: ServedQueue) -> int:
        """Return for how many ids of each message rows are to be read."""
        largest = served.largest(self._settings)
        return min(largest, REACH * self._reach.get(served.queue, largest))

    def _visible(self, found: DueRows) -> list[tuple[int, str]]:
        """Return what is not under way."""
        return [
            (task_id, name)
            for task_id, name, scan_at in found.rows()
            if not self._published.hides(found.queue, task_id, scan_at)
        ]

    def _passing(
        self,
        connection: Connection,
        ready: list[tuple[int, str]],
        gated: frozenset[int],
        now: datetime | None,
    ) -> tuple[AdmissionVerdict, list[tuple[int, str]]]:
        """Leave out what would only be held when it is claimed."""
        ids = [task_id for task_id, _ in ready if task_id in gated]
        verdict = self._admission.judge(connection, ids, now=now)
        passing = set(verdict.admission.ids)
        return verdict, [each for each in ready if each[0] not in gated or each[0] in passing]

    def _shared(
        self,
        connection: Connection,
        served: dict[str, ServedQueue],
        free: dict[str, int],
        now: datetime | None,
    ) -> Iterator[DueRows]:
        """Yield what is due of fair queues, in the order of shares."""
        for queue, serves in served.items():
            if serves.fair and free[queue]:
                out = self._published.of(queue)
                found = self._fairness.due(connection, queue, free[queue], out, now=now)
                if found is not None:
                    yield found

    def _grouped(
        self, connection: Connection, ready: Sequence[tuple[int, str]], messages: int, largest: int
    ) -> list[list[int]]:
        """Spread what is ready over the messages that there is room for."""
        size = min(max(1, -(-len(ready) // messages)), largest)
        run_times = self._run_times.of(connection, {name for _, name in ready})
        return grouped(ready, run_times, messages=messages, largest=size)

    def _publish(self, found: _Found) -> int:
        """Send, and remember what the broker took; return how many ids that were."""
        if not found.messages:
            return 0
        wrong = self._publisher.publish(found.messages)
        out = [message for place, message in enumerate(found.messages) if place not in wrong]
        self._published.remember(out, found.scan_at)
        self._empty -= {message.queue for message in found.messages}
        for error in {str(error): error for error in wrong.values()}.values():
            if not isinstance(error, NoQueueError):  # that one is of this queue alone
                self._fail()
                raise error
            log.info("%s", error)
        return sum(len(message.ids) for message in out)

    def _fail(self) -> None:
        """Ask the broker next, and then begin anew: nobody knows what it has."""
        self._probe_first = True
        self._empty.clear()
        self._published.forget_all()
        self._positions.forget()


SPARE_MESSAGES = 4
"""Messages per queue beyond two for each thread: what waits in the broker while the scan sleeps."""
MOST_AHEAD = 20_000
"""Ids of a queue that wait in the broker at most: each pass reads past them."""


@dataclass(slots=True)
class ServedQueue:
    """A queue that a live child serves and that does not stand still."""

    queue: str
    threads: int = 0
    names: set[str] = field(default_factory=set)
    fair: bool = False
    """Little of it is out, so that new tasks wait shortly."""

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
    """Return the queues to publish for."""
    served: dict[str, ServedQueue] = {}
    stopped = standing_still(connection, now=now)
    if EVERY_QUEUE in stopped:
        return served
    for worker in heartbeats.live(connection, settings.lease, now=now):
        for queue in set(worker.queues) - stopped:
            found = served.setdefault(queue, ServedQueue(queue))
            found.threads += worker.threads
            found.names.update(worker.handlers)
    for queue in fairness.among(connection, served):
        served[queue].fair = True
    return served


KEPT_S = 10.0
"""The longest that a message is remembered."""
IN_HAND_S = 1.0
"""What is no longer in its queue is remembered for that long: a child works its ids off."""


class RecentlyPublished:
    """The messages of one dispatcher."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._messages: defaultdict[str, deque[tuple[float, Sequence[int]]]] = defaultdict(deque)
        """By queue, oldest first, with the instants of :attr:`_clock`."""
        self._ids: defaultdict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
        """Each id's instant, and its row's ``scan_at``: a task that came back has another."""

    @property
    def queues(self) -> set[str]:
        """The queues of which something is remembered."""
        return {queue for queue, messages in self._messages.items() if messages}

    def remember(self, messages: Iterable[Message], scan_at: Mapping[int, float]) -> None:
        """Remember what the broker has taken; ``scan_at`` as their rows were read."""
        now = self._clock()
        for queue, ids in messages:
            self._messages[queue].append((now, ids))
            self._ids[queue].update((task_id, (now, scan_at[task_id])) for task_id in ids)

    def forget(self, queue: str, depth: int, threads: int) -> None:
        """Forget what is old, or can no longer be in the queue, which holds ``depth`` messages.

        The oldest leave it first.
        """
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
        """Forget everything: the broker refused something, and may have lost the rest."""
        self._messages.clear()
        self._ids.clear()

    def of(self, queue: str) -> dict[int, float]:
        """Return the ids that are under way, with the ``scan_at`` of their rows."""
        return {task_id: scan_at for task_id, (_, scan_at) in self._ids[queue].items()}

    def hides(self, queue: str, task_id: int, scan_at: float) -> bool:
        """Whether the row is under way as it is."""
        known = self._ids[queue].get(task_id)
        return known is not None and known[1] == scan_at

    def number(self, queue: str) -> int:
        """Return how many ids of the queue are remembered."""
        return len(self._ids[queue])


AHEAD = timedelta(seconds=0.5)
"""Beyond the scan's interval: a pass that is late leaves no gap."""
MOST = 1_000
"""Hints per pass, the nearest first; the scan finds the rest."""
SAME_S = 0.05
"""Two estimates of one instant differ by less: each is late by its own way from the database."""


class DelayLookahead:
    """One dispatcher's; ``most`` tasks are announced in a pass."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._span = settings.scan_interval + AHEAD
        self._clock = clock
        self._announced: dict[int, float] = {}
        """The instants of tasks, by ``clock``."""
        self.most = MOST

    def look(
        self, connection: Connection, queues: Sequence[str], *, now: datetime | None = None
    ) -> float | None:
        """Announce what becomes due soon; return the seconds until the first that is not announced.

        Nothing is announced of a queue that gets no hints just now. None: all is announced.
        """
        near = upcoming(connection, queues, self._span, self.most, now=now)
        read_at = self._clock()  # after the database's answer: no hint is early
        over = read_at - SAME_S
        self._announced = {i: due_at for i, due_at in self._announced.items() if due_at > over}
        hinted = {queue for queue in {task.queue for task in near} if HINTS.takes(queue)}
        for task in near:
            if task.queue in hinted:
                self._announce(task, read_at)
        return next((task.due_in_s for task in near if task.queue not in hinted), None)

    def _announce(self, task: Upcoming, read_at: float) -> None:
        due_at = read_at + task.due_in_s
        known = self._announced.get(task.id)
        if known is None or abs(known - due_at) > SAME_S:
            self._announced[task.id] = due_at
            HINTS.offer([Hint(task.queue, task.id, time.monotonic() + task.due_in_s)])
