"""Totals of each name, queue and outcome since counting began: they never decrease.

Past days are added to TOTAL, and may be dropped then. A read adds the later days and the minutes
that are not rolled up yet, in one statement, so that it sees each once. The first ``MOST`` keys get
rows for ever; later ones are "(other)" for ever. So no value moves from one key to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.statistics import OTHER, CountedOutcome
from tasks_app.pool.statistics.parts import DAY, MINUTE, SUMS, added_up
from tasks_app.pool.tables import COUNT, COUNT_PART, NOW, TOTAL, Clock

MOST = 1000  # names, queues and outcomes that have a total of their own
SETTLED_AFTER = timedelta(days=2)  # after this no hour of the day is corrected any more


class Total(NamedTuple):
    id: int  # rises in the order in which keys were first seen
    name: str
    queue: str
    outcome: CountedOutcome
    number: int
    wait_ms: int
    run_ms: int
    waits: Sequence[int]
    runs: Sequence[int]


_PLAIN = "name, queue, outcome"
_UNTIL = f"coalesce((SELECT max(until) FROM {TOTAL}), '-infinity')"
_NEW = f"""
    SELECT c.name, c.queue, c.outcome, min(c.at) AS first, sum(c.number) AS number
    FROM {COUNT} c LEFT JOIN {TOTAL} t USING ({_PLAIN})
    WHERE c.span = {DAY} AND c.at >= {_UNTIL} AND t.name IS NULL
    GROUP BY 1, 2, 3
"""
_REGISTER = text(f"""
    WITH new AS MATERIALIZED ({_NEW}),
    placed AS (
        SELECT n.*, row_number() OVER (ORDER BY first, number DESC, {_PLAIN})
            + (SELECT count(*) FROM {TOTAL} WHERE name <> '{OTHER}') AS place FROM new n),
    kept AS (
        SELECT {_PLAIN}, place FROM placed WHERE place <= :most
        UNION ALL
        SELECT '{OTHER}', '{OTHER}', outcome, :most + 1 FROM placed WHERE place > :most
        GROUP BY outcome)
    INSERT INTO {TOTAL} ({_PLAIN}, until)
    SELECT {_PLAIN}, {_UNTIL} FROM kept ORDER BY place ON CONFLICT DO NOTHING""")


def _since(source: str, where: str) -> str:
    """Return the rows of the source, by the keys of TOTAL."""
    return f"""
        SELECT CASE WHEN t.name IS NULL THEN '{OTHER}' ELSE c.name END AS name,
            CASE WHEN t.name IS NULL THEN '{OTHER}' ELSE c.queue END AS queue, c.outcome,
            c.number, c.wait_ms, c.run_ms, c.waits, c.runs
        FROM {source} c LEFT JOIN {TOTAL} t USING ({_PLAIN}) WHERE {where}"""


_DAYS = _since(COUNT, f"c.span = {DAY} AND c.at >= {_UNTIL}")
# A key without any rolled-up minute is left out: later it may be "(other)".
_LIVE = _since(
    COUNT_PART,
    f"""t.name IS NOT NULL AND c.at >
        coalesce((SELECT max(at) FROM {COUNT} WHERE span = {MINUTE}), '-infinity')""",
)
_FOLD = text(f"""
    WITH whole AS (
        SELECT {_PLAIN}, {SUMS} FROM {TOTAL}
        UNION ALL {_DAYS} AND c.at < CAST(:until AS timestamptz)),
    sums AS MATERIALIZED (SELECT {_PLAIN}, {added_up("w")} FROM whole w GROUP BY 1, 2, 3)
    UPDATE {TOTAL} t SET until = :until, number = s.number, wait_ms = s.wait_ms,
        run_ms = s.run_ms, waits = s.waits, runs = s.runs
    FROM sums s
    WHERE (t.name, t.queue, t.outcome) = (s.name, s.queue, s.outcome) AND t.until < :until""")


_TOTALS, _WITHOUT_LIVE = (
    text(f"""
        SELECT t.id, s.* FROM (
            SELECT {_PLAIN}, {added_up("w")} FROM (
                SELECT {_PLAIN}, {SUMS} FROM {TOTAL} UNION ALL {added}) w GROUP BY 1, 2, 3) s
        JOIN {TOTAL} t USING ({_PLAIN}) ORDER BY t.id""")
    for added in (f"{_DAYS} UNION ALL {_LIVE}", _DAYS)
)
_UNTIL_NOW = text(f"""
    SELECT u.at, EXISTS (SELECT FROM {TOTAL} WHERE until < u.at) AS due FROM (SELECT greatest(
        date_trunc('day', {NOW} - CAST(:settled AS interval), 'UTC'),
        date_trunc('day', {NOW} - CAST(:kept AS interval), 'UTC') + interval '1 day') AS at) u""")


def keep_totals(
    connection: Connection, keep_days: timedelta, *, most: int = MOST, now: Clock = None
) -> None:
    """Insert rows of new keys, and add past days. One process at a time may do it."""
    connection.execute(_REGISTER, {"most": most})
    asked = {"settled": SETTLED_AFTER, "kept": keep_days, "now": now}
    until, due = connection.execute(_UNTIL_NOW, asked).one()
    if due:
        connection.execute(_FOLD, {"until": until})


def totals(connection: Connection) -> list[Total]:
    """Return all totals, in the order in which they were first seen."""
    # On a standby server those of a minute or two ago: the table of parts is unlogged.
    standby = connection.execute(text("SELECT pg_is_in_recovery()")).scalar_one()
    rows = connection.execute(_WITHOUT_LIVE if standby else _TOTALS)
    return [Total(*row)._replace(outcome=CountedOutcome(row.outcome)) for row in rows]
