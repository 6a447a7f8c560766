"""Rescues what vanished workers held, sweeps what can run no more, ends lost batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.batch.policies import error_of_batch, status_of_batch
from tasks_app.domain.batch.records import BatchStatus, StepStatus
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import count
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.states import State
from tasks_app.pool import tables
from tasks_app.pool.batch import instances, partition_runs
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.dispatch.set_aside import sweep_all
from tasks_app.pool.runs.leases import rescue_expired
from tasks_app.pool.tasks import browse
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.flow_control.admission import AdmissionControl
from tasks_app.runtime.hooks import HOOKS, NoticeKind, of_outline

log = quiet_logger(__name__)
TOLERATED = 0.1  # of a renewal interval: the database's clock may go forward by so much


class Rescuer:
    """Any number may run; the statement re-checks each lease when it writes."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._admission = AdmissionControl(database)
        self.wait_until = 0.0  # nothing is rescued before, by time.monotonic
        self._last_clock: tuple[float, float] | None = None

    def let_renew(self) -> None:
        """Rescue nothing for one renewal interval: workers may be about to renew."""
        self.wait_until = time.monotonic() + self._settings.renew_every.total_seconds()

    def check_clock(self, answer_s: float, asked_at: float) -> bool:
        """Whether the database's clock went forward by more than time did; then workers may renew.

        After a failover another machine's clock counts. If it is ahead by more than a lease, every
        lease is over at once, and no worker is dead. Call it again and again: ``answer_s`` is its
        answer to a question asked at ``asked_at`` by ``time.monotonic``. A slow answer is no jump;
        a clock that goes back makes leases longer, which does no harm.
        """
        last, self._last_clock = self._last_clock, (answer_s, asked_at)
        if last is None:
            return False
        ahead_s = answer_s - last[0] - (time.monotonic() - last[1])
        if ahead_s <= TOLERATED * self._settings.renew_every.total_seconds():
            return False
        log.warning("the database's clock jumped by %.1f s: no rescue until renewals", ahead_s)
        self.let_renew()
        return True

    def run_once(self, *, now: datetime | None = None) -> dict[int, State]:
        """Rescue what is over; return where each task went.

        After an outage of the database, or a jump of its clock, it waits for one renewal interval:
        workers could not renew meanwhile, and are about to.
        """
        asked_at = time.monotonic()
        if asked_at < self.wait_until:
            return {}
        try:
            with self._database.begin() as connection:
                if self.check_clock(tables.database_time(connection, now=now), asked_at):
                    return {}
                rescued = rescue_expired(
                    connection,
                    lease=self._settings.lease,
                    max_crashes=self._settings.max_crashes,
                    now=now,
                )
                over = [i for i, state in rescued.items() if state is State.FAILED]
                outlines = browse.outlines(connection, list(rescued) if HOOKS.wanted else over)
        except SQLAlchemyError:
            self.let_renew()
            raise
        if rescued:
            self._admission.gone(rescued, now=now)
            log.warning("rescued %s of vanished workers", count(len(rescued), "task"))
            HOOKS.tell(of_outline(outline, NoticeKind.RESCUED) for outline in outlines)
        return rescued


# Rows in a transaction, and transactions in a row; the rest waits for the next scan.
SWEPT_AT_ONCE, SWEEP_ROUNDS = 500, 10


class Sweeper:
    """Any number may run; none waits for another."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._admission = AdmissionControl(database)

    def run_once(self, *, now: datetime | None = None) -> int:
        number = 0
        for _ in range(SWEEP_ROUNDS):
            with self._database.begin() as connection:
                swept = list(sweep_all(connection, SWEPT_AT_ONCE, now=now))
                outlines = browse.outlines(connection, swept) if HOOKS.wanted and swept else []
            self._admission.gone(swept, now=now)
            HOOKS.tell(of_outline(outline, NoticeKind.RELEASED) for outline in outlines)
            number += len(swept)
            if len(swept) < SWEPT_AT_ONCE // 2:  # few are left, or cannot be moved
                break
        return number


LOST_BATCHES_AT_ONCE = 100  # each is a transaction of its own


def end_lost_batches(database: Database) -> list[int]:
    """End steps whose tasks are gone, and with the last of them the instance; return which."""
    with database.begin() as connection:
        found = partition_runs.find_batches_with_lost_steps(connection, LOST_BATCHES_AT_ONCE)
    ended = []
    for batch_id in found:
        with database.begin() as connection:
            end = partial(_end_lost_batch, connection)
            if any(row_by_row(connection, [batch_id], end, "end of batches")):
                ended.append(batch_id)
    return ended


def _end_lost_batch(connection: Connection, ids: Sequence[int]) -> bool:
    (batch_id,) = ids
    batch = instances.lock_if_free(connection, batch_id)
    if batch is None or batch.ended_at is not None:
        return False
    stopping = batch.status is BatchStatus.STOPPING
    lost = partition_runs.find_lost_steps(connection, batch_id)
    for step in lost:
        cause = partition_runs.find_lost_cause(connection, batch_id, step) or "Its tasks are gone"
        error = f"{cause}. Go on with: tasks-app batch restart {batch_id}"
        partition_runs.end_partitions(connection, batch_id, step)
        ended = StepStatus.STOPPED if stopping else StepStatus.FAILED
        instances.change_step(connection, batch_id, step, ended, error=error)
        log.warning("step %s of batch %s was lost: %s", step, batch_id, ended)
    steps = instances.find_steps(connection, batch_id)
    statuses = {name: each.status for name, each in steps.items()}
    if any(each.is_active for each in statuses.values()):
        return bool(lost)
    ends = status_of_batch(statuses, stopping=stopping) or BatchStatus.FAILED
    instances.set_status(connection, batch_id, ends, error_of_batch(statuses))
    return True
