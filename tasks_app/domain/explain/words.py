"""Durations, instants and counts in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

NAME_ITS_MODULE = "Name its module in the TASKS_APP_IMPORTS of a worker"
"""In Django it is found by itself, says the command line."""
_NOW = timedelta(seconds=1)
_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000


def rough(span: timedelta) -> str:
    """Return a span in the largest unit of which it has at least two."""
    seconds = max(0, int(span.total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def span(ms: float | None) -> str:
    """Return milliseconds as people read them; None: there are none."""
    if ms is None:
        return "-"
    if ms < _SECOND:
        return f"{ms:.0f} ms"
    if ms < 2 * _MINUTE:
        return f"{ms / _SECOND:.1f} s"
    return f"{ms / _MINUTE:.0f} min" if ms < 2 * _HOUR else f"{ms / _HOUR:.1f} h"


def to_the_minute(at: datetime) -> str:
    """Return ``2026-01-31 09:00Z``, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}Z"


def exact(at: datetime) -> str:
    """Return ``2026-01-31 09:00:00Z``: UTC, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def distance(at: datetime, now: datetime) -> str:
    if abs(at - now) < _NOW:
        return "just now"
    return f"in {rough(at - now)}" if at > now else f"{rough(now - at)} ago"


def when(at: datetime, now: datetime) -> str:
    return f"{distance(at, now)} ({exact(at)})"


def count(number: int, thing: str) -> str:
    """Return ``1 child`` or ``2 children``."""
    plural = {"child": "children", "index": "indexes"}.get(thing, f"{thing}s")
    return f"{number} {thing if number == 1 else plural}"
