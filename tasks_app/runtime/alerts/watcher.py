"""A thread that checks the rules, opens and closes alerts, and sends them to the channels."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from uuid import uuid4

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.alerts import Alert, describe_cause, message_of
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.pool import alerts, error_groups
from tasks_app.pool.connection.sessions import read_only_transaction
from tasks_app.runtime.alerts.channels import Send, channels, is_wanted
from tasks_app.runtime.alerts.rules import RULES
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import is_unanswered, sqlstate

log = quiet_logger(__name__)
EVERY = timedelta(seconds=10)
TTL = timedelta(seconds=30)  # then another watcher checks, if this one died meanwhile
JOIN_S = 1.0
LONGEST = timedelta(seconds=10)  # of one statement of a rule
NEW_FOR = timedelta(hours=1)  # older first sightings are no news for the first watcher of a pool
MOST_NEW = 5  # new errors of one check that get a message each


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
        """Watch from now on, if a channel is configured; does nothing if it watches already."""
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
        """End the thread; another watcher may repeat what it is about to send."""
        self._over.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(JOIN_S)

    def run(self, over: threading.Event) -> None:
        failures = 0
        while not over.is_set():
            try:
                self.watch_once()
                failures = 0
            except Exception as error:
                failures += 1
                if failures & (failures - 1) == 0:  # the 1st, 2nd, 4th, 8th … time
                    log.warning("alerts failed %s times in a row: %s", failures, first_line(error))
            over.wait(self._every.total_seconds())

    def watch_once(self) -> int:
        """Check the rules if no watcher did lately, and send; return how many messages went out."""
        token = uuid4()
        with self._database.begin() as connection:
            ours = alerts.begin_check(
                connection, holder=self._holder, token=token, every=self._every * 0.9, ttl=TTL
            )
        if ours:
            found, unread = check_rules(self._database.engine, self._settings)
            new, self._unread = unread - self._unread, unread
            if new:
                log.warning(
                    "rules of alerts that cannot be read: %s. Give this role its grants again: "
                    "tasks-app grants admin",
                    ", ".join(sorted(new)),
                )
            with self._database.begin() as connection:
                if alerts.finish_check(connection, token):
                    report_new_errors(connection)
                    record(connection, found, unread)
        if self._channels is None:
            self._channels = channels(self._settings)
        return deliver(self._database.engine, self._channels)


def check_rules(engine: Engine, settings: Settings) -> tuple[list[Alert], set[str]]:
    """Run each rule read-only; return alerts, and the rules that cannot be read, or not in time."""
    found: list[Alert] = []
    unread: set[str] = set()
    for name, rule in RULES.items():
        try:
            with read_only_transaction(engine, LONGEST) as connection:
                found.extend(rule(connection, settings))
        except DBAPIError as error:
            if is_unanswered(error) or not sqlstate(error):
                raise
            unread.add(name)
    return found, unread


def record(connection: Connection, found: Iterable[Alert], unread: Collection[str]) -> None:
    """Open and close alerts; those of ``unread`` rules stay as they are."""
    seen = {alert.key: alert for alert in found}
    for key in sorted(seen):
        alerts.open_alert(connection, seen[key])
    for key in sorted(alerts.open_keys(connection) - set(seen)):
        if key.partition(":")[0] not in unread:
            alerts.close_alert(connection, key)


def report_new_errors(connection: Connection) -> None:
    """Enter causes of errors that are new, and an event for each, in one transaction."""
    entered = error_groups.record_new_causes(connection)
    news = error_groups.new_causes(connection, entered, NEW_FOR) if entered else []
    events = [
        Alert(
            f"new-error:{each.fingerprint}",
            f"a new error: {describe_cause(each.kind, each.names, each.queues)}",
            f"tasks-app errors show {each.fingerprint}",
        )
        for each in news[:MOST_NEW]
    ]
    if len(news) > MOST_NEW:
        fact = f"{len(news) - MOST_NEW} more new errors were seen at once"
        events.append(Alert("new-error:more", fact, "tasks-app errors"))
    for alert in events:
        alerts.insert_event(connection, alert)


def deliver(engine: Engine, channels: Mapping[str, Send]) -> int:
    """Send what is due; return how many messages are through. A refused one is due again later.

    A channel that refused one gets no other until the next call: its server may hang.
    """
    number, silent = 0, set[str]()
    while True:
        with engine.begin() as connection:
            notice = alerts.take_notice(connection)
        if notice is None:
            return number
        message = message_of(
            notice.key, notice.fact, notice.advice, over=notice.over, alert_id=notice.id
        )
        wanted = notice.to_tell(channels)
        took = [name for name in wanted if name not in silent and channels[name](message)]
        silent.update(set(wanted) - set(took))
        with engine.begin() as connection:
            alerts.mark_sent(connection, notice, took, whole=took == wanted)
        number += took == wanted
