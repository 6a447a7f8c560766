"""Which tasks an operator means: a filter over one pool, and the actions on them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any

from tasks_app.domain.durations import format_duration, parse_duration
from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.tasks.fingerprint import parse_fingerprint
from tasks_app.domain.tasks.states import Pool, State, pool_of

MOST_IDS = 10_000
"""In one selection: the audit keeps them."""


class BulkAction(StrEnum):
    """A bulk operation."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    EDIT = "edit"
    RUN_NOW = "run-now"
    RESCHEDULE = "reschedule"
    REPRIORITISE = "reprioritise"
    MOVE = "move"
    HOLD = "hold"
    RELEASE = "release"
    ENABLE = "enable"
    DISABLE = "disable"


DONE = {
    BulkAction.RUN_NOW: "due now",
    BulkAction.RESCHEDULE: "rescheduled",
    BulkAction.REPRIORITISE: "reprioritised",
    BulkAction.MOVE: "moved",
    BulkAction.HOLD: "held",
    BulkAction.RELEASE: "released",
    BulkAction.ENABLE: "enabled",
    BulkAction.DISABLE: "disabled",
}
"""What those that change how a task waits are said to have done."""
WAITING = frozenset(DONE)
_POOLS = {
    BulkAction.REQUEUE: (Pool.ERROR, Pool.COMPLETED),
    BulkAction.EDIT: (Pool.PENDING, Pool.ERROR),
}
"""The pools of an action, the pending one of all others; the first is the default."""
_HELD = {BulkAction.HOLD: False, BulkAction.RELEASE: True}
"""What an action means by itself: to hold what is held would change nothing."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A task is meant if every given field fits it. Ages count from the operation's beginning."""

    pool: Pool
    state: State | None = None
    name: str | None = None
    queue: str | None = None
    biz_key: str | None = None
    error_kind: str | None = None
    """Class of the last error, with or without its module."""
    fingerprint: str | None = None
    """Of the error, as 16 hexadecimal digits; only in the error pool."""
    error_text: str | None = None
    """A part of the last error's text; case does not matter."""
    older_than: timedelta | None = None
    """Since its creation, or since its end."""
    newer_than: timedelta | None = None
    retrying: bool | None = None
    """It has run, and waits for its next attempt."""
    held: bool | None = None
    ids: tuple[int, ...] | None = None

    def plain(self) -> dict[str, Any]:
        """Return the given fields as JSON values."""
        return {name: _plain(value) for name, value in self.given().items()}

    def given(self) -> dict[str, Any]:
        """Return the fields that are not None, in their order."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def select(action: BulkAction, given: dict[str, Any]) -> Selection:
    """Return the selection for an action; durations may be text, ids may be any integers.

    Raises:
        InvalidSelectionError: it would mean all tasks, or tasks that the action does not fit.
    """
    words = {name: value for name, value in given.items() if value not in (None, ())}
    if not words.get("retrying", True):
        del words["retrying"]
    unknown = words.keys() - {field.name for field in fields(Selection)}
    if unknown:
        raise InvalidSelectionError(f"Nothing can be selected by {', '.join(sorted(unknown))}.")
    if not words.keys() - {"pool", "state"}:
        raise InvalidSelectionError("That would be everything. Say which: by name, queue, ids, …")
    state = _word(State, "state", words.get("state"))
    pool = _word(Pool, "pool", words.get("pool"))
    if "fingerprint" in words:
        words["fingerprint"], pool = _fingerprint(words["fingerprint"], pool)
    pool, state = _where(action, pool, state)
    if pool is not Pool.PENDING and words.keys() & {"retrying", "held"}:
        raise InvalidSelectionError("Only tasks of the pool pending are held or retry.")
    words |= {"pool": pool, "state": state}
    if action in _HELD:
        words["held"] = _HELD[action]
    for span in ("older_than", "newer_than"):
        words[span] = _span(span, words.get(span))
    ids = tuple(sorted({int(one) for one in words.get("ids") or ()}))
    if len(ids) > MOST_IDS:
        raise InvalidSelectionError(f"{len(ids)} ids are too many. Give {MOST_IDS} at a time.")
    return Selection(**{**words, "ids": ids or None})


def _where(action: BulkAction, pool: Pool | None, state: State | None) -> tuple[Pool, State | None]:
    pools = _POOLS.get(action, (Pool.PENDING,))
    if pool is None:
        pool = pools[0] if state is None else pool_of(state)
    if pool not in pools or (state and pool_of(state) is not pool):
        where = " or ".join(pools)
        raise InvalidSelectionError(f"Only tasks of the pool {where} can be chosen for {action}.")
    if pool is not Pool.PENDING or action not in {BulkAction.EDIT, *WAITING}:
        return pool, state
    if state is State.RUNNING and action is BulkAction.EDIT:
        raise InvalidSelectionError("What runs has its payload already. Edit what is PENDING.")
    if state is State.RUNNING:
        raise InvalidSelectionError(
            f"What runs does not wait. For {action} choose what is PENDING."
        )
    return pool, State.PENDING


def _word(kind: Any, what: str, word: Any) -> Any:
    known = {str(one).lower(): one for one in kind}
    if word is not None and str(word).lower() not in known:
        raise InvalidSelectionError(f"There is no {what} {word!r:.40}. Known: {', '.join(kind)}.")
    return known.get(str(word).lower())


def _fingerprint(value: Any, pool: Pool | None) -> tuple[str, Pool]:
    if pool not in {None, Pool.ERROR}:
        raise InvalidSelectionError("Only tasks of the pool error are selected by fingerprint.")
    try:
        return parse_fingerprint(str(value)).hex(), Pool.ERROR
    except ValueError as error:
        raise InvalidSelectionError(str(error)) from None


def _span(name: str, value: Any) -> timedelta | None:
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise InvalidSelectionError(f"{name} {error}. Say it as 30s, 10m, 6h or 2d.") from None


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return format_duration(value)
    return list(value) if isinstance(value, tuple) else value
