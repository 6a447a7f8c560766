"""How pages show values: instants, numbers, states, texts; with everything escaped."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from markupsafe import Markup, escape

from tasks_app.domain.explain.words import distance, exact, span

NOTHING = "-"
_WHOLE = Markup('<span class="whole">{}</span>')
LONGEST_WHOLE = 30
_FAINT = Markup('<span class="faint">{}</span>')
THOUSAND = 1_000
_BADGES = {
    "PENDING": "wait",
    "RUNNING": "run",
    "SUCCEEDED": "ok",
    "FAILED": "bad",
    "CANCELLED": "off",
    "SKIPPED": "off",
    "EXPIRED": "warn",
    "COMPLETED": "ok",
    "STOPPING": "warn",
    "STOPPED": "warn",
    "WAITING": "wait",
    "PLANNING": "run",
    "COMPENSATING": "warn",
    "REDUCING": "run",
    "queued": "wait",
    "broken": "bad",
    "open": "bad",
    "closed": "ok",
    "probing": "warn",
    "ramping": "warn",
}
"""By state of a task, outcome of an instant, state of a breaker."""


def age(at: datetime | None, now: datetime) -> Markup:
    """Return how long ago, which a script keeps true, with the instant on hover."""
    if at is None:
        return _FAINT.format(NOTHING)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.astimezone(UTC).isoformat(), exact(at), distance(at, now)
    )


def since(at: datetime | None, now: datetime) -> Markup:
    """Return how long it has lasted, which a script keeps true."""
    if at is None:
        return _FAINT.format(NOTHING)
    return Markup('<time class="span" datetime="{}" title="{}">{}</time>').format(
        at.astimezone(UTC).isoformat(), exact(at), distance(at, now).removesuffix(" ago")
    )


def number(value: int, *, more: bool = False) -> str:
    """Return it with commas; a zero stands back."""
    return f"{value:,}{'+' if more else ''}" if value or more else _FAINT.format(0)


def span_of(ms: float | None) -> str:
    return _FAINT.format(NOTHING) if ms is None else span(ms)


def whole(text: str) -> Markup:
    """Let no line end within an option or a command's name, however narrow the window is."""
    words = (
        _WHOLE.format(word) if "-" in word and len(word) < LONGEST_WHOLE else escape(word)
        for word in text.split(" ")
    )
    return Markup(" ").join(words)


def tick(value: float) -> str:
    """Return a round number of an axis."""
    return f"{value / THOUSAND:g} k" if value >= 10 * THOUSAND else f"{value:,.0f}"


def clock(at: datetime, *, days: bool) -> str:
    return f"{at.astimezone(UTC):%d %b}" if days else f"{at.astimezone(UTC):%H:%M}"


def local(at: datetime, zone: str) -> str:
    """Return weekday and time by the clocks of a zone; nothing in UTC or an unknown one."""
    try:
        there = at.astimezone(ZoneInfo(zone))
    except (ValueError, ZoneInfoNotFoundError):
        return ""
    return "" if zone == "UTC" else f"{there:%a %H:%M}"


def badge(state: str) -> Markup:
    return Markup('<span class="badge {}">{}</span>').format(shape(state), state)


def shape(state: str) -> str:
    return _BADGES.get(state, "off")


def linked(text: str, root: str) -> Markup:
    """Return a sentence in which a task that is named is a link."""
    link = rf'<a href="{escape(root)}/tasks/\2">\1 \2</a>'
    return Markup(re.sub(r"\b([Tt]ask) (\d+)\b", link, str(escape(text))))  # noqa: S704  escaped


def indented(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)
