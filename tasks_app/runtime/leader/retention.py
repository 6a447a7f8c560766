"""Retention: deletes what is old enough in short steps, and previews what it would delete."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.config.retention import Keep, format_age
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.states import Pool
from tasks_app.pool import retention
from tasks_app.pool.batch import instances as batches
from tasks_app.pool.operations.audit import note
from tasks_app.pool.retention import DayPartition, Mark
from tasks_app.pool.tables import BATCH, ERROR
from tasks_app.runtime.db.database import Database

log = quiet_logger(__name__)
# SQLSTATEs: another process holds the table; another has detached or dropped it meanwhile.
IN_USE, GONE = "55P03", ("42P01", "42809", "55000")
MOST_BATCHES = 500  # read at a time
# Days in use; then the table itself is in use, and each try may hold settles up.
MOST_REFUSALS = 3


@dataclass(slots=True)
class Pruned:
    """What was removed, and what was not."""

    days: list[str] = field(default_factory=list)  # dropped partitions
    completed: int = 0  # rows of the completed pool that went one by one
    errors: int = 0
    batches: int = 0  # instances of batch jobs, with their partitions and the rows they left out
    lines: int = 0  # of the log of transitions
    in_use: list[str] = field(default_factory=list)  # partitions that another process holds now
    not_ours: bool = False  # the completed pool stays: another role owns its partitions
    more: bool = False  # time was up


class Retention:
    """One process's; any number may run, and come upon the same rows."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._rows = retention.LOOKED_AT
        self._database = database
        self._places: dict[str, retention.Place | None] = {}
        self._warned = False

    def run(self, for_s: float = float("inf")) -> Pruned:
        """Prune until nothing is left, or until a step ends after ``for_s``."""
        ends = time.monotonic() + for_s
        pruned = Pruned()
        for _ in self._steps(pruned):
            if time.monotonic() >= ends:
                pruned.more = True
                break
        if pruned.days or pruned.completed or pruned.errors or pruned.batches:
            log.info(
                "pruned %s days, %s completed rows, %s failed ones and %s batches",
                *(len(pruned.days), pruned.completed, pruned.errors, pruned.batches),
            )
        return pruned

    def run_for(self, by: str) -> Pruned:
        """Prune all for an operator; the audit notes it before and after."""
        words = ("completed", "errors", "batches")
        ages = {word: getattr(self._settings, f"keep_{word}") for word in words}
        with self._database.begin() as connection:
            note(connection, "prune", ages, who=by)
        pruned = self.run()
        answers = {word: getattr(pruned, word) for word in ages}
        with self._database.begin() as connection:
            what = {"days": pruned.days, "in_use": pruned.in_use}
            note(connection, "pruned", what, who=by, number=sum(answers.values()), answers=answers)
        return pruned

    def _steps(self, pruned: Pruned) -> Iterator[None]:
        """Do one short transaction after the other; the caller may stop after any."""
        with self._database.begin() as connection:
            found, now = retention.partitions(connection)
            pruned.not_ours = not retention.owns_partitions(connection)
        if not pruned.not_ours:
            for day in found:
                if len(pruned.in_use) >= MOST_REFUSALS:
                    break
                try:
                    if _is_over(day, self._settings.completed, now):
                        yield from self._drop(day, pruned)
                    elif names := retention.due_names(day, self._settings.completed.early, now):
                        yield from self._thin(names, day, pruned)
                except DBAPIError as error:
                    state = getattr(error.orig, "sqlstate", None)
                    if state == IN_USE:
                        log.info("%s is in use and stays for now", day.name)
                        pruned.in_use.append(day.name)
                        yield
                    elif state not in GONE:
                        raise
            for gone in self._by_age(retention.DEFAULT, self._settings.completed):
                pruned.completed += gone
                yield
        elif not self._warned:
            self._warned = True
            log.warning(
                "Old days of the completed pool stay: this role does not own its partitions. "
                "Run beat, or tasks-app prune, as their owner."
            )
        for gone in self._by_age(ERROR, self._settings.errors):
            pruned.errors += gone
            yield
        for batch_is_gone in self._expired_batches():
            pruned.batches += batch_is_gone
            yield
        more = True
        while more:
            with self._database.begin() as connection:
                gone, more = retention.delete_old_lines(connection, self._settings.keep_transitions)
            pruned.lines += gone
            if gone:
                yield

    def _drop(self, day: DayPartition, pruned: Pruned) -> Iterator[None]:
        if day.attached:
            with self._database.begin() as connection:
                retention.detach_partition(connection, day)
            yield
        after: int | None = day.mark.after
        while after is not None:
            with self._database.begin() as connection:
                after = retention.forget_history(connection, day, after, most=self._rows)
            if after is not None:
                yield
        with self._database.begin() as connection:
            retention.drop_partition(connection, day)
        pruned.days.append(day.name)
        yield

    def _thin(self, names: tuple[str, ...], day: DayPartition, pruned: Pruned) -> Iterator[None]:
        mark = day.mark
        if mark.names != names:
            mark = Mark(names=names, done=mark.done)
        while mark.names:
            with self._database.begin() as connection:
                mark, gone = retention.thin_partition(connection, day, mark, most=self._rows)
            pruned.completed += gone
            yield

    def _by_age(self, pool: str, keep: Keep) -> Iterator[int]:
        place: retention.Place | None = self._places.get(pool)
        while True:
            with self._database.begin() as connection:
                place, gone = retention.delete_old(connection, pool, keep, place, most=self._rows)
            self._places[pool] = place
            if gone or place:
                yield gone
            if place is None:
                return

    def _expired_batches(self) -> Iterator[bool]:
        """Delete one instance after the other; yield after each step whether one is gone."""
        keep, after = self._settings.batches, 0
        while True:
            with self._database.begin() as connection:
                found = batches.find_expired(connection, keep, after, MOST_BATCHES)
            for after in found:
                gone: bool | None = False
                while gone is False:
                    with self._database.begin() as connection:
                        gone = batches.delete_instance_rows(connection, after)
                    yield bool(gone)
            if len(found) < MOST_BATCHES:
                return


