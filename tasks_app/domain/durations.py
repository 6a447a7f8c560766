"""Durations, instants and counts: read as people write them, and written as people read them."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WRITTEN = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*$")
MIB = 1024**2
_UNITS = {"KB": 1024, "MB": MIB, "GB": 1024 * MIB}
_BYTES = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(kb|mb|gb)\s*$", re.IGNORECASE)
LONGEST = timedelta(days=3660)  # ten years: a longer wait is probably a typing error
ALLOWED = "seconds, a timedelta, or text such as '30s'"
ALLOWED_RATE = "a number and a time, such as 100/1m"
Duration = float | str | timedelta
NO_DURATION = "which is not a duration"


def parse_duration(value: Duration) -> timedelta:
    """Return ``value`` as a timedelta; a bare number is in seconds; raises ValueError."""
    if isinstance(value, timedelta):
        span = value
    elif isinstance(value, str):
        found = _WRITTEN.match(value)
        if found is None:
            raise ValueError(f"is {value[:40]!r}, {NO_DURATION}")
        span = _timedelta(float(found[1]) * _SECONDS[found[2] or "s"])
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"is of type {type(value).__name__}, {NO_DURATION}")
    else:
        span = _timedelta(value)
    if not timedelta(0) <= span <= LONGEST:
        raise ValueError("is outside 0 .. 3660 days")
    return span


def _timedelta(seconds: float) -> timedelta:
    if not 0 <= seconds <= LONGEST.total_seconds():  # NaN is neither
        raise ValueError("is outside 0 .. 3660 days")
    return timedelta(seconds=seconds)


def parse_rate(value: Any) -> tuple[int, timedelta]:
    """Return number and time of a rate such as ``100/1m``; raises ValueError."""
    number, _, span = value.partition("/") if isinstance(value, str) else ("", "", "")
    with suppress(ValueError):
        rate = int(number), parse_duration(span)
        if 1 <= rate[0] < 2**31 and timedelta(milliseconds=1) <= rate[1] <= timedelta(days=366):
            return rate
    raise ValueError("is not a rate")


def parse_bytes(value: str) -> int:
    """Return an amount of memory such as ``512MB`` in bytes; raises ValueError."""
    found = _BYTES.match(value)
    size = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if not 0 < size < 2**50:
        raise ValueError(f"{value[:40]!r} is no amount of memory. Write it as 512MB or 2GB")
    return size


def named_duration(name: str, value: Duration) -> timedelta:
    """Parse the argument ``name``; a ValueError names it."""
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{name} {error}. Allowed: {ALLOWED}.") from None


def format_duration(span: timedelta) -> str:
    """Return the shortest text from which :func:`parse_duration` makes ``span`` again."""
    microseconds = span // timedelta(microseconds=1)
    for unit in ("d", "h", "m", "s", "ms"):
        size = round(_SECONDS[unit] * 1_000_000)
        if microseconds and microseconds % size == 0:
            return f"{microseconds // size}{unit}"
    return f"{microseconds // 1000}.{microseconds % 1000:03}ms" if microseconds else "0s"


NAME_ITS_MODULE = "Name its module in the TASKS_APP_IMPORTS of a worker"


def rough_span(span: timedelta) -> str:
    """Return a span in the largest unit of which it has at least two."""
    seconds = max(0, int(span.total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def milliseconds_in_words(ms: float | None) -> str:
    """Return a readable time; None becomes ``-``."""
    if ms is None:
        return "-"
    second, minute, hour = 1_000, 60_000, 3_600_000
    if ms < second:
        return f"{ms:.0f} ms"
    if ms < 2 * minute:
        return f"{ms / second:.1f} s"
    return f"{ms / minute:.0f} min" if ms < 2 * hour else f"{ms / hour:.1f} h"


def to_the_minute(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}Z"


def to_the_second(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def distance_in_words(at: datetime, now: datetime) -> str:
    if abs(at - now) < timedelta(seconds=1):
        return "just now"
    return f"in {rough_span(at - now)}" if at > now else f"{rough_span(now - at)} ago"


def instant_in_words(at: datetime, now: datetime) -> str:
    return f"{distance_in_words(at, now)} ({to_the_second(at)})"


def count(number: int, thing: str) -> str:
    """Return ``1 child`` or ``2 children``."""
    plural = {"child": "children", "index": "indexes"}.get(thing, f"{thing}s")
    return f"{number} {thing if number == 1 else plural}"
