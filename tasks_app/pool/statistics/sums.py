"""Phrases of the counters' SQL: columns, and histograms that are added up by position."""

from __future__ import annotations

from tasks_app.domain.statistics.histogram import BOUNDS_MS, BUCKETS

KEY = "at, name, queue, outcome"
SUMS = "number, wait_ms, run_ms, waits, runs"
BOUNDS = f"ARRAY[{', '.join(map(str, BOUNDS_MS))}]::bigint[]"


def summed(histogram: str) -> str:
    """Return the sum of histograms, an aggregate; empty buckets at the end may be left out.

    One aggregate a bucket: to unnest them takes twice as long.
    """
    buckets = ", ".join(f"coalesce(sum({histogram}[{n}]), 0)" for n in range(1, BUCKETS + 1))
    return f"CAST((ARRAY[{buckets}])[1:coalesce(max(cardinality({histogram})), 0)] AS bigint[])"


def added_up(source: str) -> str:
    """Return the sums over a group of rows, in the order of SUMS."""
    plain = ", ".join(
        f"CAST(sum({source}.{column}) AS bigint) AS {column}"
        for column in ("number", "wait_ms", "run_ms")
    )
    arrays = ", ".join(
        f"{summed(f'{source}.{column}')} AS {column}" for column in ("waits", "runs")
    )
    return f"{plain}, {arrays}"


def bucket(ms: str) -> str:
    """Return the bucket of so many milliseconds, as ``bucket_of``; null stays null."""
    return f"width_bucket({ms}, {BOUNDS})"


def counted(bucket: str, number: str) -> str:
    """Return a histogram, an aggregate, of rows that say ``number`` for a bucket."""
    buckets = ", ".join(
        f"coalesce(sum({number}) FILTER (WHERE {bucket} = {n}), 0)" for n in range(BUCKETS)
    )
    return f"CAST((ARRAY[{buckets}])[1:coalesce(max({bucket}) + 1, 0)] AS bigint[])"


def highest(one: str, other: str) -> str:
    """Return the histogram that says of each bound the higher count of what is below it."""
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
"""Of an upsert: the number is higher, but was counted in another way, so buckets may not be."""
RAISED = {
    column: value
    if column == "number"
    else f"CASE WHEN c.exact THEN {value} ELSE EXCLUDED.{column} END"
    for column, value in MERGED.items()
}
"""The same where only what is ``exact`` was counted in another way."""
