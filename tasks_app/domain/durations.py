"""Spans as people write them: ``30``, ``"30s"``, ``"1.5h"``, ``timedelta(minutes=2)``."""

from __future__ import annotations

import math
import re
from datetime import timedelta

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WRITTEN = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*$")
LONGEST = timedelta(days=3660)
"""Ten years: longer waits are taken for a slip of the pen."""

Duration = float | str | timedelta


def parse_duration(value: Duration) -> timedelta:
    """Return ``value`` as a span; a bare number is in seconds.

    Raises:
        ValueError: not a duration, negative, not finite, or above ten years.
    """
    if isinstance(value, timedelta):
        span = value
    elif isinstance(value, str):
        found = _WRITTEN.match(value)
        if found is None:
            raise ValueError(f"is {value!r}, which is not a duration")
        span = _span(float(found[1]) * _SECONDS[found[2] or "s"])
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"is of type {type(value).__name__}, which is not a duration")
    else:
        span = _span(value)
    if not timedelta(0) <= span <= LONGEST:
        raise ValueError(f"is {value!r}, which is outside 0 .. 3660 days")
    return span


def format_duration(span: timedelta) -> str:
    """Return the shortest text from which :func:`parse_duration` makes ``span`` again."""
    milliseconds = round(span / timedelta(milliseconds=1))
    for unit in ("d", "h", "m", "s"):
        size = round(_SECONDS[unit] * 1000)
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0s"


def _span(seconds: float) -> timedelta:
    if not math.isfinite(seconds) or abs(seconds) > LONGEST.total_seconds() * 2:
        raise ValueError(f"is {seconds!r}, which is outside 0 .. 3660 days")
    return timedelta(seconds=seconds)
