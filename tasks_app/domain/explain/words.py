"""Spans and instants in the reader's words, with the exact instant behind them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tasks_app.domain.durations import rough

_NOW = timedelta(seconds=1)


def exact(at: datetime) -> str:
    """Return an instant to the second, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def distance(at: datetime, now: datetime) -> str:
    """Return how far away an instant is."""
    if abs(at - now) < _NOW:
        return "just now"
    return f"in {rough(at - now)}" if at > now else f"{rough(now - at)} ago"


def when(at: datetime, now: datetime) -> str:
    """Return both."""
    return f"{distance(at, now)} ({exact(at)})"


def count(number: int, thing: str) -> str:
    """Return ``1 child`` or ``2 children``."""
    plural = "children" if thing == "child" else f"{thing}s"
    return f"{number} {thing if number == 1 else plural}"
