"""Task counts: how runs ended and how long they took, as one process heard from the database.

Totals by minute, name, queue and outcome, which only grow. A write repeats them, so nothing is
counted twice when a COMMIT was not answered.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from uuid import uuid4

from tasks_app.domain.statistics.histogram import BUCKETS, LAST, trimmed
from tasks_app.domain.statistics import MOST_KEYS
from tasks_app.domain.statistics import OTHER
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.statistics import outcome_of
from tasks_app.domain.tasks.run import ClaimedTask, Settlement
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.statistics.parts import CountPart

MOST_EARLY = 10_000
"""Runs that are kept until the database's time is known: that takes a moment."""
KEPT_MINUTES = 14
"""What could not be written for longer is counted from the pools."""
_WAITS, _RUNS = 3, 3 + BUCKETS
_SUCCEEDED, _DONE = State.SUCCEEDED, int(CountedOutcome.DONE)
_UNKEPT = int(CountedOutcome.UNKEPT)
_EMPTY = [0] * (3 + 2 * BUCKETS)

Key = tuple[str, str, int]
_Ended = tuple[Key, float, float | None, int | None]
"""Also when, by our clock; how long it waited, less the offset of the clocks; its run_ms."""


class TaskCounts:
    """One process's; its threads may count at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Begin anew: a forked process must not write what its parent counted."""
        self.slot: str = uuid4().hex
        self.writing: threading.Lock = threading.Lock()
        """Held by who writes; several duties of a process may come at once."""
        self._lock = threading.Lock()
        self._offset: float | None = None
        self._minute = 0
        self._early: list[_Ended] = []
        self._minutes: dict[int, dict[Key, list[int]]] = {}
        self._written: dict[tuple[int, Key], int] = {}

    def settled(self, settlements: Iterable[Settlement], states: Mapping[int, State]) -> None:
        """Count the runs that the database has settled. Raises nothing."""
        now = self._clock()
        with self._lock:
            offset = self._offset
            if offset is None:
                self._early += _ended(settlements, states, now)
                del self._early[MOST_EARLY:]
                return
            cells = self._cells(now + offset)
            for settlement in settlements:  # hot path: a microsecond a task
                state, task = states.get(settlement[0][0]), settlement.task
                if state is None or task is None:
                    continue
                if state is _SUCCEEDED:
                    cell = cells.get((task.name, task.queue, _DONE)) or self._new(
                        cells, (task.name, task.queue, _DONE)
                    )
                    cell[0] += 1
                    began = settlement.began
                    if began is not None:
                        wait_ms = int((began + offset - task.due_s) * 1000)
                        _time(cell, wait_ms, settlement.run_ms or 0)
                    if not settlement.is_kept:
                        key = (task.name, task.queue, _UNKEPT)
                        (cells.get(key) or self._new(cells, key))[0] += 1
                else:
                    key = (task.name, task.queue, int(outcome_of(state, settlement.event)))
                    (cells.get(key) or self._new(cells, key))[0] += 1

    def happened(
        self, outcome: CountedOutcome, number: int = 1, name: str = OTHER, queue: str = OTHER
    ) -> None:
        """Count what is no end of a run."""
        key = (name, queue, int(outcome))
        with self._lock:
            now = self._clock()
            if self._offset is None:
                self._early += [(key, now, None, None)] * number
                del self._early[MOST_EARLY:]
                return
            cells = self._cells(now + self._offset)
            (cells.get(key) or self._new(cells, key))[0] += number

    def returned(
        self, tasks: Iterable[ClaimedTask], states: Mapping[int, State], event: Event
    ) -> None:
        """Count the claims among these that came back without an outcome."""
        ended = [Settlement(task.fence, event, 0, 0, task=task) for task in tasks]
        self.settled(ended, states)

    def heard(self, said_s: float, asked_at: float) -> None:
        """Learn what time it is for the database; ``asked_at`` is by our clock."""
        with self._lock:
            self._offset = said_s - asked_at
            early, self._early = self._early, []
            for key, at, waited, run_ms in early:
                cells = self._cells(at + self._offset)
                cell = cells.get(key) or self._new(cells, key)
                cell[0] += 1
                if waited is not None:
                    _time(cell, int((waited + self._offset) * 1000), run_ms or 0)

    @property
    def knows_time(self) -> bool:
        return self._offset is not None

    def news(self) -> list[CountPart]:
        """Return the totals that are not written as they are now."""
        with self._lock:
            changed = [
                (minute, key, list(cell))
                for minute, cells in self._minutes.items()
                for key, cell in cells.items()
                if self._written.get((minute, key)) != cell[0]
            ]
        return [_part(minute, key, cell) for minute, key, cell in changed]

    def written(self, parts: Iterable[CountPart]) -> None:
        """Take it that these totals are in the database; forget minutes that are over."""
        with self._lock:
            for part in parts:
                self._written[part.minute, (part.name, part.queue, part.outcome)] = part.number
            for minute in [m for m in self._minutes if m < self._minute]:
                cells = self._minutes[minute]
                told = all(self._written.get((minute, k)) == c[0] for k, c in cells.items())
                if told or minute < self._minute - KEPT_MINUTES:
                    for key in self._minutes.pop(minute):
                        self._written.pop((minute, key), None)

    def _cells(self, at_s: float) -> dict[Key, list[int]]:
        """Return the totals of a minute. One that is over is not gone back to."""
        minute = int(at_s // 60)
        if minute > self._minute:
            self._minute = minute
            for old in [m for m in self._minutes if m < minute - KEPT_MINUTES]:
                for each in self._minutes.pop(old):
                    self._written.pop((old, each), None)
        return self._minutes.setdefault(self._minute, {})

    def _new(self, cells: dict[Key, list[int]], key: Key) -> list[int]:
        if len(cells) >= MOST_KEYS:
            key = (OTHER, OTHER, key[2])
        return cells.setdefault(key, _EMPTY.copy())


def _ended(
    settlements: Iterable[Settlement], states: Mapping[int, State], now: float
) -> Iterator[_Ended]:
    for one in settlements:
        state, task = states.get(one.fence.task_id), one.task
        if state is not None and task is not None:
            key = (task.name, task.queue, int(outcome_of(state, one.event)))
            waited = None
            if one.began is not None and state is _SUCCEEDED:
                waited = one.began - task.due_s
            yield key, now, waited, one.run_ms
            if state is _SUCCEEDED and not one.is_kept:
                yield (task.name, task.queue, _UNKEPT), now, None, None


def _time(cell: list[int], wait_ms: int, run_ms: int) -> None:
    wait_ms = max(wait_ms, 0)
    cell[1] += wait_ms
    cell[2] += run_ms
    cell[_WAITS + min(wait_ms.bit_length(), LAST)] += 1
    cell[_RUNS + min(run_ms.bit_length(), LAST)] += 1


def _part(minute: int, key: Key, cell: list[int]) -> CountPart:
    number, wait_ms, run_ms = cell[:_WAITS]
    waits, runs = trimmed(cell[_WAITS:_RUNS]), trimmed(cell[_RUNS:])
    return CountPart(minute, *key, number, wait_ms, run_ms, waits, runs)


TASK_COUNTS = TaskCounts()
os.register_at_fork(after_in_child=TASK_COUNTS.forget)
