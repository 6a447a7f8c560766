"""Scans of due tasks: where they begin, how often they run, and what cannot run."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.flow_control.limits import WaitingKind, WaitingReason
from tasks_app.pool.dispatch.scan import DueRows
from tasks_app.pool.dispatch.set_aside import park_tasks, sweep
from tasks_app.pool.flow_control.circuit_breakers import hold_tasks
from tasks_app.pool.fragments.conditions import Place
from tasks_app.pool.tasks import browse
from tasks_app.runtime.hooks import HOOKS, Notice, NoticeKind, of_outline

MARGIN_S = 5.0  # a row that commits at most this late does not wait for a whole pass
LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How often slow passes of one kind are made."""

    slow_s: float  # no pause follows a faster pass
    pause: float  # after a slow pass, in multiples of its duration …
    longest_pause_s: float  # … but never longer: rows that only such a pass finds would wait


@dataclass(frozen=True, slots=True)
class PollPaces:
    """How often one child reads what it need not read each time."""

    # Passes from the front of the index. Slow ones take a two-hundredth of the time.
    front: Pace = Pace(0.01, 200, LONGEST_PAUSE_S)
    # Passes that do not go on where the last one ended: a twentieth of the time.
    back: Pace = Pace(0.0, 20, LONGEST_PAUSE_S)
    # Polls for a kind of tasks that found none: a twentieth of the time.
    empty: Pace = Pace(0.005, 20, 5.0)


PACES = PollPaces()