def _is_over(day: DayPartition, keep: Keep, now: datetime) -> bool:
    return not day.attached or (keep.longest is not None and day.until <= now - keep.longest)


@dataclass(frozen=True, slots=True)
class RetentionPreview:
    """A partition, or rows of one, that are too old."""

    pool: Pool | None  # None: what batch jobs left, counted by their instances
    what: str
    rows: int
    bytes: int  # of a partition on the disk, with its indexes; of rows their own
    how: str  # ``dropped`` at once, or ``deleted`` row by row
    kept: str  # the age that is over


def preview_retention(connection: Connection, settings: Settings) -> Iterator[RetentionPreview]:
    """Count what is too old. Reads all of it."""
    retention.lift_statement_timeout(connection)
    keep = settings.completed
    found, now = retention.partitions(connection)
    for day in found if retention.owns_partitions(connection) else ():
        if _is_over(day, keep, now):
            rows, _ = retention.count_day(connection, day)
            age = format_age(keep.longest)
            yield RetentionPreview(Pool.COMPLETED, day.name, rows, day.bytes, "dropped", age)
            continue
        for name in retention.due_names(day, keep.early, now):
            rows, size = retention.count_day(connection, day, name)
            if rows:
                what, age = f"{name} in {day.name}", format_age(keep.names[name])
                yield RetentionPreview(Pool.COMPLETED, what, rows, size, "deleted", age)
    for pool, table, kept in (
        (Pool.COMPLETED, retention.DEFAULT, settings.completed),
        (Pool.ERROR, ERROR, settings.errors),
    ):
        rows, size = retention.count_old(connection, table, kept)
        if rows:
            yield RetentionPreview(pool, table, rows, size, "deleted", format_age(kept.shortest))
    expired, size = batches.count_expired(connection, settings.batches)
    if expired:
        age = format_age(settings.batches.shortest)
        yield RetentionPreview(None, BATCH, expired, size, "deleted", age)
