"""Histograms of milliseconds in 25 buckets, each twice as wide as the one before.

The bounds are the same in Python, SQL, plots and metrics, and can never change: what was counted
stays in its bucket. Bucket 0 holds less than 1 ms, bucket n holds 2^(n-1) ms up to 2^n ms, the last
one 2.3 hours and more. A percentile is interpolated within its bucket, so it is off by less than a
factor of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

BUCKETS = 25
LAST = BUCKETS - 1
BOUNDS_MS = tuple(1 << n for n in range(LAST))
"""Bucket n holds what is below ``BOUNDS_MS[n]`` and not below the bound before it."""


def bucket_of(ms: int) -> int:
    """Return the bucket of so many whole milliseconds."""
    return min(ms.bit_length(), LAST)


def merged(*histograms: Sequence[int]) -> list[int]:
    """Add histograms up; the shorter ones lack buckets that are empty."""
    return [sum(counts) for counts in zip_longest(*histograms, fillvalue=0)]


def trimmed(histogram: Sequence[int]) -> list[int]:
    """Leave out the empty buckets at the end."""
    used = len(histogram)
    while used and not histogram[used - 1]:
        used -= 1
    return list(histogram[:used])


def percentile(histogram: Sequence[int], share: float) -> float | None:
    """Return the milliseconds that ``share`` of what was counted stays below; None: none was.

    Of the last bucket, which has no upper bound, its lower bound.
    """
    total = sum(histogram)
    if not total:
        return None
    left = share * total
    for bucket, number in enumerate(histogram):
        if number and left <= number:
            low = BOUNDS_MS[bucket - 1] if bucket else 0
            if bucket >= LAST:
                return float(low)
            return low + (BOUNDS_MS[bucket] - low) * max(left, 0.0) / number
        left -= number
    return float(BOUNDS_MS[-1])
