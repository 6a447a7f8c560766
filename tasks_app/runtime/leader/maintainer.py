"""The maintainer: makes and drops partitions, prunes lists, removes unused large values."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.pool import alerts, events, scheduling
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.leader_lease import MAINTAIN, Rank
from tasks_app.pool.flow_control import order_and_limits
from tasks_app.pool.locks.holders import prune_locks
from tasks_app.pool.retention import add_partition, has_strays, missing_partitions
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.tables import database_now
from tasks_app.pool.task_groups import prune_groups
from tasks_app.pool.tasks import run_records, transfer, unique_keys
from tasks_app.pool.tasks.large_values import FIRST, LOOKED_AT, remove_lost, unknown_values
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.large_values import Begin, LargeStoreError, LargeValues
from tasks_app.runtime.leader.leadership import Leadership
from tasks_app.runtime.leader.rescuer import end_lost_batches
from tasks_app.runtime.leader.retention import Pruned, Retention

log = quiet_logger(__name__)
EVERY = timedelta(hours=1)
LONGEST_RUN = timedelta(minutes=2)  # then another takes over from a maintainer that died
LOCK_NOT_AVAILABLE = "55P03"
FORGET_WORKERS_AFTER = timedelta(hours=1)
FORGET_FIRES_AFTER = timedelta(days=30)  # from then on nothing tells whether to backfill an instant
FORGET_GROUPS_AFTER = timedelta(days=30)
FORGET_IMPORTS_AFTER = timedelta(days=90)
FORGET_ALERTS_AFTER = FORGET_EVENTS_AFTER = timedelta(days=30)  # if it has no settings
LOOK_EVERY_S, AGAIN_AFTER_S = 10.0, 60.0  # between two checks; after a failure
PRUNE_FOR_S = 0.25  # the maintainer may have to scan; the rest waits for the next check
ROWS_AT_ONCE = 2_000


class Maintainer:
    """Any number may run; each partition is made in a transaction of its own."""

    def __init__(
        self, database: Database, holder: str = "by hand", *, settings: Settings | None = None
    ) -> None:
        self._database = database
        self._keep_alerts = settings.keep_alerts if settings else FORGET_ALERTS_AFTER
        self._keep_events = settings.keep_events if settings else FORGET_EVENTS_AFTER
        self._retention = Retention(settings, database) if settings else None
        self._large = LargeValueUpkeep(LargeValues(settings), database.begin) if settings else None
        self._lead = Leadership(database, MAINTAIN, holder, rank=Rank.STANDBY, ttl=LONGEST_RUN)
        self._check_at = 0.0

    def run_if_due(self) -> None:
        """Maintain if the last run is an hour ago; a failure is logged, and repeated soon."""
        if time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + LOOK_EVERY_S
        try:
            end_lost_batches(self._database)
        except Exception as error:
            log.warning("lost batches could not be checked, again soon: %s", first_line(error))
        try:
            if self._is_due() and self._lead.hold() and self._is_due():
                _, left = self._make_partitions()
                if left:
                    raise TimeoutError(f"{left} partitions are still to be made")
                if self._prune():
                    self._lead.done()
                    if self._large is not None:
                        self._large.start_outside()
                    log.info("maintenance is done")
        except Exception as error:
            self._check_at = time.monotonic() + AGAIN_AFTER_S
            log.warning("maintenance failed, again in %g s: %s", AGAIN_AFTER_S, first_line(error))
        finally:
            self._lead.release()

    def run_once(self, *, now: datetime | None = None) -> int:
        """Make what is missing, even if others do too; return the number of partitions made."""
        made, _ = self._make_partitions(now)
        self._prune_lists(now=now)
        return made

    def _is_due(self) -> bool:
        with self._database.begin() as connection:
            seen = leader_lease.read_lease(connection, MAINTAIN)
        return seen is None or seen.idle is None or seen.idle >= EVERY

    def _make_partitions(self, now: datetime | None = None) -> tuple[int, int]:
        """Return how many partitions were made, and how many are left as settles hold one up."""
        with self._database.begin() as connection:
            heartbeats.prune(connection, FORGET_WORKERS_AFTER, now=now)
            if has_strays(connection):
                log.error(
                    "task_completed_default holds rows: partitions were missing. "
                    "Run maintenance daily; when they are old, those rows go one by one."
                )
            missing = missing_partitions(connection, now=now)
        made = 0
        for day in missing:
            try:
                with self._database.begin() as connection:
                    add_partition(connection, day)
                made += 1
            except DBAPIError as error:
                state = getattr(error.orig, "sqlstate", None)
                log.warning("partition of %s not made now (SQLSTATE %s)", day.date(), state)
                if state == LOCK_NOT_AVAILABLE:
                    break
        return made, len(missing) - made

    def _prune(self) -> bool:
        """Remove what is old, the lists first; return whether all of it is gone."""
        if not self._prune_lists(PRUNE_FOR_S):
            return False
        if self._large is not None and not self._large.run(PRUNE_FOR_S):
            return False
        pruned = self._retention.run(PRUNE_FOR_S) if self._retention else Pruned()
        if pruned.in_use:  # each try may hold settles up for a moment
            self._check_at = time.monotonic() + AGAIN_AFTER_S
        return not (pruned.more or pruned.in_use)

    def _prune_lists(self, for_s: float = float("inf"), *, now: datetime | None = None) -> bool:
        """Remove old rows of each list, even if one is refused; return whether all are gone."""
        ends, most = time.monotonic() + for_s, ROWS_AT_ONCE
        lists: dict[str, Callable[[Connection], int]] = {
            "fires": lambda c: scheduling.prune_fires(c, FORGET_FIRES_AFTER, most, now=now),
            "keys": lambda c: unique_keys.prune_keys(c, most, now=now),
            "locks": lambda c: prune_locks(c, most, now=now),
            "gates": lambda c: order_and_limits.prune_gates(c, most, now=now),
            "groups": lambda c: prune_groups(c, FORGET_GROUPS_AFTER, most, now=now),
            "events": lambda c: events.prune(c, self._keep_events, most, now=now),
            "progress": lambda c: run_records.prune_checkpoints(c, most, now=now),
            "alerts": lambda c: alerts.prune(c, self._keep_alerts, most, now=now),
            "imports": lambda c: transfer.prune(c, FORGET_IMPORTS_AFTER, most, now=now),
        }

        def prune(connection: Connection, names: Sequence[str]) -> int:
            return lists[names[0]](connection)

        while lists:
            for name in list(lists):
                with self._database.begin() as c:
                    gone = row_by_row(c, [name], partial(prune, c), "pruning of lists")
                if sum(gone) < most:
                    del lists[name]
            if time.monotonic() >= ends:
                break
        return not lists


# An object store gets a value before its transaction commits, which may take no longer.
LARGE_VALUE_GRACE = timedelta(days=1)


class LargeValueUpkeep:
    """One process's; any number may run."""

    def __init__(self, values: LargeValues, begin: Begin, *, most: int = LOOKED_AT) -> None:
        self._values = values
        self._begin = begin
        self._most = most
        self._after: UUID = FIRST
        self._thread: threading.Thread | None = None

    def run(self, for_s: float = float("inf")) -> bool:
        """Remove unused values from the database; return whether all were checked."""
        ends = time.monotonic() + for_s
        while True:
            with self._begin() as connection:
                after, gone = remove_lost(connection, self._after, most=self._most)
            if gone:
                log.info("removed %s large values that no task needs", gone)
            self._after = after or FIRST
            if after is None:
                return True
            if time.monotonic() >= ends:
                return False

    def start_outside(self) -> None:
        """Check the object store in a thread: it may be slow, or hang."""
        if not self._values.is_outside:
            return
        if self._thread is not None and self._thread.is_alive():
            log.warning("the last check of the object store of large values still runs")
            return
        self._thread = threading.Thread(
            target=self._try_outside, name="tasks_app large values", daemon=True
        )
        self._thread.start()

    def _try_outside(self) -> None:
        try:
            self.run_outside()
        except Exception as error:  # another text may hold anything
            text = error if isinstance(error, LargeStoreError) else type(error).__name__
            log.warning("the object store was not checked, again in an hour: %s", text)

    def run_outside(self) -> None:
        """Remove from the object store what no committed row refers to."""
        store = self._values.store
        with self._begin() as connection:
            before = database_now(connection) - LARGE_VALUE_GRACE
        keys = iter(store.keys(before))
        while some := list(islice(keys, self._most)):
            ids = []
            for key in some:
                with suppress(ValueError):  # such a file is not ours
                    ids.append(UUID(hex=key))
            with self._begin() as connection:
                lost = unknown_values(connection, ids)
            self._values.remove(lost)
