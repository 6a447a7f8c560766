"""The count keeper: one process adds counters up each minute, and compares the hours that are over.

It does so under the lease of maintenance; how far it came is a note in that lease, written in the
same transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import brief
from tasks_app.pool.connection import clock
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.leader_lease import MAINTAIN, Lease, Rank
from tasks_app.pool.statistics.reconcile import reconcile
from tasks_app.pool.statistics.roll_up import CountRetention, hour_of, roll_up
from tasks_app.runtime.db.database import Database

log = quiet_logger(__name__)

EVERY = timedelta(minutes=1)
HOUR = timedelta(hours=1)
AGAIN_S = 10.0
"""When a process looks again that found another at work, or the minute not over."""
LONGEST = timedelta(minutes=2)
RECONCILED_AFTER = timedelta(minutes=5)
"""After the end of an hour: by then its last parts are added up."""
MOST_HOURS = timedelta(hours=24)
"""Hours that are made up for, if nobody did it: after an upgrade, say."""
ROLLED_UP, RECONCILED = "tasks_app: counts rolled up", "tasks_app: counts reconciled"
"""Notes in the lease: when the last roll-up began, and until when hours are reconciled."""

Notes = dict[str, str]


class CountKeeper:
    """A duty of whoever leads; any number may try."""

    def __init__(self, settings: Settings, database: Database, holder: str) -> None:
        self._kept = CountRetention(
            settings.keep_minute_counts, settings.keep_hour_counts, settings.keep_day_counts
        )
        self._database = database
        self._holder = holder
        self._look_at = 0.0

    def run_if_due(self) -> None:
        """Add up, if nobody did so in the last minute. Nothing is raised."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + AGAIN_S
        try:
            self.run_once()
        except Exception as error:
            log.warning("counters could not be added up, again soon: %s", brief(error))

    def run_once(self, *, now: datetime | None = None) -> bool:
        """Add up, and compare an hour if one is over; False: another process has done so."""
        with self._database.begin() as connection:
            lease = leader_lease.read(connection, MAINTAIN, now=now)
            at = datetime.fromtimestamp(clock.tell(connection, now=now), UTC)
        since = _noted(lease, ROLLED_UP)
        if since is not None and since <= at < since + EVERY:
            return False
        return self._in_turn(self._roll_up, now) and self._in_turn(self._reconcile, now)

    def _in_turn(
        self, duty: Callable[[Connection, Lease, datetime | None], Notes], now: datetime | None
    ) -> bool:
        """Do it and note it in one transaction, which holds the lease; False: another holds it."""
        token = uuid4()
        with self._database.begin() as connection:
            lease = leader_lease.hold(
                connection,
                MAINTAIN,
                holder=self._holder,
                token=token,
                rank=Rank.STANDBY,
                ttl=LONGEST,
                now=now,
            )
            if lease is None:
                return False
            notes = duty(connection, lease, now)
            if notes:
                leader_lease.note(connection, MAINTAIN, token, notes)
            leader_lease.release(connection, MAINTAIN, token)
        return True

    def _roll_up(self, connection: Connection, lease: Lease, now: datetime | None) -> Notes:
        rolled = roll_up(connection, _noted(lease, ROLLED_UP), self._kept, now=now)
        return {ROLLED_UP: rolled.until.isoformat()}

    def _reconcile(self, connection: Connection, lease: Lease, now: datetime | None) -> Notes:
        at = datetime.fromtimestamp(clock.tell(connection, now=now), UTC)
        first = hour_of(at) - MOST_HOURS
        hour = max(first, _noted(lease, RECONCILED) or first)
        if at < hour + HOUR + RECONCILED_AFTER:
            return {}
        missing = reconcile(connection, hour)
        if missing:
            log.info("%s ends of tasks were not counted in the hour of %s", missing, hour)
        return {RECONCILED: (hour + HOUR).isoformat()}


def _noted(lease: Lease | None, name: str) -> datetime | None:
    text = lease.notes.get(name) if lease else None
    return datetime.fromisoformat(text) if isinstance(text, str) else None
