"""The dispatcher: finds due rows, enters them in the ledger, COMMITs, and only then publishes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.errors import NoQueueError
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.dispatch import ledger
from tasks_app.pool.dispatch.ledger import Dispatch
from tasks_app.pool.dispatch.scan import Due, due
from tasks_app.pool.fragments.availability import standing_still
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.dispatch.broker_loss import forgotten_queues
from tasks_app.runtime.dispatch.delay_lookahead import DelayLookahead
from tasks_app.runtime.dispatch.message_sizing import KnownRunTimes, grouped
from tasks_app.runtime.dispatch.queue_room import QueueRoom
from tasks_app.runtime.dispatch.queue_throughput import QueueThroughput
from tasks_app.runtime.flow_control.admission import AdmissionControl, Verdict
from tasks_app.runtime.flow_control.fair_queues import Fairness
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.publisher import DelayIndex, Publisher
from tasks_app.runtime.scan.position import QueuePositions, ScanPosition
from tasks_app.runtime.scan.result import ScanResult
from tasks_app.runtime.scan.triage import tidy

log = quiet_logger(__name__)

SLOW_S, REST = 0.1, 4
"""Reading the front of the index takes a fifth of the time at most, where it takes so long."""


class Dispatcher:
    """One pass at a time; any number of dispatchers may exist, and harm nothing."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        publisher: Publisher,
        index: DelayIndex | None = None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._publisher = publisher
        self._outlook = DelayLookahead(settings, index)
        self._probe_first = False
        self._still = 0
        self._flows: dict[str, QueueThroughput] = {}
        self._paces = KnownRunTimes()
        self._bookmarks = QueuePositions()
        self._front = ScanPosition(slow_s=SLOW_S, rest=REST)
        self._admission = AdmissionControl(database)
        self._fairness = Fairness()

    def run_once(self, *, fill_up: bool = False, now: datetime | None = None) -> ScanResult:
        """Scan all served queues and publish what is due.

        With ``fill_up`` new messages are made and nothing else: the last pass was a moment ago.

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
            lanes = self._lanes(connection, now)
            late = [] if fill_up else ledger.overdue(connection, list(lanes), wait, now=now)
            served = [queue for queue in forgotten if queue in lanes]
            if served:
                late += ledger.missed(connection, served, wait, now=now)
            swept: list[Notice] = []
            verdicts: list[Verdict] = []
            if not fill_up:
                self._bookmarks.forget()
            began = time.monotonic()
            within = None if now else self._front.within(began)
            fresh, crowded = self._enter(connection, lanes, swept, verdicts, within, now)
            if not fill_up:
                self._front.was_read(began, within, left=len(crowded))
            hinted = [queue for queue, lane in lanes.items() if not lane.fair]
            near = [] if fill_up else self._outlook.look(connection, hinted, now=now)
        HOOKS.tell(swept)
        self._admission.hold(verdicts, now=now)
        out = self._publish(fresh, late)
        published = sum(len(d.ids) for d in fresh if d.id in out)
        still, self._still = self._still, 0 if published else self._still + 1
        halves = [half for lane in crowded if (half := lane.flow.half_s()) is not None]
        return ScanResult(
            published=published,
            republished=len(late),
            more=bool(crowded),
            next_due_s=self._outlook.next_due_s(near),
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

    def _lanes(self, connection: Connection, now: datetime | None) -> dict[str, QueueRoom]:
        """Return the queues that a live child serves and that do not stand still."""
        lanes: dict[str, QueueRoom] = {}
        stopped = standing_still(connection, now=now)
        if EVERY_QUEUE in stopped:
            return lanes
        for worker in heartbeats.live(connection, self._settings.lease, now=now):
            for queue in set(worker.queues) - stopped:
                flow = self._flows.setdefault(queue, QueueThroughput())
                lane = lanes.setdefault(queue, QueueRoom(queue, flow))
                lane.threads += worker.threads
                lane.names.update(worker.handlers)
        self._flows = {queue: lane.flow for queue, lane in lanes.items()}
        for dispatch in ledger.read(connection):
            if dispatch.queue in lanes:
                lanes[dispatch.queue].out.append(dispatch)
        at = time.monotonic()
        fair = self._fairness.among(connection, lanes)
        for lane in lanes.values():
            lane.fair = lane.queue in fair
            lane.measure(at)
        return lanes

    def _enter(
        self,
        connection: Connection,
        lanes: dict[str, QueueRoom],
        swept: list[Notice],
        verdicts: list[Verdict],
        within: timedelta | None,
        now: datetime | None,
    ) -> tuple[list[Dispatch], list[QueueRoom]]:
        """Fill the room that the queues have; return the new ledger rows, and who wants more."""
        rooms = {queue: lane.room(self._settings) for queue, lane in lanes.items()}
        crowded = [lane for queue, lane in lanes.items() if rooms[queue] <= 0]
        wanted = {
            queue: room + (0 if self._bookmarks.cover(queue) else len(lanes[queue].hidden))
            for queue, room in rooms.items()
            if room > 0 and not lanes[queue].fair
        }
        messages: list[tuple[str, list[int]]] = []
        places = self._bookmarks.places
        plain = due(connection, wanted, after=places, within=within, now=now) if wanted else []
        for found in chain(plain, self._shared(connection, lanes, rooms, now)):
            queue, lane = found.queue, lanes[found.queue]
            visible = lane.visible(found)
            ready = tidy(connection, visible, found, lane.names, self._settings, swept, now=now)
            if found.gated:
                ready = self._passing(connection, ready, found.gated, verdicts, now)
            fits = ready[: rooms[queue]]
            groups = self._grouped(connection, lane, fits)
            messages += [(queue, ids) for ids in groups]
            grouped_ids = sum(map(len, groups))
            if lane.fair:
                self._fairness.went(queue, chain.from_iterable(groups))
            elif groups:
                self._bookmarks.move(found, groups[-1][-1])
            lane.flow.slow = grouped_ids < len(fits)
            if grouped_ids < len(ready) or len(found.ids) == wanted.get(queue, rooms[queue]):
                crowded.append(lane)
        fresh = ledger.add_all(connection, messages, self._settings.republish_after, now=now)
        for queue, lane in lanes.items():
            lane.flow.sent([dispatch for dispatch in fresh if dispatch.queue == queue])
        return fresh, crowded

    def _passing(
        self,
        connection: Connection,
        ready: list[tuple[int, str]],
        gated: frozenset[int],
        verdicts: list[Verdict],
        now: datetime | None,
    ) -> list[tuple[int, str]]:
        """Leave out what would only be held when it is claimed."""
        ids = [task_id for task_id, _ in ready if task_id in gated]
        verdicts.append(self._admission.judge(connection, ids, now=now))
        passing = set(verdicts[-1].admission.ids)
        return [each for each in ready if each[0] not in gated or each[0] in passing]

    def _shared(
        self,
        connection: Connection,
        lanes: dict[str, QueueRoom],
        rooms: dict[str, int],
        now: datetime | None,
    ) -> Iterator[Due]:
        """Yield what is due of fair queues, in the order of shares."""
        for queue, lane in lanes.items():
            if lane.fair and rooms[queue] > 0:
                found = self._fairness.due(connection, queue, rooms[queue], lane.hidden, now=now)
                if found is not None:
                    yield found

    def _grouped(
        self, connection: Connection, lane: QueueRoom, ready: Sequence[tuple[int, str]]
    ) -> list[list[int]]:
        """Spread what is ready over the messages that there is room for."""
        largest = self._settings.message_size
        messages = lane.messages(largest)
        size = min(max(1, -(-len(ready) // messages)), largest)
        paces = self._paces.of(connection, {name for _, name in ready})
        return grouped(ready, paces, messages=messages, largest=size)

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
