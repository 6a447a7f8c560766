"""Counters of runs: kept by each process, reported, and added up by the leader."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.statistics import (
    BUCKETS,
    LAST_BUCKET,
    MOST_KEYS,
    OTHER,
    CountedOutcome,
    outcome_of,
    trim_histogram,
)
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.domain.tasks.run import ClaimedTask, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool import tables
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.dispatch.leader_lease import MAINTAIN, Lease, Rank
from tasks_app.pool.statistics.parts import CountPart, write_parts
from tasks_app.pool.statistics.roll_up import CountRetention, hour_of, reconcile, roll_up
from tasks_app.runtime.db.database import Database

log = quiet_logger(__name__)
MOST_EARLY = 10_000  # runs kept until the database's time is known: that takes a moment
KEPT_MINUTES = 14  # what could not be written for longer is counted from the pools
_WAITS, _RUNS = 3, 3 + BUCKETS
_SUCCEEDED, _DONE = State.SUCCEEDED, int(CountedOutcome.DONE)
_UNKEPT = int(CountedOutcome.UNKEPT)
_EMPTY = [0] * (3 + 2 * BUCKETS)
Key = tuple[str, str, int]


class TaskCounts:
    """One process's; its threads may count at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Start afresh: a forked process must not write what its parent counted."""
        self.slot: str = uuid4().hex
        self.writing: threading.Lock = threading.Lock()  # several duties may want to write at once
        self._lock = threading.Lock()
        self._offset: float | None = None
        self._minute = 0
        self._early: list[tuple[Key, float, float | None, int | None, int]] = []
        self._minutes: dict[int, dict[Key, list[int]]] = {}
        self._written: dict[tuple[int, Key], int] = {}

    def settled(self, settlements: Iterable[Settlement], states: Mapping[int, State]) -> None:
        now = self._clock()
        with self._lock:
            for one in settlements:  # hot path: a microsecond a task
                state, task = states.get(one.fence.task_id), one.task
                if state is None or task is None:
                    continue
                done = state is _SUCCEEDED
                outcome = _DONE if done else int(outcome_of(state, one.event))
                waited = one.began - task.due_s if done and one.began is not None else None
                self._add((task.name, task.queue, outcome), now, waited, one.run_ms)
                if done and not one.is_kept:
                    self._add((task.name, task.queue, _UNKEPT), now)

    def happened(
        self, outcome: CountedOutcome, number: int = 1, name: str = OTHER, queue: str = OTHER
    ) -> None:
        """Count an event that is not the end of a run."""
        with self._lock:
            self._add((name, queue, int(outcome)), self._clock(), number=number)

    def returned(
        self, tasks: Iterable[ClaimedTask], states: Mapping[int, State], event: Event
    ) -> None:
        """Count the claims among these that came back without an outcome."""
        ended = [Settlement(task.fence, event, 0, 0, task=task) for task in tasks]
        self.settled(ended, states)

    def set_time(self, database_s: float, asked_at: float) -> None:
        """Set the database's time; ``asked_at`` is by our clock."""
        with self._lock:
            self._offset = database_s - asked_at
            early, self._early = self._early, []
            for each in early:
                self._add(*each)

    @property
    def knows_time(self) -> bool:
        return self._offset is not None

    def unwritten(self) -> list[CountPart]:
        """Return the totals that changed since they were written."""
        with self._lock:
            changed = [
                (minute, key, list(cell))
                for minute, cells in self._minutes.items()
                for key, cell in cells.items()
                if self._written.get((minute, key)) != cell[0]
            ]
        return [_part(minute, key, cell) for minute, key, cell in changed]

    def mark_written(self, parts: Iterable[CountPart]) -> None:
        """Note that these totals are in the database; forget minutes that are over."""
        with self._lock:
            for part in parts:
                self._written[part.minute, (part.name, part.queue, part.outcome)] = part.number
            for minute in [m for m in self._minutes if m < self._minute]:
                cells = self._minutes[minute].items()
                if all(self._written.get((minute, key)) == cell[0] for key, cell in cells):
                    self._forget_minute(minute)

    def _add(
        self,
        key: Key,
        at: float,
        waited: float | None = None,
        run_ms: int | None = None,
        number: int = 1,
    ) -> None:
        """Count what happened ``at``, by our clock; ``waited`` lacks the offset of the clocks."""
        if self._offset is None:
            if len(self._early) < MOST_EARLY:
                self._early.append((key, at, waited, run_ms, number))
            return
        cells = self._cells(at + self._offset)
        cell = cells.get(key)
        if cell is None:
            kept = key if len(cells) < MOST_KEYS else (OTHER, OTHER, key[2])
            cell = cells.setdefault(kept, _EMPTY.copy())
        cell[0] += number
        if waited is not None:
            wait_ms, run_ms = max(int((waited + self._offset) * 1000), 0), run_ms or 0
            cell[1] += wait_ms
            cell[2] += run_ms
            cell[_WAITS + min(wait_ms.bit_length(), LAST_BUCKET)] += 1
            cell[_RUNS + min(run_ms.bit_length(), LAST_BUCKET)] += 1

    def _cells(self, at_s: float) -> dict[Key, list[int]]:
        """Return the totals of this minute; late counts of an earlier one go into it, too."""
        minute = int(at_s // 60)
        if minute > self._minute:
            self._minute = minute
            for old in [m for m in self._minutes if m < minute - KEPT_MINUTES]:
                self._forget_minute(old)
        return self._minutes.setdefault(self._minute, {})

    def _forget_minute(self, minute: int) -> None:
        for key in self._minutes.pop(minute):
            self._written.pop((minute, key), None)


def _part(minute: int, key: Key, cell: list[int]) -> CountPart:
    number, wait_ms, run_ms = cell[:_WAITS]
    waits, runs = trim_histogram(cell[_WAITS:_RUNS]), trim_histogram(cell[_RUNS:])
    return CountPart(minute, *key, number, wait_ms, run_ms, waits, runs)


TASK_COUNTS = TaskCounts()
os.register_at_fork(after_in_child=TASK_COUNTS.forget)


class RunCounts:
    """Counts of a child for the parent that waits for it; its threads may count at once."""

    def __init__(self) -> None:
        self._file = -1

    def into(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def add(self, states: Collection[State]) -> None:
        if self._file >= 0:
            lines = [f"{state} {number}\n" for state, number in Counter(states).items()]
            with suppress(OSError):  # a full disk costs the count, and no outcome
                os.write(self._file, "".join(lines).encode())


RUN_COUNTS = RunCounts()


def read_counts(path: Path) -> Counter[State]:
    sums: Counter[State] = Counter()
    for line in path.read_text().splitlines():
        state, _, number = line.partition(" ")
        sums[State(state)] += int(number)
    return sums


# A process that is killed loses so much, until the hour is reconciled with the pools.
REPORT_EVERY_S = 5.0


class CountReport:
    """A duty of the housekeeper; idle, it only reads the clock."""

    def __init__(self, database: Database, counts: TaskCounts = TASK_COUNTS) -> None:
        self._database = database
        self._counts = counts
        self._write_at = 0.0

    def write_counts(self, *, last: bool = False) -> None:
        """Write what has changed, every few seconds, or now if it is the ``last`` time."""
        now = time.monotonic()
        if now < self._write_at and not last:
            return
        self._write_at = now + REPORT_EVERY_S
        with self._counts.writing:
            if self._counts.knows_time and not self._counts.unwritten():
                return
            with self._database.begin() as connection:
                asked_at = time.monotonic()
                self._counts.set_time(tables.database_time(connection), asked_at)
                parts = self._counts.unwritten()
                if parts:
                    write_parts(connection, self._counts.slot, parts)
            self._counts.mark_written(parts)


ADD_UP_EVERY = timedelta(minutes=1)
HOUR = timedelta(hours=1)
AGAIN_S = 10.0  # when a process tries again that found another at work, or the minute not over
LONGEST = timedelta(minutes=2)
RECONCILED_AFTER = timedelta(minutes=5)  # an hour's end: by then its last parts are added up
MOST_HOURS = timedelta(hours=24)  # that are reconciled late, after an upgrade for example
# Notes in the lease: when the last roll-up began, and until when hours are reconciled.
ROLLED_UP, RECONCILED = "tasks_app: counts rolled up", "tasks_app: counts reconciled"
Notes = dict[str, str]


class CountKeeper:
    """Adds the counters up, a duty of the leader; any number may try."""

    def __init__(self, settings: Settings, database: Database, holder: str) -> None:
        self._kept = CountRetention(
            settings.keep_minute_counts, settings.keep_hour_counts, settings.keep_day_counts
        )
        self._database = database
        self._holder = holder
        self._try_at = 0.0

    def run_if_due(self) -> None:
        """Add up, if that was not done in the last minute. Raises nothing."""
        if time.monotonic() < self._try_at:
            return
        self._try_at = time.monotonic() + AGAIN_S
        try:
            self.run_once()
        except Exception as error:
            log.warning("counters could not be added up, again soon: %s", first_line(error))

    def run_once(self, *, now: datetime | None = None) -> bool:
        """Add up, and compare an hour if one is over; False: another process has done so."""
        with self._database.begin() as connection:
            lease = leader_lease.read_lease(connection, MAINTAIN, now=now)
            at = datetime.fromtimestamp(tables.database_time(connection, now=now), UTC)
        since = _noted(lease, ROLLED_UP)
        if since is not None and since <= at < since + ADD_UP_EVERY:
            return False
        return self._in_turn(self._roll_up, now) and self._in_turn(self._reconcile, now)

    def _in_turn(
        self, duty: Callable[[Connection, Lease, datetime | None], Notes], now: datetime | None
    ) -> bool:
        """Do it and note it in one transaction, which holds the lease; False: another holds it."""
        token, who = uuid4(), self._holder
        with self._database.begin() as connection:
            lease = leader_lease.acquire_lease(
                connection,
                MAINTAIN,
                holder=who,
                token=token,
                rank=Rank.STANDBY,
                ttl=LONGEST,
                now=now,
            )
            if lease is None:
                return False
            notes = duty(connection, lease, now)
            if notes:
                leader_lease.add_notes(connection, MAINTAIN, token, notes)
            leader_lease.release_lease(connection, MAINTAIN, token)
        return True

    def _roll_up(self, connection: Connection, lease: Lease, now: datetime | None) -> Notes:
        rolled = roll_up(connection, _noted(lease, ROLLED_UP), self._kept, now=now)
        return {ROLLED_UP: rolled.until.isoformat()}

    def _reconcile(self, connection: Connection, lease: Lease, now: datetime | None) -> Notes:
        at = datetime.fromtimestamp(tables.database_time(connection, now=now), UTC)
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
