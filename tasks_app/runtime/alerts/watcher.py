"""The watcher: a thread of processes that run anyway. Any number may watch; one looks at a time.

Who looks takes the turn, and writes down what it saw only if nobody took it since: an older look of
a process that was stopped meanwhile would open and close alerts again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import uuid4

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import brief
from tasks_app.pool.alerts import turn
from tasks_app.runtime.alerts.channels import Send, channels, is_wanted
from tasks_app.runtime.alerts.watch import deliver, look, record, tell_news
from tasks_app.runtime.db.database import Database

log = quiet_logger(__name__)

EVERY = timedelta(seconds=10)
TTL = timedelta(seconds=30)
"""After how long another one looks, if this one died meanwhile."""
JOIN_S = 1.0


class Watcher:
    """One process's; it makes its thread when it is started, never before a fork."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        holder: str,
        *,
        every: timedelta = EVERY,
        to: Mapping[str, Send] | None = None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._holder = holder
        self._every = every
        self._channels = to
        self._unread: set[str] = set()
        self._pid = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch from now on, if a channel is configured; harmless if it does already."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        if is_wanted(self._settings):
            self._over = threading.Event()
            self._thread = threading.Thread(
                target=self.run, args=(self._over,), name="tasks_app alerts", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread; what it is about to send may be sent again by another."""
        self._over.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(JOIN_S)

    def run(self, over: threading.Event) -> None:
        """Watch until it is over."""
        failures = 0
        while not over.is_set():
            try:
                self.watch_once()
                failures = 0
            except Exception as error:
                failures += 1
                if failures & (failures - 1) == 0:  # the 1st, 2nd, 4th, 8th … time
                    log.warning("alerts failed %s times in a row: %s", failures, brief(error))
            over.wait(self._every.total_seconds())

    def watch_once(self) -> int:
        """Look, if nobody did lately, and send what is due; return how many messages went out.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer, or this role may not.
        """
        token = uuid4()
        with self._database.begin() as connection:
            ours = turn.take(
                connection, holder=self._holder, token=token, every=self._every * 0.9, ttl=TTL
            )
        if ours:
            seen = look(self._database.engine, self._settings)
            self._say_unread(seen.unread)
            with self._database.begin() as connection:
                if turn.end(connection, token):
                    tell_news(connection)
                    record(connection, *seen)
        if self._channels is None:
            self._channels = channels(self._settings)
        return deliver(self._database.engine, self._channels)

    def _say_unread(self, unread: Sequence[str]) -> None:
        """Say once which rules this role may not read, or took too long to."""
        news = set(unread) - self._unread
        self._unread = set(unread)
        if news:
            log.warning(
                "rules of alerts that cannot be read: %s. Give this role its grants again: "
                "tasks-app grants admin",
                ", ".join(sorted(news)),
            )
