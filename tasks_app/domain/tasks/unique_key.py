"""Unique keys: for how long a key is taken, and what a create does if it is."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from tasks_app.domain.durations import parse_duration


class Scope(StrEnum):
    """For how long a task has its unique_key."""

    QUEUED = "queued"
    """While it is PENDING: the key is free as soon as the task runs."""
    QUEUED_OR_RUNNING = "queued_or_running"
    UNTIL_TERMINAL = "until_terminal"
    """The same: while it is in the pending pool, where retries stay, too."""
    FOR_PERIOD = "for_period"
    """For a time from its creation on, even if it ends earlier."""
    FOREVER = "forever"


class OnConflict(StrEnum):
    """What a create does if its key is taken."""

    RETURN_EXISTING = "return_existing"
    REPLACE_PAYLOAD = "replace_payload"
    """Replace the holder's payload, if the holder is PENDING."""
    RESCHEDULE = "reschedule"
    """Reschedule the holder, if it is PENDING (debounce)."""
    RAISE = "raise"


class CreateOutcome(StrEnum):
    """What a create did."""

    CREATED = "created"
    EXISTING = "existing"
    """Nothing was written: the key is taken."""
    REPLACED = "replaced"
    """The holder now has this payload."""
    RESCHEDULED = "rescheduled"
    """The holder is now due when this task would have been."""


class KeyRule(NamedTuple):
    """Scope and conflict policy of a task's unique_key."""

    scope: Scope = Scope.UNTIL_TERMINAL
    on_conflict: OnConflict = OnConflict.RETURN_EXISTING
    period: timedelta | None = None
    """For the scope ``for_period``."""
    max_wait: timedelta | None = None
    """How long after its creation the holder is due at the latest, however often rescheduled."""

    @property
    def outlives_the_index(self) -> bool:
        """Whether the key is a row of the table of keys; other keys are columns of their tasks."""
        return self.scope in _IN_THE_TABLE


_IN_THE_TABLE = frozenset({Scope.QUEUED, Scope.FOR_PERIOD, Scope.FOREVER})
SCOPES = ", ".join(f"{s} 1h" if s is Scope.FOR_PERIOD else s for s in Scope)
POLICIES = ", ".join(OnConflict)


def parse_rule(scope: object, on_conflict: object, max_wait: object = None) -> KeyRule | None:
    """Return the rule; None: neither is given. A time follows ``for_period``.

    Raises:
        ValueError: the first argument names the option, the second what is wrong with it.
    """
    if max_wait is not None and on_conflict != OnConflict.RESCHEDULE:
        raise ValueError("max_wait", "bounds what is rescheduled", "with on_conflict='reschedule'")
    if scope is None and on_conflict is None:
        return None
    kind, period = _scope(Scope.UNTIL_TERMINAL if scope is None else scope)
    policy = OnConflict.RETURN_EXISTING if on_conflict is None else on_conflict
    if not isinstance(policy, str) or policy not in set(OnConflict):
        raise ValueError("on_conflict", "names no policy", POLICIES)
    longest = None if max_wait is None else _span("max_wait", max_wait, "such as '1m'")
    return KeyRule(kind, OnConflict(policy), period, longest)


def _scope(scope: object) -> tuple[Scope, timedelta | None]:
    if not isinstance(scope, str):
        raise ValueError("unique_scope", f"is of type {type(scope).__name__}", SCOPES)
    name, _, span = scope.partition(" ")
    if name not in set(Scope) or bool(span) != (name == Scope.FOR_PERIOD):
        raise ValueError("unique_scope", "names no scope", SCOPES)
    return Scope(name), _span("unique_scope", span, SCOPES) if span else None


def _span(option: str, value: Any, allowed: str) -> timedelta:
    try:
        span = parse_duration(value)
    except ValueError as error:
        raise ValueError(option, str(error), allowed) from None
    if not span:
        raise ValueError(option, "has a period of 0", allowed)
    return span
