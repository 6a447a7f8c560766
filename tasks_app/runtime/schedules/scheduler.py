"""The scheduler: creates the tasks of schedules that are due."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.operations import Author
from tasks_app.domain.schedules.misfire import (
    DueInstants,
    Fired,
    Overlap,
    OverlapVerdict,
    due_instants,
    judge_overlap,
    parse_missed,
)
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.domain.tasks.records import TaskRow
from tasks_app.pool import scheduling
from tasks_app.pool.scheduling import Instant, ScheduleUpdate
from tasks_app.pool.tasks.cancel import cancel
from tasks_app.pool.tasks.create import create_many
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.encryption.values import sealed_rows
from tasks_app.runtime.handlers.registry import HANDLERS

log = quiet_logger(__name__)
TOGETHER = 100  # schedules in one transaction
PASSES = 20  # transactions in a row: the leader has a lease to renew
QUEUED_EVERY = timedelta(seconds=1)  # how often an instant is checked that waits for a task's end


class Scheduler:
    """Any number may run: a schedule that one of them has locked, the others skip."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rng = Random()  # noqa: S311  jitter, not a secret

    def next_in_s(self, *, now: datetime | None = None) -> float | None:
        """Return in how many seconds to run; negative: now. None: nothing is scheduled."""
        with self._database.single() as connection:
            return scheduling.next_fire_in_s(connection, now=now)

    def run_once(self, *, now: datetime | None = None) -> int:
        """Fire what is due; return how many schedules were handled."""
        number = 0
        for _ in range(PASSES):
            handled = self._pass(now)
            number += handled
            if not handled:
                break
        return number

    def _pass(self, now: datetime | None) -> int:
        """Fire some schedules in one transaction; one broken row does not stop the others."""
        locked: list[int] = []
        try:
            self._fire(locked, TOGETHER, now)
        except DBAPIError as error:
            if error.connection_invalidated or not locked:
                raise
            log.warning("schedules are fired one by one: %s", first_line(error))
            return sum(self._fire_alone(schedule_id, now) for schedule_id in locked)
        return len(locked)

    def _fire_alone(self, schedule_id: int, now: datetime | None) -> bool:
        """Fire one schedule; return whether this pass is done with it."""
        try:
            self._fire([], 1, now, only=schedule_id)
        except (DataError, IntegrityError) as error:
            with self._database.begin() as connection:
                _mark_broken(connection, schedule_id, first_line(error))
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            log.warning("schedule %s is fired later: %s", schedule_id, first_line(error))
            return False
        return True

    def _fire(
        self, locked: list[int], most: int, now: datetime | None, only: int | None = None
    ) -> None:
        """Fire what is due, in one transaction; ``locked`` gets the ids, also if it fails."""
        with self._database.begin() as connection:
            schedules, clock = scheduling.lock_due(connection, most, only=only, now=now)
            locked += [schedule.id for schedule in schedules]
            if clock is None:
                return
            single = [each.id for each in schedules if each.overlap != Overlap.ALLOW]
            live = scheduling.live_tasks(connection, single) if single else {}
            entries: dict[Instant, Fired] = {}
            rows: dict[Instant, TaskRow] = {}
            plans: list[tuple[Schedule, DueInstants, OverlapVerdict]] = []
            for schedule in schedules:
                try:
                    due = _due(schedule, clock)
                    verdict = judge_overlap(
                        Overlap(schedule.overlap),
                        due.instants,
                        schedule.queued_at,
                        busy=schedule.id in live,
                    )
                    made = {
                        (schedule.id, at): schedule.task_row(at, self._rng) for at in verdict.made
                    }
                except (InvalidTaskError, ValueError) as error:
                    _mark_broken(connection, schedule.id, str(error))
                    continue
                rows |= made
                entries |= dict.fromkeys(made, Fired.MADE)
                entries |= {(schedule.id, at): why for at, why in verdict.without.items()}
                if verdict.queued not in (None, schedule.queued_at):
                    entries[schedule.id, verdict.queued] = Fired.QUEUED
                if verdict.cancels:
                    for task_id in live[schedule.id]:
                        cancel(connection, task_id, by=Author(f"schedule {schedule.id}"), now=now)
                plans.append((schedule, due, verdict))
            tasks = create_tasks(connection, entries, rows, now=now)
            standings = [_standing(*plan, tasks, clock) for plan in plans]
            scheduling.save_updates(connection, standings)


def create_tasks(
    connection: Connection,
    entries: dict[Instant, Fired],
    rows: dict[Instant, TaskRow],
    *,
    over: Sequence[Fired] = (Fired.QUEUED,),
    now: datetime | None = None,
) -> dict[Instant, int | None]:
    """Enter instants, and create the tasks of those that were not entered before.

    Returns the task of each; None: another task has its unique_key.
    """
    free = scheduling.record_fires(connection, entries, over=over, now=now)
    made = sealed_rows([rows[instant] for instant in free], HANDLERS.encrypted)
    ids = create_many(connection, made, now=now)
    tasks = {i: int(id_) if id_.created else None for i, id_ in zip(free, ids, strict=True)}
    scheduling.record_fired_tasks(connection, tasks)
    return tasks


def _due(schedule: Schedule, clock: datetime) -> DueInstants:
    since = schedule.next_run_at
    if since is None or since > clock:  # only a queued instant is due
        return DueInstants([], since)
    missed = parse_missed(schedule.missed)
    return due_instants(schedule.timing, missed, since=since, now=clock, until=schedule.ends_at)


def _standing(
    schedule: Schedule,
    due: DueInstants,
    verdict: OverlapVerdict,
    tasks: dict[Instant, int | None],
    clock: datetime,
) -> ScheduleUpdate:
    made = {at: tasks[schedule.id, at] for at in verdict.made if (schedule.id, at) in tasks}
    outcomes: dict[datetime, Fired] = dict(verdict.without)
    outcomes |= {at: Fired.SKIPPED if task is None else Fired.MADE for at, task in made.items()}
    look_at = due.next_at
    if verdict.queued is not None:
        look_at = min(clock + QUEUED_EVERY, look_at or clock + QUEUED_EVERY)
        outcomes[verdict.queued] = Fired.QUEUED
    nothing = not due.instants and schedule.queued_at is None
    newest = outcomes[max(outcomes)] if outcomes else Fired.MISSED if nothing else None
    return ScheduleUpdate(
        id=schedule.id,
        next_at=due.next_at,
        look_at=look_at,
        queued_at=verdict.queued,
        last_run_at=max((at for at, task in made.items() if task is not None), default=None),
        last_task_id=max((task for task in made.values() if task is not None), default=None),
        last_outcome=newest,  # of the newest instant; None: no change
    )


def _mark_broken(connection: Connection, schedule_id: int, why: str) -> None:
    log.error("schedule %s is broken and does not fire any more: %s", schedule_id, why)
    scheduling.mark_broken(connection, schedule_id, why[:500])
