"""How long runs take: learned by each child, reported, and used to size messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from sqlalchemy import Connection

from tasks_app.pool.dispatch.scan import read_run_times, write_run_times
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import Registry

FAST_S = 0.05
"""A handler whose runs take less is known to be fast; before others, outcomes are written."""
HOLD_S = 0.2
"""How much work one claim may take on: the longest that its last task waits for the others."""
GROWTH = 4
"""A group is at most this many times the one before: a few fast tasks do not predict others."""
_WEIGHT = 0.2  # of the newest run in the moving average: ten fast runs make up for a slow one
FEW_RUNS = 5  # A name is known after this many runs: the first ones connect, compile and import
MOST_NAMES = 10_000


class RunTimes:
    """Moving averages in seconds. Threads may learn at the same time; a lost run does no harm."""

    def __init__(self, news: Callable[[], object] = lambda: None) -> None:
        """``news`` is called when a name enters the snapshot."""
        self._news = news
        self._of_name: dict[str, float] = {}
        self._young: dict[str, int] = {}  # how often names ran that are not known yet
        self._lately_s: float | None = None
        self._group = 1

    def learn(self, name: str, seconds: float) -> None:
        known = self._of_name.get(name)
        if known is None:
            self._meet(name, seconds)
        elif self._young and name in self._young and not known < FAST_S <= seconds:
            self._grow(name, min(known, seconds))
        else:
            self._of_name[name] = known + _WEIGHT * (seconds - known)
            if self._young:  # slow, but no first run: no need to wait for more
                self._know(name)
        lately = self._lately_s
        self._lately_s = seconds if lately is None else lately + _WEIGHT * (seconds - lately)

    def _meet(self, name: str, seconds: float) -> None:
        if len(self._of_name) >= MOST_NAMES:
            self._of_name.clear()
            self._young.clear()
        self._of_name[name] = seconds
        self._young[name] = 1
        if seconds >= FAST_S:
            self._news()

    def _grow(self, name: str, shortest_s: float) -> None:
        self._of_name[name] = shortest_s
        runs = self._young.get(name, FEW_RUNS) + 1
        if runs < FEW_RUNS:
            self._young[name] = runs
        else:
            self._know(name)

    def _know(self, name: str) -> None:
        if self._young.pop(name, None) is not None:
            self._news()

    def is_fast(self, name: str) -> bool:
        return self._of_name.get(name, FAST_S) < FAST_S

    def next_group(self, most: int) -> int:
        """Return how many tasks to claim next: 1 .. ``most``, by all names' runs lately."""
        if self._lately_s is None:
            return 1
        fits = int(HOLD_S / max(self._lately_s, 1e-9))
        self._group = max(1, min(most, fits, self._group * GROWTH))
        return self._group

    def snapshot(self) -> dict[str, float]:
        """Return the seconds of a run, for each name that is known or was slow."""
        young = self._young
        return {
            name: seconds
            for name, seconds in list(self._of_name.items())
            if seconds >= FAST_S or name not in young
        }


REPORT_EVERY_S = 10.0
NEWS = 1.2  # what changed by less than this factor is not worth a write
GREAT_NEWS = 2.0  # what changed by more is written soon: the first run of a name often takes long
PAUSE_S = 0.3  # between two writes; on a busy machine the run times of fast tasks vary much
GREATEST_NEWS = 10.0
"""What changed by more does not wait for it: for example a first run that had to connect."""
FASTEST_S = 0.0002  # faster makes no difference: the largest messages of such tasks are still short


class RunTimeReport:
    """A duty of the housekeeper; it compares a few numbers while nothing changes."""

    def __init__(
        self,
        database: Database,
        snapshot: Callable[[], dict[str, float]],
        registry: Registry,
        *,
        threads: int = 1,
        async_concurrency: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._database = database
        self._snapshot = snapshot
        self._registry = registry
        self._threads = threads
        self._async_concurrency = async_concurrency
        self._reported: dict[str, float] = {}
        self._small_news_at = self._reported_at = 0.0

    def report(self) -> None:
        """Write what is news; it remains news if the database raises."""
        now = self._clock()
        least = NEWS if now >= self._small_news_at else GREAT_NEWS
        if now < self._reported_at + PAUSE_S:
            least = GREATEST_NEWS
        news = {
            name: seconds
            for name, run_s in self._snapshot().items()
            if _factor(seconds := self._share_s(name, run_s), self._reported.get(name)) >= least
        }
        if least == NEWS:
            self._small_news_at = now + REPORT_EVERY_S
        if news:
            with self._database.begin() as connection:
                write_run_times(connection, news)
            self._reported |= news
            self._reported_at = now

    def _share_s(self, name: str, run_s: float) -> float:
        """Return how much of the child's time one task takes up, with others beside it.

        A message is to hold as many slow tasks as the child can run at once.
        """
        spec = self._registry.get(name)
        at_once = self._async_concurrency if spec and spec.is_async else self._threads
        at_once *= spec.at_once if spec else 1
        return max(FASTEST_S, run_s if at_once == 1 else min(run_s, MESSAGE_S) / at_once)


def _factor(seconds: float, reported: float | None) -> float:
    if reported is None:
        return float("inf")  # a name that no process has run is reported at once
    return max(seconds / reported, reported / seconds)


MESSAGE_S = 0.4
"""How much of a child's time a message likely takes; between two the child waits milliseconds."""
UNKNOWN_S = MESSAGE_S / 2
"""For names of which no task has run yet: a few go out, and then it is known."""


def grouped(
    tasks: Iterable[tuple[int, str]], paces: Mapping[str, float], *, messages: int, largest: int
) -> list[list[int]]:
    """Return the ids of at most so many messages; what does not fit waits for the next pass."""
    groups: list[list[int]] = []
    full_s = 0.0
    for task_id, name in tasks:
        takes_s = paces.get(name, UNKNOWN_S)
        if not groups or len(groups[-1]) >= largest or full_s + takes_s > MESSAGE_S + 1e-9:
            if len(groups) == messages:
                break
            groups.append([])
            full_s = 0.0
        groups[-1].append(task_id)
        full_s += takes_s
    return groups


GOOD_FOR_S = 0.5


class KnownRunTimes:
    """Seconds by name. One that no process has learned yet is read again each time."""

    def __init__(self) -> None:
        self._of_name: dict[str, tuple[float, float]] = {}

    def of(self, connection: Connection, names: Collection[str]) -> dict[str, float]:
        now = time.monotonic()
        stale = [n for n in names if self._of_name.get(n, (0.0, -GOOD_FOR_S))[1] + GOOD_FOR_S < now]
        if stale:
            if len(self._of_name) > MOST_NAMES:
                self._of_name.clear()
                stale = list(names)
            self._of_name |= {n: (s, now) for n, s in read_run_times(connection, stale).items()}
        return {name: self._of_name[name][0] for name in names if name in self._of_name}
