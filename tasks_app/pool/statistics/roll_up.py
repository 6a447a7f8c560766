"""Roll-up: parts become minutes, minutes hours, hours days; what is too old goes.

Each time is summed up anew from all that it consists of, so any number of repetitions, and parts
that come late, do no harm. No row is ever lowered: a part may be gone already.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.statistics import MOST_KEYS
from tasks_app.domain.statistics import OTHER
from tasks_app.pool.statistics.sums import KEY, RAISED, SUMS, added_up
from tasks_app.pool.statistics.totals import keep_totals
from tasks_app.pool.tables import COUNT, COUNT_PART, NOW

MINUTE, HOUR, DAY = 1, 60, 1440
"""Spans of the rows of COUNT, in minutes."""
SETTLED_AFTER = timedelta(seconds=90)
"""After its begin, a minute is taken for complete: writers write every few seconds."""
PARTS_KEPT = timedelta(minutes=15)
OPEN_FOR = timedelta(minutes=1)
"""How long a transaction that wrote parts may have been open."""


class CountRetention(NamedTuple):
    """How long counters are kept."""

    minutes: timedelta
    hours: timedelta
    days: timedelta


class RolledUp(NamedTuple):
    """What a roll-up did."""

    until: datetime
    """When it began; to be handed to the next one."""
    rows: int
    """Written, of minutes, hours and days."""
    removed: int


_NOW = text(f"SELECT {NOW}")
_NEWS = text(f"""
    SELECT DISTINCT at FROM {COUNT_PART}
    WHERE at <= {NOW} - CAST(:settled AS interval)
      AND (CAST(:since AS timestamptz) IS NULL
           OR written_at > CAST(:since AS timestamptz) - CAST(:open AS interval)
           OR at > CAST(:since AS timestamptz) - CAST(:settled AS interval))
    ORDER BY at
""")


def _sum(source: str, span: int, begin: str, where: str) -> str:
    """Sum up rows of a finer span, all that belong to ``:times``.

    Rows beyond MOST_KEYS are one: those that have a row already keep it, the most frequent follow.
    """
    updates = ", ".join(f"{column} = {value}" for column, value in RAISED.items())
    return f"""
    WITH parts AS MATERIALIZED (
        SELECT {begin} AS at, s.name, s.queue, s.outcome, {added_up("s")} FROM {source} s
        WHERE {where} GROUP BY 1, 2, 3, 4),
    placed AS MATERIALIZED (
        SELECT p.*, row_number() OVER (PARTITION BY p.at
            ORDER BY c.name IS NULL, p.number DESC, p.name, p.queue, p.outcome) AS place
        FROM parts p LEFT JOIN {COUNT} c ON c.span = {span} AND c.at = p.at
            AND c.name = p.name AND c.queue = p.queue AND c.outcome = p.outcome),
    named AS (
        SELECT at, outcome, number, wait_ms, run_ms, waits, runs,
            CASE WHEN place <= {MOST_KEYS} THEN name ELSE '{OTHER}' END AS name,
            CASE WHEN place <= {MOST_KEYS} THEN queue ELSE '{OTHER}' END AS queue
        FROM placed),
    sums AS (SELECT at, name, queue, outcome, {added_up("n")} FROM named n GROUP BY 1, 2, 3, 4)
    INSERT INTO {COUNT} AS c (span, {KEY}, {SUMS})
    SELECT {span}, {KEY}, {SUMS} FROM sums ORDER BY {KEY}
    ON CONFLICT (span, at, name, queue, outcome) DO UPDATE SET {updates}, exact = false
    WHERE EXCLUDED.number > c.number
    """


def _begin(unit: str) -> str:
    return f"date_trunc('{unit}', s.at, 'UTC')"


def _finer(span: int, unit: str) -> str:
    return f"""s.span = {span} AND s.at >= :first
        AND s.at < CAST(:last AS timestamptz) + CAST('1 {unit}' AS interval)
        AND {_begin(unit)} = ANY(CAST(:times AS timestamptz[]))"""


_MINUTES = text(_sum(COUNT_PART, MINUTE, "s.at", "s.at = ANY(CAST(:times AS timestamptz[]))"))
_HOURS = text(_sum(COUNT, HOUR, _begin("hour"), _finer(MINUTE, "hour")))
_DAYS = text(_sum(COUNT, DAY, _begin("day"), _finer(HOUR, "day")))
_DROP = text(f"""
    WITH parts AS (DELETE FROM {COUNT_PART} WHERE at < {NOW} - CAST(:parts AS interval))
    DELETE FROM {COUNT} WHERE span = {MINUTE} AND at < {NOW} - CAST(:minutes AS interval)
        OR span = {HOUR} AND at < {NOW} - CAST(:hours AS interval)
        OR span = {DAY} AND at < {NOW} - CAST(:days AS interval)
""")


def roll_up(
    connection: Connection,
    since: datetime | None,
    kept: CountRetention,
    *,
    now: datetime | None = None,
) -> RolledUp:
    """Sum up what was written ``since`` the roll-up before; None: all that is there."""
    began = connection.execute(_NOW, {"now": now}).scalar_one()
    seen = {"settled": SETTLED_AFTER, "since": since, "open": OPEN_FOR, "now": now}
    minutes = list(connection.execute(_NEWS, seen).scalars())
    rows = 0
    if minutes:
        rows += connection.execute(_MINUTES, {"times": minutes}).rowcount
        rows += sum_hours(connection, minutes) + sum_days(connection, minutes)
    keep_totals(connection, kept.days, now=now)
    values = {**kept._asdict(), "parts": PARTS_KEPT, "now": now}
    removed = connection.execute(_DROP, values).rowcount
    return RolledUp(began, rows, removed)


def sum_hours(connection: Connection, instants: Sequence[datetime]) -> int:
    """Sum up the hours of these instants from their minutes; return how many rows that wrote."""
    times = sorted({hour_of(at) for at in instants})
    values = {"times": times, "first": times[0], "last": times[-1]}
    return connection.execute(_HOURS, values).rowcount


def sum_days(connection: Connection, instants: Sequence[datetime]) -> int:
    """Sum up the days of these instants, of UTC, from their hours."""
    times = sorted({hour_of(at).replace(hour=0) for at in instants})
    values = {"times": times, "first": times[0], "last": times[-1]}
    return connection.execute(_DAYS, values).rowcount


def hour_of(at: datetime) -> datetime:
    """Return the begin of the hour, of UTC."""
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
