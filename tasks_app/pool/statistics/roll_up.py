"""Counters rolled up from minutes to hours and days, and compared with the pools."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.statistics import FINAL, MOST_KEYS, OTHER, CountedOutcome, state_of
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.retention import DayPartition, partitions
from tasks_app.pool.statistics.parts import (
    DAY,
    HOUR,
    KEY,
    MERGED,
    MINUTE,
    RAISED,
    SUMS,
    added_up,
    bucket,
    counted,
)
from tasks_app.pool.statistics.totals import keep_totals
from tasks_app.pool.tables import (
    ATTEMPT,
    COMPLETED,
    COUNT,
    COUNT_PART,
    ERROR,
    NOW,
    PENDING,
    Clock,
    table,
)

SETTLED_AFTER = timedelta(seconds=90)  # from its begin; writers write a minute every few seconds
PARTS_KEPT = timedelta(minutes=15)
OPEN_FOR = timedelta(minutes=1)  # how long a transaction that writes parts may be open


class CountRetention(NamedTuple):
    minutes: timedelta
    hours: timedelta
    days: timedelta


class RolledUp(NamedTuple):
    until: datetime  # when it began: ``since`` of the next one
    rows: int  # written, of minutes, hours and days
    removed: int


_NEWS = text(f"""
    SELECT DISTINCT at FROM {COUNT_PART}
    WHERE at <= {NOW} - CAST(:settled AS interval)
      AND (CAST(:since AS timestamptz) IS NULL
           OR written_at > CAST(:since AS timestamptz) - CAST(:open AS interval)
           OR at > CAST(:since AS timestamptz) - CAST(:settled AS interval))
    ORDER BY at""")


def _sum(source: str, span: int, begin: str, where: str) -> str:
    """Sum up the rows of a finer span for ``:times``."""
    # Rows beyond MOST_KEYS become one. Keys that have a row keep it, then the most frequent get
    # one.
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
        OR span = {DAY} AND at < {NOW} - CAST(:days AS interval)""")


def roll_up(
    connection: Connection, since: datetime | None, kept: CountRetention, *, now: Clock = None
) -> RolledUp:
    """Sum up what was written ``since`` the last roll-up; None: everything."""
    began = connection.execute(text(f"SELECT {NOW}"), {"now": now}).scalar_one()
    seen = {"settled": SETTLED_AFTER, "since": since, "open": OPEN_FOR, "now": now}
    minutes = list(connection.execute(_NEWS, seen).scalars())
    rows = 0
    if minutes:
        rows += connection.execute(_MINUTES, {"times": minutes}).rowcount
        rows += _sum_up(connection, _HOURS, set(map(hour_of, minutes)))
        rows += _sum_up(connection, _DAYS, set(map(_day_of, minutes)))
    keep_totals(connection, kept.days, now=now)
    values = {**kept._asdict(), "parts": PARTS_KEPT, "now": now}
    removed = connection.execute(_DROP, values).rowcount
    return RolledUp(began, rows, removed)


def _sum_up(connection: Connection, statement: TextClause, found: set[datetime]) -> int:
    times = sorted(found)
    values = {"times": times, "first": times[0], "last": times[-1]}
    return connection.execute(statement, values).rowcount


def hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _day_of(at: datetime) -> datetime:
    return hour_of(at).replace(hour=0)


MARGIN = timedelta(minutes=5)  # transactions overlap: rows of an hour may be in earlier blocks
_OUTCOME = "CASE d.state " + " ".join(
    f"WHEN '{state_of(outcome)}' THEN {outcome.value}" for outcome in FINAL
)
_WAIT = """CASE WHEN d.state = 'SUCCEEDED' AND d.started_at >= d.due_at
    THEN CAST(trunc(extract(epoch FROM d.started_at - d.due_at) * 1000) AS bigint) END"""
_RUN = f"CASE WHEN d.state = '{State.SUCCEEDED}' THEN CAST(d.run_ms AS bigint) END"
_BLOCKS = text("""
    SELECT pg_relation_size(CAST(:day AS regclass)) / CAST(current_setting('block_size') AS integer)
""")
# Reads the whole pool: a worker's role may not read its partitions.
_PROBE = text(f"""
    SELECT d.finished_at FROM {COMPLETED} d
    WHERE d.finished_at >= :day AND d.finished_at < :until
      AND d.ctid >= CAST(CAST(:block AS text) AS tid)
    LIMIT 1""")


def _of_pool(pool: str, where: str) -> str:
    return f"""
        SELECT d.name, d.queue, {_OUTCOME} END AS outcome, {_WAIT} AS wait, {_RUN} AS run
        FROM {pool} d
        WHERE d.finished_at >= :hour AND d.finished_at < :until {where}"""


