"""Beat's events: of the tasks that it rescues, skips or lets expire, which no worker holds.

It sends them under the name of a worker that serves their queue: under its own name Flower would
show beat as a worker that is never online.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

from celery import Celery

from tasks_app.broker.events.pipe import EventPipe
from tasks_app.broker.events.reporter import SILENT_S, bursts, publish
from tasks_app.broker.events import EventWriter
from tasks_app.broker.events import events_of
from tasks_app.domain.config.settings import Settings
from tasks_app.pool.runs import heartbeats
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.hooks import HOOKS, Notice
from tasks_app.runtime.scoreboard.location import SLOTS_VARIABLE
from tasks_app.runtime.scoreboard.scoreboard import Scoreboard

log = logging.getLogger(__name__)

MOST_WAITING = 5_000
"""Beyond it the oldest are dropped: events are only shown, the rows are the record."""


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
    """A subscriber with its own thread, so that no scan waits for it."""

    def __init__(self, app: Celery, settings: Settings, database: Database) -> None:
        self._app = app
        self._settings = settings
        self._database = database
        self._waiting: deque[Notice] = deque(maxlen=MOST_WAITING)
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tasks_app events", daemon=True)

    def __call__(self, notice: Notice) -> None:
        self._waiting.append(notice)
        if self._thread.ident is None:
            self._thread.start()
        self._wake.set()

    def _work(self) -> None:
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
            alive = heartbeats.live(connection, self._settings.lease)
        node_of = {queue: worker.node for worker in alive for queue in worker.queues}
        events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for notice in notices:
            if notice.queue in node_of:
                events[node_of[notice.queue]] += events_of(notice, self._settings.events_shown)
        with self._app.connection_for_write() as connection:
            for node, told in events.items():
                dispatcher = self._app.events.Dispatcher(connection, hostname=node)
                for burst in bursts(dispatcher, told, time.monotonic()):
                    publish(dispatcher, burst)
