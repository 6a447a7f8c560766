"""The maintainer: partitions made ahead, old ones dropped, lists kept short."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import brief
from tasks_app.pool import alerts
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.leader_lease import MAINTAIN, Rank
from tasks_app.pool.flow_control import order_and_limits
from tasks_app.pool.groups.prune import prune as prune_groups
from tasks_app.pool.locks.prune import prune as prune_locks
from tasks_app.pool.retention.partitions import add_partition, has_strays, missing_partitions
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.schedules import fire
from tasks_app.pool.tasks import run_records
from tasks_app.pool.tasks import transfer
from tasks_app.pool.tasks import unique_keys
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.large_values.upkeep import LargeValueUpkeep
from tasks_app.runtime.large_values import LargeValues
from tasks_app.runtime.leader.leadership import Leadership
from tasks_app.runtime.leader.lost_batches import end_lost
from tasks_app.runtime.leader.retention import Pruned, Retention

log = quiet_logger(__name__)

EVERY = timedelta(hours=1)
LONGEST_RUN = timedelta(minutes=2)
"""When somebody else takes over from a maintainer that died half way."""
PRUNES = "pruning of lists"
LOCK_NOT_AVAILABLE = "55P03"
FORGET_WORKERS_AFTER = timedelta(hours=1)
FORGET_FIRES_AFTER = timedelta(days=30)
"""Before that, the past of a schedule cannot be filled up any more: nobody knows what was made."""
FORGET_GROUPS_AFTER = timedelta(days=30)
FORGET_IMPORTS_AFTER = timedelta(days=90)
FORGET_ALERTS_AFTER = timedelta(days=30)
"""Of a maintainer that was given no settings."""


@dataclass(frozen=True, slots=True)
class MaintenanceTiming:
    """How often the maintainer looks, and how much it does at a time."""

    look_every_s: float = 10.0
    again_after_s: float = 60.0
    """After a failure. There are 14 days, but a lock of a second should not cost an hour."""
    prune_for_s: float = 0.25
    """The maintainer may have to scan. The rest waits for the next look."""
    rows_at_once: int = 2_000


class Maintainer:
    """Any number may run; each partition is made in a transaction of its own."""

    def __init__(
        self,
        database: Database,
        holder: str = "by hand",
        *,
        settings: Settings | None = None,
        timing: MaintenanceTiming = MaintenanceTiming(),
    ) -> None:
        self._timing = timing
        self._database = database
        self._keep_alerts = settings.keep_alerts if settings else FORGET_ALERTS_AFTER
        self._retention = Retention(settings, database) if settings else None
        self._large = LargeValueUpkeep(LargeValues(settings), database.begin) if settings else None
        self._lead = Leadership(database, MAINTAIN, holder, rank=Rank.STANDBY, ttl=LONGEST_RUN)
        self._look_at = 0.0

    def run_if_due(self) -> None:
        """Maintain if nobody did so for an hour; whatever fails is tried again soon."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + self._timing.look_every_s
        self._end_lost()
        try:
            if self._is_due() and self._lead.hold() and self._is_due():
                _, left = self._run()
                if left:
                    raise TimeoutError(f"{left} partitions are still to be made")
                if self._prune():
                    self._lead.done()
                    if self._large is not None:
                        self._large.start_outside()
                    log.info("maintenance is done")
        except Exception as error:
            self._look_at = time.monotonic() + self._timing.again_after_s
            again_after_s = self._timing.again_after_s
            log.warning("maintenance failed, again in %g s: %s", again_after_s, brief(error))
        finally:
            self._lead.release()

    def _end_lost(self) -> None:
        try:
            end_lost(self._database)
        except Exception as error:
            log.warning("lost batches could not be looked for, again soon: %s", brief(error))

    def _prune(self) -> bool:
        """Remove what is old, the lists first; return whether all of it is gone."""
        if not self._prune_lists(self._timing.prune_for_s):
            return False
        if self._large is not None and not self._large.run(self._timing.prune_for_s):
            return False
        pruned = self._retention.run(self._timing.prune_for_s) if self._retention else Pruned()
        if pruned.in_use:  # each try may hold settles up for a moment
            self._look_at = time.monotonic() + self._timing.again_after_s
        return not (pruned.more or pruned.in_use)

    def _is_due(self) -> bool:
        with self._database.begin() as connection:
            seen = leader_lease.read(connection, MAINTAIN)
        return seen is None or seen.idle is None or seen.idle >= EVERY

    def run_once(self, *, now: datetime | None = None) -> int:
        """Make what is missing, even if others do too; return the number of partitions made."""
        made, _ = self._run(now)
        self._prune_lists(now=now)
        return made

    def _run(self, now: datetime | None = None) -> tuple[int, int]:
        """Return how many partitions were made, and how many are left.

        One that open settles hold up costs a second; it and the others are left for later, because
        the maintainer may have to scan.
        """
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

    def _prune_lists(self, for_s: float = float("inf"), *, now: datetime | None = None) -> bool:
        """Remove unused keys, old instants and groups; return whether all of it is gone."""
        ends, most = time.monotonic() + for_s, self._timing.rows_at_once
        lists: dict[str, Callable[[Connection], int]] = {
            "fires": lambda c: fire.prune(c, FORGET_FIRES_AFTER, most, now=now),
            "keys": lambda c: unique_keys.prune(c, most, now=now),
            "locks": lambda c: prune_locks(c, most, now=now),
            "gates": lambda c: order_and_limits.prune(c, most, now=now),
            "groups": lambda c: prune_groups(c, FORGET_GROUPS_AFTER, most, now=now),
            "progress": lambda c: run_records.prune(c, most, now=now),
            "alerts": lambda c: alerts.prune(c, self._keep_alerts, most, now=now),
            "imports": lambda c: transfer.prune(c, FORGET_IMPORTS_AFTER, most, now=now),
        }
        while lists:
            for name, prune in list(lists.items()):
                if self._prune_list(name, prune) < most:
                    del lists[name]
            if time.monotonic() >= ends:
                break
        return not lists

    def _prune_list(self, name: str, prune: Callable[[Connection], int]) -> int:
        """Return how many rows went; what is refused in one list stops no other."""
        with self._database.begin() as connection:
            return sum(row_by_row(connection, [name], lambda _: prune(connection), PRUNES))
