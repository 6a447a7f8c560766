"""The dispatcher: finds due rows, enters them in the ledger, COMMITs, and only then publishes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection

from tasks_app.domain.errors import NoQueueError, PublishError
from tasks_app.domain.logs import quiet_logger
from tasks_app.domain.settings import Settings
from tasks_app.pool import browse, ledger, workers
from tasks_app.pool.ledger import Dispatch
from tasks_app.pool.park import park
from tasks_app.pool.pause import paused
from tasks_app.pool.scan import DueTask, due
from tasks_app.pool.sweep import sweep
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.amnesia import forgotten_queues
from tasks_app.runtime.database import Database
from tasks_app.runtime.hooks import HOOKS, Kind, Notice, of_outline
from tasks_app.runtime.outlook import Outlook
from tasks_app.runtime.publisher import DelayIndex, Publisher

log = quiet_logger(__name__)

AGAIN_S = 0.05
"""Shortest pause between two passes: while rows are left over and the queues have room, and while
one due instant follows the other."""
SPARE_MESSAGES = 4
"""Messages per queue beyond two for each child: what waits in the broker while the scan sleeps."""


@dataclass(slots=True)
class Lane:
    """One queue as the dispatcher sees it: who serves it, and what is out."""

    queue: str
    threads: int = 0
    names: set[str] = field(default_factory=set)
    out: list[Dispatch] = field(default_factory=list)

    def hides(self, task: DueTask, newest: dict[int, datetime]) -> bool:
        """A message in flight hides an id unless the row was rescheduled after it was made."""
        created_at = newest.get(task.id)
        return created_at is not None and task.scan_at <= created_at


@dataclass(frozen=True, slots=True)
class Scanned:
    """What one pass did."""

    published: int = 0
    """Ids in new messages."""
    republished: int = 0
    """Messages that went out again."""
    more: bool = False
    """Rows were left over: scan again as soon as there is room."""
    skipped: bool = False
    """Somebody else was scanning."""
    next_due_s: float | None = None
    """In how many seconds the next row becomes due that nobody else hints at."""

    def again_in(self, interval_s: float) -> float:
        """Return the pause before the next pass: short while work moves, longer without room.

        Who has nothing to do wakes up for the next row, not a whole interval after it.
        """
        if not self.more:
            wanted = interval_s if self.next_due_s is None else max(AGAIN_S, self.next_due_s)
            return min(interval_s, wanted)
        return min(interval_s, AGAIN_S) if self.published else interval_s / 4


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
        self._outlook = Outlook(settings, index)
        self._probe_first = False

    def run_once(self, *, now: datetime | None = None) -> Scanned:
        """Scan all served queues and publish what is due.

        Raises:
            PublishError: the broker did not take a message. Nothing is lost: the ledger rows that
                went nowhere are taken back, and the next pass asks the broker first. A message
                that was perhaps sent keeps its row, or each doubt would add one to the broker.
        """
        self.probe()
        wait = self._settings.republish_after
        forgotten = forgotten_queues(self._database, self._publisher, wait, now=now)
        with self._database.begin() as connection:
            if not ledger.scanner_lock(connection):
                return Scanned(skipped=True)
            lanes = self._lanes(connection, now)
            late = ledger.overdue(connection, list(lanes), wait, now=now)
            served = [queue for queue in forgotten if queue in lanes]
            if served:
                late += ledger.missed(connection, served, wait, now=now)
            fresh: list[Dispatch] = []
            swept: list[Notice] = []
            more = False
            for lane in lanes.values():
                made, left_over = self._enter(connection, lane, swept, now)
                fresh += made
                more |= left_over
            near = self._outlook.look(connection, list(lanes), now=now)
        HOOKS.tell(swept)
        out = self._publish(fresh, late)
        published = sum(len(d.ids) for d in fresh if d.id in out)
        soon = self._outlook.next_due_s(near)
        return Scanned(published, len(late), more, next_due_s=soon)

    def probe(self) -> None:
        """Pass if the last message went out, or else if the broker answers now.

        Raises:
            PublishError: it does not.
        """
        if self._probe_first:
            self._publisher.probe()
            self._probe_first = False

    def _lanes(self, connection: Connection, now: datetime | None) -> dict[str, Lane]:
        """Return the queues that a live child serves; for others, and paused ones, nothing goes."""
        lanes: dict[str, Lane] = {}
        stopped = {pause.queue for pause in paused(connection)}
        if EVERY_QUEUE in stopped:
            return lanes
        for worker in workers.live(connection, self._settings.lease, now=now):
            for queue in set(worker.queues) - stopped:
                lane = lanes.setdefault(queue, Lane(queue))
                lane.threads += worker.threads
                lane.names.update(worker.handlers)
        for dispatch in ledger.read(connection):
            if dispatch.queue in lanes:
                lanes[dispatch.queue].out.append(dispatch)
        return lanes

    def _enter(
        self, connection: Connection, lane: Lane, swept: list[Notice], now: datetime | None
    ) -> tuple[list[Dispatch], bool]:
        """Fill the room that the queue has; return the new ledger rows, and if rows were left."""
        newest = {i: d.created_at for d in lane.out for i in d.ids}
        messages = 2 * lane.threads + SPARE_MESSAGES - len(lane.out)
        room = min(messages * self._settings.message_size, self._settings.ledger_ids - len(newest))
        if room <= 0:
            return [], True
        found = due(connection, lane.queue, room + len(newest), now=now)
        visible = [task for task in found if not lane.hides(task, newest)]
        ready = tidy(connection, visible, lane.names, self._settings, swept, now=now)[:room]
        size = min(max(1, -(-len(ready) // messages)), self._settings.message_size)
        made = [
            ledger.add(
                connection,
                lane.queue,
                ready[start : start + size],
                self._settings.republish_after,
                now=now,
            )
            for start in range(0, len(ready), size)
        ]
        return made, len(found) == room + len(newest)

    def _publish(self, fresh: Sequence[Dispatch], late: Sequence[Dispatch]) -> set[int]:
        """Send; take back the new rows of messages that certainly went nowhere.

        Returns the ids of the others.
        """
        out: set[int] = set()
        try:
            for dispatch in (*fresh, *late):
                out.add(dispatch.id)
                try:
                    self._publisher.publish(dispatch.queue, dispatch.id, dispatch.ids)
                except PublishError as error:
                    if error.certain:
                        out.discard(dispatch.id)
                    if not isinstance(error, NoQueueError):  # that one is of this queue alone
                        self._probe_first = True
                        raise
                    log.info("%s", error)
        finally:
            nowhere = [dispatch.id for dispatch in fresh if dispatch.id not in out]
            if nowhere:
                with self._database.begin() as connection:
                    ledger.finish(connection, *nowhere)
        return out


def tidy(
    connection: Connection,
    found: Sequence[DueTask],
    names: set[str],
    settings: Settings,
    swept: list[Notice],
    *,
    now: datetime | None = None,
) -> list[int]:
    """Return the ids that may run; sweep what must not run, and park what nobody knows.

    What there is to tell of the swept ones is added to ``swept``; it is true after the COMMIT.
    """
    unknown: dict[str, list[int]] = defaultdict(list)
    gone: list[int] = []
    ready: list[int] = []
    for task in found:
        if not task.may_run:
            gone.append(task.id)
        elif task.name not in names:
            unknown[task.name].append(task.id)
        else:
            ready.append(task.id)
    if gone:
        gone = list(sweep(connection, gone, now=now))
        if HOOKS.wanted:
            swept += [of_outline(o, Kind.RELEASED) for o in browse.outlines(connection, gone)]
    for name, ids in unknown.items():
        reason = f"no live worker of this queue has a handler named {name}"
        park(connection, ids, reason, settings.park_for, now=now)
    return ready