class ScanPosition:
    """The passes of one kind: for the same queues and names."""

    def __init__(
        self, pace: Pace = PACES.front, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._throttle = Throttle(pace)
        self._clock = clock
        self._whole_at = 0.0
        self._empty_at: float | None = None

    def within(self, began: float) -> timedelta | None:
        """Return how far back a pass has to read that begins at this instant; None: all."""
        if self._empty_at is None or began >= self._whole_at:
            return None
        return timedelta(seconds=began - self._empty_at + MARGIN_S)

    def was_read(self, began: float, within: timedelta | None, *, left: int) -> None:
        if within is None:
            now = self._clock()
            self._whole_at = now + self._throttle.pause_after(now - began)
        if not left:
            self._empty_at = began


class QueuePositions:
    """The places of one dispatcher: where to go on, by queue and priority."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, int], Place] = {}

    def cover(self, queue: str) -> bool:
        """Whether the queue has a place, before which lies what was published of it."""
        return any((queue, priority) in self.places for priority in range(10))

    def forget(self) -> None:
        self.places = {}

    def move(self, found: DueRows, number: int) -> None:
        at = 0
        while at < number:  # the last row of each priority among them
            priority = found.priorities[at]
            at = bisect_right(found.priorities, priority, at, number)
            self.places[found.queue, priority] = (found.scan_at[at - 1], found.ids[at - 1])


class Start(NamedTuple):
    within: timedelta | None = None  # it reads what is due for no longer; None: all
    goes_on: bool = False  # it begins behind the places of the last pass


class ScanPasses:
    """Those of one kind; while there is enough to do they go on where the last one ended."""

    def __init__(
        self, paces: PollPaces = PACES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # Where the last rows were, by queue and priority; each pass moves them on.
        self.places: dict[tuple[str, int], Place] = {}
        self._throttle = Throttle(paces.back)
        self._clock = clock
        self._front = ScanPosition(paces.front, clock)
        self._back_at = 0.0

    def start(self, began: float) -> Start:
        """Return where a pass has to start that begins at this instant."""
        if self.places and began < self._back_at:
            return Start(goes_on=True)
        self.places.clear()
        return Start(self._front.within(began))

    def was_read(self, began: float, start: Start, *, left: int) -> None:
        if not left:
            self.places.clear()
        if start.goes_on:
            return
        self._front.was_read(began, start.within, left=left)
        now = self._clock()
        self._back_at = now + self._throttle.pause_after(now - began)


@dataclass(slots=True)
class Throttle:
    """How long to pause after each pass of one kind."""

    pace: Pace
    _last_s: float = 0.0

    def pause_after(self, took_s: float) -> float:
        """Return the pause in seconds after a pass of ``took_s``: by the faster of the last two.

        The machine or the database may have stalled during one.
        """
        faster_s, self._last_s = min(took_s, self._last_s), took_s
        if faster_s <= self.pace.slow_s:
            return 0.0
        return min(self.pace.pause * faster_s, self.pace.longest_pause_s)

    def forget(self) -> None:
        self._last_s = 0.0


class EmptyPollBackoff:
    """A kind of tasks of which the pool has none is polled rarely while there are others.

    To find none, a claim reads all that is due of the other kinds: beside a hundred thousand tasks
    that takes as long as to claim a thousand of them.
    """

    def __init__(
        self, pace: Pace = PACES.empty, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._throttle = Throttle(pace)
        self._clock = clock
        self._until = 0.0

    @property
    def lasts(self) -> bool:
        """Whether to poll for other kinds only, as long as there are some."""
        return self._clock() < self._until

    def polled(self, began: float, *, found: int) -> None:
        now = self._clock()
        if found:
            self._throttle.forget()
            self._until = now
        else:
            self._until = now + self._throttle.pause_after(now - began)


class Tidied(NamedTuple):
    """The due tasks that may run, with their names, and notices of those that were swept."""

    ready: list[tuple[int, str]]
    swept: Sequence[Notice] = ()  # true after the COMMIT


def triage_found(
    connection: Connection,
    found: list[tuple[int, str]],
    seen: DueRows,
    names: set[str],
    settings: Settings,
    *,
    now: datetime | None = None,
) -> Tidied:
    """Return what may run; sweep what is barred, hold or park what is held or has no handler."""
    if not (seen.barred or seen.held) and {name for _, name in found} <= names:  # the usual case
        return Tidied(found)
    barred: list[int] = []
    held: list[int] = []
    ready: list[tuple[int, str]] = []
    unknown: dict[str, list[int]] = defaultdict(list)
    for task_id, name in found:
        if task_id in seen.barred:
            barred.append(task_id)
        elif task_id in seen.held:
            held.append(task_id)
        elif name in names:
            ready.append((task_id, name))
        else:
            unknown[name].append(task_id)
    swept: list[Notice] = []
    if barred:
        gone = list(sweep(connection, barred, now=now))
        if HOOKS.wanted:
            swept = [of_outline(o, NoticeKind.RELEASED) for o in browse.outlines(connection, gone)]
    if held:
        hold_tasks(connection, held, now=now)
    for name, ids in unknown.items():
        reason = WaitingReason(WaitingKind.HANDLER, name)
        park_tasks(connection, ids, reason, settings.park_for, now=now)
    return Tidied(ready, swept)


AGAIN_S = 0.05  # shortest pause between two passes while one due instant follows the other
MORE_S = 0.1  # the pause after the broker was given enough: children work on that meanwhile
FULL_S = 0.25  # the pause while the broker has no room: it holds about a second of work


@dataclass(frozen=True, slots=True)
class ScanResult:
    published: int = 0  # ids in messages
    more: bool = False  # rows were left over: scan again as soon as there is room
    next_due_s: float | None = None  # until the next row is due that no hint will announce
    depths: dict[str, int] = field(default_factory=dict)  # messages in the broker before, if any

    @property
    def did_something(self) -> bool:
        """Whether the next pass is likely to have something to do, too."""
        return bool(self.published or self.more)

    def again_in(self, interval_s: float) -> float:
        """Return the pause before the next pass; without work it ends when the next row is due."""
        if self.more:
            return min(interval_s / 4, MORE_S if self.published else FULL_S)
        wanted = interval_s if self.next_due_s is None else max(AGAIN_S, self.next_due_s)
        return min(interval_s, wanted)