# a rescue that ended the task is counted as its end
_ATTEMPTS = f"""
    SELECT t.name, t.queue, CASE a.event WHEN '{Event.RETRY}' THEN {CountedOutcome.RETRIED:d}
        ELSE {CountedOutcome.RESCUED:d} END AS outcome, NULL::bigint AS wait, NULL::bigint AS run
    FROM {ATTEMPT} a CROSS JOIN LATERAL (
        SELECT p.name, p.queue FROM {PENDING} p WHERE p.id = a.task_id
        UNION ALL SELECT e.name, e.queue FROM {ERROR} e
            WHERE e.id = a.task_id AND (a.event = '{Event.RETRY}' OR e.finished_at > a.ended_at)
        UNION ALL SELECT c.name, c.queue FROM {COMPLETED} c
            WHERE c.id = a.task_id AND c.finished_at >= :hour
              AND (a.event = '{Event.RETRY}' OR c.finished_at > a.ended_at)
        LIMIT 1) AS t
    WHERE a.ended_at >= :hour AND a.ended_at < :until
      AND a.event IN ('{Event.RETRY}', '{Event.RESCUE}')
"""


def _raise(ended: str) -> str:
    updates = ", ".join(f"{column} = {value}" for column, value in MERGED.items())
    return f"""
    WITH ended AS ({ended}),
    bucketed AS MATERIALIZED (
        SELECT name, queue, outcome, {bucket("wait")} AS w, {bucket("run")} AS r,
            count(*) AS number, coalesce(sum(wait), 0) AS wait_ms, coalesce(sum(run), 0) AS run_ms
        FROM ended GROUP BY 1, 2, 3, 4, 5),
    of_rows AS MATERIALIZED (
        SELECT name, queue, outcome, CAST(sum(number) AS bigint) AS number,
            CAST(sum(wait_ms) AS bigint) AS wait_ms, CAST(sum(run_ms) AS bigint) AS run_ms,
            {counted("w", "number")} AS waits, {counted("r", "number")} AS runs
        FROM bucketed GROUP BY 1, 2, 3),
    sums AS MATERIALIZED (
        SELECT r.name, r.queue, r.outcome, r.number + coalesce(u.number, 0) AS number, r.wait_ms,
            r.run_ms, r.waits, r.runs
        FROM of_rows r LEFT JOIN {COUNT} u ON u.span = {HOUR} AND u.at = :hour
            AND u.name = r.name AND u.queue = r.queue AND u.outcome = {CountedOutcome.UNKEPT:d}
            AND r.outcome = {CountedOutcome.DONE:d}),
    known AS (
        SELECT coalesce(sum(c.number), 0) AS number FROM {COUNT} c JOIN sums s
        USING (name, queue, outcome) WHERE c.span = {HOUR} AND c.at = :hour
          AND c.number < s.number),
    raised AS (
        INSERT INTO {COUNT} AS c (span, at, name, queue, outcome, {SUMS}, exact)
        SELECT {HOUR}, :hour, name, queue, outcome, {SUMS}, true
        FROM sums ORDER BY name, queue, outcome
        ON CONFLICT (span, at, name, queue, outcome) DO UPDATE SET {updates}, exact = true
        WHERE EXCLUDED.number > c.number RETURNING c.number)
    SELECT CAST((SELECT coalesce(sum(number), 0) FROM raised)
        - (SELECT number FROM known) AS bigint)
    """


def reconcile(connection: Connection, hour: datetime) -> int:
    """Correct the counts of a past hour from the pools; return how many ends were missing."""
    span: dict[str, object] = {"hour": hour, "until": hour + timedelta(hours=1)}
    found = [_of_pool(ERROR, ""), _ATTEMPTS]
    days, _ = partitions(connection)
    for day in days:
        if day.attached and day.day <= hour < day.until:
            span["block"] = f"({_first_block(connection, day, hour - MARGIN)},0)"
            found.append(_of_pool(COMPLETED, "AND d.ctid >= CAST(CAST(:block AS text) AS tid)"))
            break
    else:
        found.append(_of_pool(COMPLETED, ""))
    missing = connection.execute(text(_raise(" UNION ALL ".join(found))), span).scalar_one()
    if missing:
        _sum_up(connection, _DAYS, {_day_of(hour)})
    return int(missing)


def _first_block(connection: Connection, day: DayPartition, since: datetime) -> int:
    """Return the first block with rows that ended ``since``, by binary search."""
    # Rows are appended in the order of their ends, except those of overlapping transactions.
    span = {"day": day.day, "until": day.until}
    low, high = 0, connection.execute(_BLOCKS, {"day": table(day.name)}).scalar_one()
    while low < high:
        middle = (low + high) // 2
        ended = connection.execute(_PROBE, {**span, "block": f"({middle},0)"}).scalar()
        if ended is not None and ended < since:
            low = middle + 1
        else:
            high = middle
    return max(0, low - 1)
