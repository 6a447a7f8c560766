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
