"""Counts of one minute by one process, and SQL that all counters share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.statistics import BOUNDS_MS, BUCKETS, CountedOutcome, outcome_of
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.tables import COUNT_PART, NOW, Clock

MINUTE, HOUR, DAY = 1, 60, 1440  # spans of the rows of COUNT, in minutes


class CountPart(NamedTuple):
    """The running total of a process for one minute."""

    minute: int  # minutes since 1970
    name: str
    queue: str
    outcome: int
    number: int
    wait_ms: int
    run_ms: int
    waits: Sequence[int]
    runs: Sequence[int]


KEY = "at, name, queue, outcome"
SUMS = "number, wait_ms, run_ms, waits, runs"
# Sorted, against deadlocks; totals, so that writing them twice changes nothing.
_WRITE = text(f"""
    INSERT INTO {COUNT_PART} AS c (slot, {KEY}, {SUMS}, written_at)
    SELECT :slot, to_timestamp(t.minute * 60), t.name, t.queue, t.outcome, t.number, t.wait_ms,
        t.run_ms, CAST(t.waits AS bigint[]), CAST(t.runs AS bigint[]), {NOW}
    FROM unnest(
        CAST(:minutes AS bigint[]), CAST(:names AS text[]), CAST(:queues AS text[]),
        CAST(:outcomes AS smallint[]), CAST(:numbers AS bigint[]), CAST(:wait_ms AS bigint[]),
        CAST(:run_ms AS bigint[]), CAST(:waits AS text[]), CAST(:runs AS text[]))
        AS t(minute, name, queue, outcome, number, wait_ms, run_ms, waits, runs)
    ORDER BY t.minute, t.name, t.queue, t.outcome
    ON CONFLICT (at, slot, name, queue, outcome) DO UPDATE SET
        number = EXCLUDED.number, wait_ms = EXCLUDED.wait_ms, run_ms = EXCLUDED.run_ms,
        waits = EXCLUDED.waits, runs = EXCLUDED.runs, written_at = EXCLUDED.written_at""")
ADD_COUNTS = text(f"""
    INSERT INTO {COUNT_PART} (slot, {KEY}, {SUMS}, written_at)
    SELECT CAST(gen_random_uuid() AS text), date_trunc('minute', {NOW}), t.name, t.queue, t.outcome,
        t.number, 0, 0, '{{}}', '{{}}', {NOW}
    FROM unnest(
        CAST(:names AS text[]), CAST(:queues AS text[]), CAST(:outcomes AS smallint[]),
        CAST(:numbers AS bigint[])) AS t(name, queue, outcome, number)""")


def write_parts(
    connection: Connection, slot: str, parts: Sequence[CountPart], *, now: Clock = None
) -> None:
    """Write running totals, over those that the slot wrote before."""
    if not parts:
        return
    columns: list[list[Any]] = [list(column) for column in zip(*parts, strict=True)]
    *plain, waits, runs = columns
    names = ("minutes", "names", "queues", "outcomes", "numbers", "wait_ms", "run_ms")
    values = {"slot": slot, "waits": _arrays(waits), "runs": _arrays(runs), "now": now}
    connection.execute(_WRITE, {**values, **dict(zip(names, plain, strict=True))})


def _arrays(histograms: Sequence[Sequence[int]]) -> list[str]:
    return ["{" + ",".join(map(str, histogram)) + "}" for histogram in histograms]


def add_counts(
    connection: Connection, moved: Iterable[tuple[str, str, CountedOutcome]], *, now: Clock = None
) -> None:
    """Count tasks that this transaction moves without a run, by name, queue and outcome."""
    # They are counted once, if it commits.
    counted = Counter(moved)
    if counted:
        columns = [list(column) for column in zip(*counted, strict=True)]
        values = dict(zip(("names", "queues", "outcomes"), columns, strict=True))
        numbers = list(counted.values())
        connection.execute(ADD_COUNTS, {**values, "numbers": numbers, "now": now})


def add_moved(
    connection: Connection, moved: Iterable[Any], event: Event | None = None, *, now: Clock = None
) -> dict[int, State]:
    """Count the rows that a statement has moved, and return where each went."""
    # They have id, goes_to, name and queue; ``event`` says why some are pending again.
    rows = [row for row in moved if row.goes_to is not None]  # not the tasks that start
    event = event or Event.RELEASE
    counted = [(r.name, r.queue, outcome_of(State(r.goes_to), event)) for r in rows]
    add_counts(connection, counted, now=now)
    return {row.id: State(row.goes_to) for row in rows}


def summed(histogram: str) -> str:
    """Return the sum of histograms, an aggregate; empty buckets at the end may be missing."""
    # One aggregate a bucket: unnest takes twice as long.
    buckets = ", ".join(f"coalesce(sum({histogram}[{n}]), 0)" for n in range(1, BUCKETS + 1))
    return f"CAST((ARRAY[{buckets}])[1:coalesce(max(cardinality({histogram})), 0)] AS bigint[])"


def added_up(source: str) -> str:
    """Return the sums over a group of rows, in the order of SUMS."""
    plain = [f"CAST(sum({source}.{c}) AS bigint) AS {c}" for c in ("number", "wait_ms", "run_ms")]
    return ", ".join([*plain, *(f"{summed(f'{source}.{c}')} AS {c}" for c in ("waits", "runs"))])


def bucket(ms: str) -> str:
    """Return the bucket of so many milliseconds, as ``bucket_of``; null stays null."""
    return f"width_bucket({ms}, ARRAY[{', '.join(map(str, BOUNDS_MS))}]::bigint[])"


def counted(bucket: str, number: str) -> str:
    """Return a histogram, an aggregate, of rows with a ``number`` for a bucket."""
    buckets = ", ".join(
        f"coalesce(sum({number}) FILTER (WHERE {bucket} = {n}), 0)" for n in range(BUCKETS)
    )
    return f"CAST((ARRAY[{buckets}])[1:coalesce(max({bucket}) + 1, 0)] AS bigint[])"


def highest(one: str, other: str) -> str:
    """Return the histogram with, for each bound, the higher count below it."""
    return f"""(SELECT coalesce(array_agg(CAST(below - before AS bigint) ORDER BY n), '{{}}') FROM (
        SELECT n, below, lag(below, 1, 0) OVER (ORDER BY n) AS before FROM (
            SELECT n, greatest(sum(coalesce(({one})[n], 0)) OVER (ORDER BY n),
                sum(coalesce(({other})[n], 0)) OVER (ORDER BY n)) AS below
            FROM generate_series(1, greatest(cardinality({one}), cardinality({other}))) AS n
        ) AS of_bounds) AS of_buckets)"""


MERGED = {
    "number": "EXCLUDED.number",
    **{ms: f"greatest(c.{ms}, EXCLUDED.{ms})" for ms in ("wait_ms", "run_ms")},
    **{array: highest(f"c.{array}", f"EXCLUDED.{array}") for array in ("waits", "runs")},
}
"""Of an upsert whose number is higher, but counted in another way: its buckets may be lower."""
RAISED = {
    column: value
    if column == "number"
    else f"CASE WHEN c.exact THEN {value} ELSE EXCLUDED.{column} END"
    for column, value in MERGED.items()
}
"""The same if only ``exact`` rows were counted in another way."""
