"""PoolScheduler: beat scans the pool itself, and sends the events of tasks that no worker holds."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import defaultdict, deque
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from celery import Celery
from celery.beat import ScheduleEntry, Scheduler
from sqlalchemy.exc import SQLAlchemyError

from tasks_app.broker.checks import check_environment
from tasks_app.broker.defaults import MAINTAIN, SCAN
from tasks_app.broker.events import SILENT_S, EventPipe, EventWriter, bursts, events_of, publish
from tasks_app.broker.processes import beat_leader
from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.durations import to_the_second
from tasks_app.domain.errors import PublishError
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import is_unanswered, patience_s
from tasks_app.runtime.health_files import BEAT, Liveness
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.notify import Listener
from tasks_app.runtime.scan import AGAIN_S
from tasks_app.runtime.scoreboard import SLOTS_VARIABLE, Scoreboard

log = quiet_logger(__name__)
STANDBY_S = 0.5  # between two ticks of a beat that does not lead
LONGEST_WAIT_S = 1.0  # between two ticks of the leader, which has to renew a lease of seconds
WAITED_S = 1e-6
"""Returned after a wait of our own: Celery's periodic work needs a pause, however short."""


class PoolScheduler(Scheduler):
    """Celery's scheduler, which runs our two entries here instead of sending them."""

    sync_every = 180
    producer = None
    """Celery creates one before each tick, and waits for a broker that is away."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._again_at: float | None = None
        self._leads = False
        self._listening: ExitStack | None = None
        self._noticed = threading.Event()
        self._scanned_at = 0.0
        self._next_tick_s = STANDBY_S
        self._failures = 0
        settings = load_settings()
        good_for_s = (settings.healthy_for + settings.scan_interval).total_seconds()
        self._liveness = Liveness(BEAT, f"beat@{socket.gethostname()}", good_for_s=good_for_s)
        self._trouble = self._note = ""
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        settings = load_settings()
        check_environment(self.app, settings)
        self._interval_s = settings.scan_interval.total_seconds()
        self._hints = settings.hints
        self._leader = beat_leader(self.app)
        report_from_beat(self.app, settings, self._leader.database)
        self.install_default_entries(self.schedule)
        self.merge_inplace(self.app.conf.beat_schedule)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Run what is due if we lead; return the seconds until the next tick."""
        self._liveness.beat(self._trouble, self._note)
        if not self._lead():
            return self._next_tick_s
        wait_s = float(super().tick(*args, **kwargs))
        if self._again_at is not None and time.monotonic() >= self._again_at:
            self._run_inline(SCAN)
        if self._again_at is not None:
            wait_s = min(wait_s, max(0.0, self._again_at - time.monotonic()))
        wait_s = min(wait_s, LONGEST_WAIT_S)
        if self._listening is None or wait_s == 0:
            return wait_s
        if self._noticed.wait(wait_s):  # here a notice ends the wait; in Celery's it could not
            self._noticed.clear()
            self._again_at = self._scanned_at + AGAIN_S
        return WAITED_S

    def adjust(self, n: float, drift: float = 0.0) -> float:
        """Wake up on time. Celery wakes 10 ms early, and polls without a pause until then."""
        return float(super().adjust(n, drift))

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Run our entries inline; send all others as Celery does, if we still lead."""
        if entry.task in (SCAN, MAINTAIN):
            self._run_inline(entry.task)
        elif self._record_firing(entry):
            super().apply_entry(entry, producer)

    def close(self) -> None:
        self._leads = False
        self._listen_while_leading()
        if self._leader is not None:
            self._leader.lead.release()
            self._leader.duties.stop()
        super().close()
        self._liveness.end()

    def _lead(self) -> bool:
        """Renew the lead. A beat that reaches neither the broker nor the database does not lead."""
        led, self._leads, self._next_tick_s = self._leads, False, STANDBY_S
        try:
            self._leader.probe()
            self._note = ""
            self._leads = self._leader.hold()
            self._trouble = self._trouble if self._leads else ""
        except Exception as error:
            self._record_failure("leading", error)
            if not isinstance(error, PublishError):
                self._next_tick_s = patience_s()
        if self._leads and not led:
            log.info("this beat leads")
            self._load_last_runs()
        elif led and not self._leads:
            log.info("this beat stands by")
        self._listen_while_leading()
        return self._leads

    def _load_last_runs(self) -> None:
        held = self._leader.lead.held
        for name, fired_at in held.notes.items() if held else ():
            with suppress(ValueError):  # not written by us
                then = datetime.fromisoformat(str(fired_at)).astimezone(self.app.timezone)
                if name in self.schedule:
                    self.schedule[name].last_run_at = then
        self._again_at = None

    def _listen_while_leading(self) -> None:
        if self._leads and self._listening is None and self._hints:
            self._listening = ExitStack()
            self._listening.enter_context(
                Listener(self._leader.database, lambda _queues: self._noticed.set())
            )
        elif not self._leads and self._listening is not None:
            self._listening.close()
            self._listening = None

    def _record_firing(self, entry: ScheduleEntry) -> bool:
        """Record that the entry fires now; False: another beat leads, and fires it.

        This happens before the entry is sent: a beat that is killed in between never fires it,
        rather than twice.
        """
        fired_at = self.schedule[entry.name].last_run_at
        try:
            if self._leader.lead.note({entry.name: fired_at.isoformat()}):
                return True
        except SQLAlchemyError as error:  # we led a second ago: better twice than never
            self._record_failure(f"recording {entry.name}", error)
            return True
        self._leads = False
        return False

    def _run_inline(self, task: str) -> None:
        """Run one of our entries; the next tick repeats what fails."""
        try:
            if task == SCAN:
                self._scanned_at = time.monotonic()
                again_s = self._leader.scan().again_in(self._interval_s)
                again = again_s < self._interval_s
                self._again_at = time.monotonic() + again_s if again else None
            else:
                self._leader.maintain()
            self._failures, self._trouble = 0, ""
        except Exception as error:
            self._again_at = None
            self._record_failure(task, error)

    def _record_failure(self, what: str, error: Exception) -> None:
        away = isinstance(error, PublishError) or is_unanswered(error)
        self._trouble = "" if away else f"{what} fails ({type(error).__name__})"
        if isinstance(error, PublishError) and not self._note:
            since = to_the_second(datetime.now(UTC))  # noqa: TID251  shown to people
            self._note = f"the broker takes no messages, since {since}"
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:  # the 1st, 2nd, 4th, 8th … time
            log.warning("%s failed %s times in a row: %s", what, self._failures, first_line(error))


def report_from_beat(app: Celery, settings: Settings, database: Database) -> None:
    """Send events from this beat; a beat inside a worker uses the worker's pipe."""
    if settings.events == "off":
        return
    slots = os.environ.get(SLOTS_VARIABLE)
    if slots is None:
        HOOKS.subscribe(BeatReporter(app, settings, database))
    else:
        file = Scoreboard(Path(slots))
        writer = EventWriter(EventPipe.beside(file.path), settings)
        HOOKS.subscribe(writer, while_=lambda: file.reporting)


