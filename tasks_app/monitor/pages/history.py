"""History: how tasks ended over time, how long they waited and ran, which are slow or fail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import log10

from sqlalchemy import Connection

from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool.statistics import read
from tasks_app.pool.tables import database_now

HOUR, COUNTED_AFTER = timedelta(hours=1), timedelta(minutes=2)
RANGES = {
    "1h": (read.Grain.MINUTE, HOUR),
    "24h": (read.Grain.HOUR, 24 * HOUR),
    "7d": (read.Grain.HOUR, 7 * 24 * HOUR),
}
MOST_NAMES = 5
MARKS = 4
_BAD = (CountedOutcome.FAILED, CountedOutcome.RETRIED)


@dataclass(frozen=True, slots=True)
class Bar:
    """What ended in a minute or an hour from ``at`` on."""

    at: datetime
    done: int
    failed: int
    retried: int


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds, off by less than a factor of two; None: nothing was done."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class History:
    """``bars`` has every time of the range, the oldest first, and those without any tasks."""

    at: datetime
    within: str
    bars: tuple[Bar, ...]
    done: int
    failed: int
    retried: int
    waited: Percentiles
    ran: Percentiles
    slowest: tuple[read.Slow, ...]
    most_failing: tuple[read.Failing, ...]
    unkept: int = 0  # of the done ones, those that left no row

    @property
    def counted_until(self) -> datetime:
        """Ends of runs from then on are not counted yet."""
        return self.at.replace(second=0, microsecond=0) - COUNTED_AFTER

    @property
    def highest(self) -> int:
        """The most that ended in one time, at least 1."""
        return max(1, *(bar.done + bar.failed + bar.retried for bar in self.bars))

    @property
    def ceiling(self) -> int:
        """``highest``, rounded up to a number that four lines divide well."""
        size: int = 10 ** int(log10(self.highest))
        return max(4, next(n * size for n in (1, 2, 4, 8, 10) if n * size >= self.highest))

    @property
    def marks(self) -> tuple[datetime, ...]:
        """Some instants between the first and the last."""
        last = len(self.bars) - 1
        return tuple(self.bars[last * n // MARKS].at for n in range(MARKS + 1))

    @property
    def bad_ratio(self) -> float:
        bad = self.failed + self.retried
        return bad / max(1, bad + self.done)


def task_history(connection: Connection, within: str) -> History:
    """Read a key of ``RANGES``. The last two minutes are not counted yet."""
    return read_history(connection, read.Wanted(*RANGES[within]), within)


def read_history(
    connection: Connection,
    wanted: read.Wanted,
    within: str,
    *,
    most: int = MOST_NAMES,
    now: datetime | None = None,
) -> History:
    """Read any time, which ``within`` names, with the ``most`` slow and failing names."""
    at = now or database_now(connection)
    points = read.history(connection, wanted, now=at)
    bars = _bars(points, wanted.grain, at - wanted.within, at)
    spread = read.run_histograms(connection, wanted, now=at)
    shares = (0.5, 0.95, 0.99)
    return History(
        at=at,
        within=within,
        bars=bars,
        done=sum(bar.done for bar in bars),
        failed=sum(bar.failed for bar in bars),
        retried=sum(bar.retried for bar in bars),
        waited=Percentiles(*(spread[0].waited_ms(each) if spread else None for each in shares)),
        ran=Percentiles(*(spread[0].ran_ms(each) if spread else None for each in shares)),
        slowest=tuple(read.slowest(connection, wanted, most, now=at)),
        most_failing=tuple(read.most_failing(connection, wanted, most, now=at)),
        unkept=sum(each.number for each in points if each.outcome is CountedOutcome.UNKEPT),
    )


def _bars(
    points: Iterable[read.Point], grain: read.Grain, since: datetime, until: datetime
) -> tuple[Bar, ...]:
    length = timedelta(minutes=grain)
    begin = since.astimezone(UTC).replace(second=0, microsecond=0)
    if grain is not read.Grain.MINUTE:
        begin = begin.replace(minute=0)
    if grain is read.Grain.DAY:
        begin = begin.replace(hour=0)
    sums: dict[datetime, dict[CountedOutcome, int]] = {}
    for point in points:
        sums.setdefault(point.at, {})[point.outcome] = point.number
    instants = [begin + number * length for number in range((until - begin) // length + 1)]
    return tuple(
        Bar(at, *(sums.get(at, {}).get(outcome, 0) for outcome in (CountedOutcome.DONE, *_BAD)))
        for at in instants
    )
