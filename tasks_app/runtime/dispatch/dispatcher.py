"""The dispatcher: finds due rows, enters them in the ledger, COMMITs, and only then publishes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import NamedTuple

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import NoQueueError
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.dispatch import ledger
from tasks_app.pool.dispatch.ledger import Dispatch
from tasks_app.pool.dispatch.scan import DueRows, due
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.dispatch.broker_loss import forgotten_queues
from tasks_app.runtime.dispatch.delay_lookahead import DelayLookahead
from tasks_app.runtime.dispatch.message_sizing import KnownRunTimes, grouped
from tasks_app.runtime.dispatch.queue_room import QueueRoom, QueueRooms
from tasks_app.runtime.flow_control.admission import AdmissionControl, AdmissionVerdict
from tasks_app.runtime.flow_control.fair_queues import Fairness
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.publisher import Publisher
from tasks_app.runtime.scan.position import QueuePositions, ScanPosition
from tasks_app.runtime.scan.result import ScanResult
from tasks_app.runtime.scan.throttle import LONGEST_REST_S, Pace
from tasks_app.runtime.scan.triage import tidy

log = quiet_logger(__name__)

FRONT = Pace(0.1, 4, LONGEST_REST_S)
"""Where reading the front of the index takes this long, it may take a fifth of the time."""


class _Entered(NamedTuple):
    """What a pass did in its transaction."""

    fresh: list[Dispatch]
    """The new rows of the ledger."""
    crowded: list[QueueRoom]
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
        self._still = 0
        self._run_times = KnownRunTimes()
        self._positions = QueuePositions()
        self._front = ScanPosition(FRONT, clock)
        self._admission = AdmissionControl(database)
        self._fairness = Fairness()
        self._rooms = QueueRooms(settings, self._fairness, clock)

    def run_once(self, *, fill_up: bool = False, now: datetime | None = None) -> ScanResult:
        """Scan all served queues and publish what is due.

        With ``fill_up`` it only makes new messages: the last pass was a moment ago.

        Raises:
            PublishError: the broker did not take a message. Nothing is lost: the ledger rows that
                went nowhere are taken back, and the next pass asks the broker first. A message
                that was perhaps sent keeps its row, or each doubt would add one to the broker.
        """
        self.probe()
        wait = self._settings.republish_after
        forgotten = (
            [] if fill_up else forgotten_queues(self._database, self._publisher, wait, now=now)
        )
        with self._database.begin() as connection:
            if not ledger.scanner_lock(connection):
                return ScanResult(skipped=True)
            rooms = self._rooms.read(connection, now=now)
            late = [] if fill_up else ledger.overdue(connection, list(rooms), wait, now=now)
            served = [queue for queue in forgotten if queue in rooms]
            if served:
                late += ledger.overdue(connection, served, wait, lost=True, now=now)
            if not fill_up:
                self._positions.forget()
            began = self._clock()
            within = None if now else self._front.within(began)
            entered = self._enter(connection, rooms, within, now)
            if not fill_up:
                self._front.was_read(began, within, left=len(entered.crowded))
            hinted = [queue for queue, room in rooms.items() if not room.fair]
            next_due_s = None if fill_up else self.lookahead.look(connection, hinted, now=now)
        HOOKS.tell(entered.swept)
        self._admission.hold(entered.verdicts, now=now)
        out = self._publish(entered.fresh, late)
        published = sum(len(d.ids) for d in entered.fresh if d.id in out)
        still, self._still = self._still, 0 if published else self._still + 1
        halves = [
            half for room in entered.crowded if (half := room.throughput.half_s()) is not None
        ]
        return ScanResult(
            published=published,
            republished=len(late),
            more=bool(entered.crowded),
            next_due_s=next_due_s,
            half_s=min(halves, default=None),
            still=still,
        )

    def doubt(self) -> None:
        """Ask the broker before anything is entered for it: it refused somebody else's messages."""
        self._probe_first = True

    def probe(self) -> None:
        """Pass if the last message went out, or else if the broker answers now.

        Raises:
            PublishError: it does not.
        """
        if self._probe_first:
            self._publisher.probe()
            self._probe_first = False

    def _enter(
        self,
        connection: Connection,
        rooms: dict[str, QueueRoom],
        within: timedelta | None,
        now: datetime | None,
    ) -> _Entered:
        swept: list[Notice] = []
        verdicts: list[AdmissionVerdict] = []
        free = {queue: room.free(self._settings) for queue, room in rooms.items()}
        crowded = [room for queue, room in rooms.items() if free[queue] <= 0]
        wanted = {
            queue: number + (0 if self._positions.cover(queue) else len(rooms[queue].hidden))
            for queue, number in free.items()
            if number > 0 and not rooms[queue].fair
        }
        messages: list[tuple[str, list[int]]] = []
        places = self._positions.places
        plain = due(connection, wanted, after=places, within=within, now=now) if wanted else []
        for found in chain(plain, self._shared(connection, rooms, free, now)):
            queue, room = found.queue, rooms[found.queue]
            visible = [row for row in room.visible(found) if not self.lookahead.leaves(row[0])]
            ready, told = tidy(connection, visible, found, room.names, self._settings, now=now)
            swept += told
            if found.gated:
                verdict, ready = self._passing(connection, ready, found.gated, now)
                verdicts.append(verdict)
            fits = ready[: free[queue]]
            groups = self._grouped(connection, room, fits)
            messages += [(queue, ids) for ids in groups]
            grouped_ids = sum(map(len, groups))
            if room.fair:
                self._fairness.went(queue, chain.from_iterable(groups))
            elif groups:
                self._positions.move(found, groups[-1][-1])
            room.throughput.slow = grouped_ids < len(fits)
            if grouped_ids < len(ready) or len(found.ids) == wanted.get(queue, free[queue]):
                crowded.append(room)
        fresh = ledger.add_all(connection, messages, self._settings.republish_after, now=now)
        for queue, room in rooms.items():
            room.throughput.sent([dispatch for dispatch in fresh if dispatch.queue == queue])
        return _Entered(fresh, crowded, swept, verdicts)

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
        rooms: dict[str, QueueRoom],
        free: dict[str, int],
        now: datetime | None,
    ) -> Iterator[DueRows]:
        """Yield what is due of fair queues, in the order of shares."""
        for queue, room in rooms.items():
            if room.fair and free[queue] > 0:
                found = self._fairness.due(connection, queue, free[queue], room.hidden, now=now)
                if found is not None:
                    yield found

    def _grouped(
        self, connection: Connection, room: QueueRoom, ready: Sequence[tuple[int, str]]
    ) -> list[list[int]]:
        """Spread what is ready over the messages that there is room for."""
        largest = self._settings.message_size
        messages = room.messages(largest)
        size = min(max(1, -(-len(ready) // messages)), largest)
        run_times = self._run_times.of(connection, {name for _, name in ready})
        return grouped(ready, run_times, messages=messages, largest=size)

    def _publish(self, fresh: Sequence[Dispatch], late: Sequence[Dispatch]) -> set[int]:
        """Send; take back the new rows of messages that certainly went nowhere.

        Returns the ids of the others.
        """
        out = {dispatch.id for dispatch in (*fresh, *late)}
        if not out:
            return out
        wrong = self._publisher.publish([*fresh, *late])
        out -= {id_ for id_, error in wrong.items() if error.certain}
        nowhere = [dispatch.id for dispatch in fresh if dispatch.id not in out]
        if nowhere:
            with self._database.begin() as connection:
                ledger.finish(connection, *nowhere)
        for error in {str(error): error for error in wrong.values()}.values():
            if not isinstance(error, NoQueueError):  # that one is of this queue alone
                self._probe_first = True
                raise error
            log.info("%s", error)
        return out
