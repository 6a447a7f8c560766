"""Reads of the counters: sums over time, run times, slowest and failing names, unkept rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.statistics import (
    MOST_NAMES,
    UNKEPT_WITHIN,
    CountedOutcome,
    Unkept,
    percentile,
)
from tasks_app.pool.statistics.parts import summed
from tasks_app.pool.tables import COUNT, COUNT_PART, NOW, Clock


class Grain(IntEnum):
    """The span of a point, in minutes."""

    MINUTE = 1  # for the last hour, say
    HOUR = 60  # for the last day, or week
    DAY = 1440


class Wanted(NamedTuple):
    """A filter; None: all."""

    grain: Grain
    within: timedelta
    name: str | None = None
    queue: str | None = None
    outcomes: Sequence[CountedOutcome] | None = None


class Point(NamedTuple):
    """What ended in one span, with one outcome."""

    at: datetime
    outcome: CountedOutcome
    number: int
    wait_ms: int
    run_ms: int


@dataclass(frozen=True, slots=True)
class Times:
    key: str  # their queue, or name
    waits: tuple[int, ...]
    runs: tuple[int, ...]

    def waited_ms(self, share: float) -> float | None:
        """Return a percentile, off by less than a factor of two; None: there were none."""
        return percentile(self.waits, share)

    def ran_ms(self, share: float) -> float | None:
        return percentile(self.runs, share)


class Slow(NamedTuple):
    name: str
    number: int
    mean_ms: float  # of a run


class Failing(NamedTuple):
    name: str
    failed: int
    retried: int
    done: int

    @property
    def ratio(self) -> float:
        bad = self.failed + self.retried
        return bad / max(1, bad + self.done)


_CHOSEN = """(CAST(:name AS text) IS NULL OR c.name = :name)
    AND (CAST(:queue AS text) IS NULL OR c.queue = :queue)
    AND (CAST(:outcomes AS smallint[]) IS NULL
         OR c.outcome = ANY(CAST(:outcomes AS smallint[])))"""
_WHERE = f"""c.span = :span AND c.at > {NOW} - CAST(:within AS interval)
    - make_interval(mins => :span) AND {_CHOSEN}"""
_PLAIN = ", ".join(f"CAST(sum(c.{c}) AS bigint) AS {c}" for c in ("number", "wait_ms", "run_ms"))
_HISTORY = text(f"""
    SELECT c.at, c.outcome, {_PLAIN} FROM {COUNT} c WHERE {_WHERE} GROUP BY 1, 2 ORDER BY 1, 2""")
_LIVE = text(f"""
    SELECT c.at, c.outcome, {_PLAIN} FROM {COUNT_PART} c
    WHERE {_CHOSEN}
      AND c.at > coalesce((SELECT max(at) FROM {COUNT} WHERE span = {Grain.MINUTE:d}), '-infinity')
    GROUP BY 1, 2 ORDER BY 1, 2""")
_TIMES = {
    key: text(f"""
    SELECT {column} AS key, {summed("c.waits")} AS waits, {summed("c.runs")} AS runs
    FROM {COUNT} c WHERE {_WHERE} GROUP BY 1 ORDER BY 1""")
    for key, column in {"": "CAST('' AS text)", "queue": "c.queue", "name": "c.name"}.items()
}
_SLOWEST = text(f"""
    SELECT c.name, CAST(sum(c.number) AS bigint) AS number,
        CAST(sum(c.run_ms) / sum(c.number) AS float8) AS mean_ms
    FROM {COUNT} c WHERE {_WHERE} AND c.outcome = {CountedOutcome.DONE:d}
    GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT :most""")


def _of(outcome: CountedOutcome) -> str:
    return f"coalesce(CAST(sum(c.number) FILTER (WHERE c.outcome = {outcome:d}) AS bigint), 0)"


_FAILING = text(f"""
    SELECT * FROM (
        SELECT c.name, {_of(CountedOutcome.FAILED)} AS failed,
            {_of(CountedOutcome.RETRIED)} AS retried, {_of(CountedOutcome.DONE)} AS done
        FROM {COUNT} c WHERE {_WHERE} GROUP BY 1) AS f
    WHERE failed + retried > 0 ORDER BY failed DESC, retried DESC, name LIMIT :most""")


def history(connection: Connection, wanted: Wanted, *, now: Clock = None) -> list[Point]:
    """Return the sums of each span, oldest first; empty spans are left out."""
    return _points(connection, _HISTORY, wanted, now)


def minutes_not_rolled_up(connection: Connection, wanted: Wanted) -> list[Point]:
    """Return the sums of the minutes that are not rolled up yet."""
    # Not on a standby server: the table of parts is unlogged.
    return _points(connection, _LIVE, wanted, None)


def run_histograms(
    connection: Connection, wanted: Wanted, *, by: str = "", now: Clock = None
) -> list[Times]:
    """Return histograms of all tasks, or ``by`` "queue" or "name"."""
    only = wanted._replace(outcomes=(CountedOutcome.DONE,))
    rows = connection.execute(_TIMES[by], _values(only, now))
    return [Times(row.key, tuple(row.waits), tuple(row.runs)) for row in rows]


def slowest(
    connection: Connection, wanted: Wanted, most: int = 10, *, now: Clock = None
) -> list[Slow]:
    rows = connection.execute(_SLOWEST, {**_values(wanted, now), "most": most})
    return [Slow(*row) for row in rows]


def most_failing(
    connection: Connection, wanted: Wanted, most: int = 10, *, now: Clock = None
) -> list[Failing]:
    rows = connection.execute(_FAILING, {**_values(wanted, now), "most": most})
    return [Failing(*row) for row in rows]


def _points(connection: Connection, statement: object, wanted: Wanted, now: Clock) -> list[Point]:
    rows = connection.execute(statement, _values(wanted, now))  # type: ignore[call-overload]
    return [Point(row.at, CountedOutcome(row.outcome), *row[2:]) for row in rows]


def _values(wanted: Wanted, now: Clock) -> dict[str, object]:
    outcomes = None if wanted.outcomes is None else [int(outcome) for outcome in wanted.outcomes]
    span = int(wanted.grain)
    return {**wanted._asdict(), "outcomes": outcomes, "span": span, "now": now}


_UNKEPT_CHOSEN = f"""c.outcome = {CountedOutcome.UNKEPT:d}
    AND (CAST(:name AS text) IS NULL OR c.name = :name)
    AND (CAST(:queue AS text) IS NULL OR c.queue = :queue)"""
_UNKEPT_DAYS = f"""
    SELECT c.name, c.number FROM {COUNT} c
    WHERE c.span = {Grain.DAY:d} AND c.at > {NOW} - CAST(:within AS interval)
      AND {_UNKEPT_CHOSEN}"""
_UNKEPT_LIVE = f"""
    SELECT c.name, c.number FROM {COUNT_PART} c
    WHERE {_UNKEPT_CHOSEN} AND c.at >
        coalesce((SELECT max(at) FROM {COUNT} WHERE span = {Grain.MINUTE:d}), '-infinity')"""


_ALL, _WITHOUT_LIVE = (
    text(f"""
        SELECT u.name, CAST(sum(u.number) AS bigint) AS number FROM ({source}) AS u
        GROUP BY 1 ORDER BY 2 DESC, 1""")
    for source in (f"{_UNKEPT_DAYS} UNION ALL {_UNKEPT_LIVE}", _UNKEPT_DAYS)
)


def unkept(
    connection: Connection, *, name: str | None = None, queue: str | None = None, now: Clock = None
) -> Unkept | None:
    """Count successes without rows, of all, a name or a queue; None: all have their rows."""
    # On a standby server without the last minutes: the table of parts is unlogged.
    standby = connection.execute(text("SELECT pg_is_in_recovery()")).scalar_one()
    values = {"name": name, "queue": queue, "within": UNKEPT_WITHIN, "now": now}
    rows = connection.execute(_WITHOUT_LIVE if standby else _ALL, values).all()
    if not rows:
        return None
    names = tuple(row.name for row in rows[:MOST_NAMES])
    return Unkept(sum(row.number for row in rows), names, len(rows) > MOST_NAMES)
