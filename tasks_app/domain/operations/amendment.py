"""What an action makes of the tasks that it means: another date, queue or priority; and why."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from tasks_app.domain.durations import ALLOWED_RATE, format_duration, parse_rate
from tasks_app.domain.errors import InvalidSelectionError, InvalidTaskError
from tasks_app.domain.operations.author import author
from tasks_app.domain.operations import BulkAction
from tasks_app.domain.tasks import option_checks
from tasks_app.domain.tasks.names import check_queue

_TAKES = {
    BulkAction.RESCHEDULE: {"at", "delay"},
    BulkAction.REPRIORITISE: {"to_priority"},
    BulkAction.MOVE: {"to_queue"},
    BulkAction.RUN_NOW: {"rate"},
    BulkAction.RELEASE: {"rate"},
}
"""What each takes beside ``why``; of the first three, exactly one of it must be given."""


@dataclass(frozen=True, slots=True)
class Amendment:
    """The fields that the action does not take are None."""

    at: datetime | None = None
    delay: timedelta | None = None
    """From the beginning of the action."""
    to_queue: str | None = None
    to_priority: int | None = None
    rate: str | None = None
    """How many become due in which time: ``50/1s``."""
    why: str | None = None

    @property
    def gap(self) -> timedelta | None:
        """Between two tasks, by ``rate``."""
        if self.rate is None:
            return None
        number, period = parse_rate(self.rate)
        return period / number

    @property
    def place(self) -> str | None:
        """Return the new place in words, if it is another one."""
        if self.to_queue is not None:
            return f"to queue {self.to_queue}"
        return None if self.to_priority is None else f"to priority {self.to_priority}"

    def plain(self) -> dict[str, Any]:
        """Return the given fields as JSON values."""
        return {name: _plain(value) for name, value in given(self).items()}


WORDS = frozenset(field.name for field in fields(Amendment))
"""None is a word of a selection."""


def given(change: Amendment) -> dict[str, Any]:
    values = {field.name: getattr(change, field.name) for field in fields(change)}
    return {name: value for name, value in values.items() if value is not None}


def amendment_of(action: BulkAction, words: dict[str, Any]) -> Amendment:
    """Return the change; instants and durations may be text.

    Raises:
        InvalidSelectionError: the action takes no such thing, lacks one, or cannot use it.
    """
    said = {name: value for name, value in words.items() if value not in (None, "")}
    takes = _TAKES.get(action, set())
    strange = said.keys() - takes - {"why"}
    if strange:
        raise InvalidSelectionError(
            f"{action} takes no {', '.join(sorted(strange))}. Leave it out."
        )
    if takes and "rate" not in takes and len(said.keys() & takes) != 1:
        raise InvalidSelectionError(f"{action} needs {' or '.join(sorted(takes))}. Give one.")
    try:
        return Amendment(**_checked(said))
    except InvalidTaskError as error:
        raise InvalidSelectionError(str(error)) from None


def _checked(said: dict[str, Any]) -> dict[str, Any]:
    checked = dict(said)
    if isinstance(checked.get("at"), str):
        checked["at"] = option_checks.tried(_instant, checked["at"], "at", "an ISO 8601 instant")
    if "at" in checked:
        checked["at"] = option_checks.moment(checked, "at")
    if "delay" in checked:
        checked["delay"] = option_checks.span(checked, "delay")
    if "to_queue" in checked:
        check_queue(checked["to_queue"])
    if "to_priority" in checked:
        option_checks.integer(checked, "to_priority", 0, 9)
    if "rate" in checked:
        option_checks.tried(parse_rate, checked["rate"], "rate", ALLOWED_RATE)
    if "why" in checked:
        checked["why"] = author("", str(checked["why"])).why
    return checked


def _instant(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"is {text!r:.40}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return format_duration(value)
    return value.isoformat() if isinstance(value, datetime) else value