class BeatReporter:
    """A subscriber with a thread of its own, so that no scan waits for it."""

    def __init__(self, app: Celery, settings: Settings, database: Database) -> None:
        self._app = app
        self._settings = settings
        self._database = database
        # More than 5,000: the oldest are dropped. Events are only shown; the rows are the record.
        self._waiting: deque[Notice] = deque(maxlen=5_000)
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tasks_app events", daemon=True)

    def __call__(self, notice: Notice) -> None:
        self._waiting.append(notice)
        if self._thread.ident is None:
            self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            notices = [self._waiting.popleft() for _ in range(len(self._waiting))]
            try:
                self._send(notices)
            except Exception as error:
                log.warning("events are off for %g s: %s", SILENT_S, type(error).__name__)
                threading.Event().wait(SILENT_S)
                self._waiting.clear()

    def _send(self, notices: list[Notice]) -> None:
        with self._database.begin() as connection:
            alive = heartbeats.live_workers(connection, self._settings.lease)
        node_of = {queue: worker.node for worker in alive for queue in worker.queues}
        by_node: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for notice in notices:
            if notice.queue in node_of:
                by_node[node_of[notice.queue]] += events_of(notice, self._settings.events_shown)
        with self._app.connection_for_write() as connection:
            for node, events in by_node.items():
                dispatcher = self._app.events.Dispatcher(connection, hostname=node)
                for burst in bursts(dispatcher, events, time.monotonic()):
                    publish(dispatcher, burst)
