"""Events: what tasks wait for that is no end of another task, such as a person's decision."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from tasks_app.domain.durations import (
    ALLOWED,
    Duration,
    distance_in_words,
    format_duration,
    parse_duration,
    to_the_minute,
)
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.tasks.options import shown_value
from tasks_app.domain.tasks.payload_checks import check_text

LONGEST_KEY = 200


class EventNeed(NamedTuple):
    """An event that a step waits for; with a time-out it goes on without it after a while."""

    key: str
    timeout: timedelta | None = None


def event(key: str, timeout: Duration | None = None) -> EventNeed:
    """Return the need that :func:`send_event` sends an event with this key.

    Its ``timeout`` counts from when the other needs are met; then the step starts without it.

    >>> flow = Flow("order")
    >>> pay = flow.step("pay", send_mail, {"to": "bank@example.org"})
    >>> approved = event("order:7/approved", timeout="2d")
    >>> flow.step("ship", send_mail, {"to": "a@example.org"}, needs=[pay, approved]).step
    'ship'

    Raises:
        InvalidTaskError: the key cannot be stored, or the time-out is no positive duration.
    """
    check_event_key(key)
    if timeout is None:
        return EventNeed(key)
    try:
        span = parse_duration(timeout)
    except ValueError as error:
        raise InvalidTaskError("event.timeout", str(error), ALLOWED) from None
    if not span:
        raise InvalidTaskError("event.timeout", "is 0", "a time, or None to wait until it is sent")
    return EventNeed(key, span)


def check_event_key(key: Any) -> str:
    """Return the key; raises InvalidTaskError: it is no text of 1 to 200 characters."""
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        allowed = f"text of up to {LONGEST_KEY} characters"
        raise InvalidTaskError("event.key", f"is {shown_value(key)}", allowed)
    return check_text(key, "event.key")


class AwaitedEvent(NamedTuple):
    """An event that a task waits for, or has waited for."""

    key: str
    timeout: timedelta | None
    until: datetime | None  # when the time-out comes; None: there is none, or it has not begun
    sent_at: datetime | None
    is_open: bool  # it was neither sent nor timed out


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event that was sent, or that tasks wait for."""

    key: str
    payload: Any
    sent_at: datetime | None  # None: nobody has sent it
    by: str | None
    why: str | None
    waiting: int  # how many tasks wait for it
    since: datetime | None  # when the first of them was told to


def event_in_words(event: AwaitedEvent, now: datetime) -> str:
    if event.until is not None:
        until, span = to_the_minute(event.until), distance_in_words(event.until, now)
        return f"event {event.key} until {until} ({span})"
    if event.timeout is not None:
        return f"event {event.key} for {format_duration(event.timeout)}"
    return f"event {event.key}"
