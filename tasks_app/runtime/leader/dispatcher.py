"""The dispatcher: finds due rows, and publishes their ids as deep as the children can use them.

Nothing is written down about a message. What it published lately it leaves out, from memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import NamedTuple

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import NoQueueError, PublishError
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.dispatch.scan import DueRows, due
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.dispatch.delay_lookahead import DelayLookahead
from tasks_app.runtime.dispatch.message_sizing import KnownRunTimes, grouped
from tasks_app.runtime.dispatch.recently_published import RecentlyPublished
from tasks_app.runtime.dispatch.served_queues import ServedQueue, served_queues
from tasks_app.runtime.flow_control.admission import AdmissionControl, AdmissionVerdict
from tasks_app.runtime.flow_control.fair_queues import Fairness
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.publisher import Message, Publisher
from tasks_app.runtime.scan import QueuePositions
from tasks_app.runtime.scan import ScanPosition
from tasks_app.runtime.scan.result import ScanResult
from tasks_app.runtime.scan.throttle import LONGEST_REST_S, Pace
from tasks_app.runtime.scan.triage import tidy

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
            ready, told = tidy(
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
