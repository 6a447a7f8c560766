"""Reconcile: the hour's counters are compared with the pools, and raised where those know more.

A killed process loses what it has not written, a crashed server all parts. Each end of a task is a
row of a pool, though, with its instants. Never lowered: requeued tasks have left their pool, and
their first end stays counted. Nor is it lowered how many took at most so long: totals never fall.
Of successes that left no row it is counted that they did, so they hide no row that is missing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.domain.statistics import FINAL
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.statistics import state_of
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.retention.partitions import DayPartition, partitions
from tasks_app.pool.statistics.roll_up import HOUR, sum_days
from tasks_app.pool.statistics.sums import MERGED, SUMS, bucket, counted
from tasks_app.pool.tables import ATTEMPT, COMPLETED, COUNT, ERROR, PENDING, table

_HOUR = timedelta(hours=1)
MARGIN = timedelta(minutes=5)
"""Rows of an hour may lie so far before its first block: transactions overlap."""

_OUTCOME = "CASE d.state " + " ".join(
    f"WHEN '{state_of(outcome)}' THEN {outcome.value}" for outcome in FINAL
)
_WAIT = """CASE WHEN d.state = 'SUCCEEDED' AND d.started_at >= d.due_at
    THEN CAST(trunc(extract(epoch FROM d.started_at - d.due_at) * 1000) AS bigint) END"""
_RUN = f"CASE WHEN d.state = '{State.SUCCEEDED}' THEN CAST(d.run_ms AS bigint) END"
_BLOCKS = text("""
    SELECT pg_relation_size(CAST(:day AS regclass)) / CAST(current_setting('block_size') AS integer)
""")
# By way of the whole pool: a worker's role may read that, but not its partitions.
_PROBE = text(f"""
    SELECT d.finished_at FROM {COMPLETED} d
    WHERE d.finished_at >= :day AND d.finished_at < :until
      AND d.ctid >= CAST(CAST(:block AS text) AS tid)
    LIMIT 1
""")


def _of_pool(pool: str, where: str) -> str:
    return f"""
        SELECT d.name, d.queue, {_OUTCOME} END AS outcome, {_WAIT} AS wait, {_RUN} AS run
        FROM {pool} d
        WHERE d.finished_at >= :hour AND d.finished_at < :until {where}"""


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
"""A rescue that was the task's end is counted as that."""


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
    """Compare an hour that is over with the pools; return how many ends were missing."""
    span: dict[str, object] = {"hour": hour, "until": hour + _HOUR}
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
        sum_days(connection, [hour])
    return int(missing)


def _first_block(connection: Connection, day: DayPartition, since: datetime) -> int:
    """Return the block from which on rows of a day ended ``since``, found by halving.

    Rows are only appended, in the order of their ends, but for transactions that overlap.
    """
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
