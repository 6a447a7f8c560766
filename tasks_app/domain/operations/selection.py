"""Which tasks an operator means: a filter over one pool, and what is to be done to them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any

from tasks_app.domain.durations import format_duration, parse_duration
from tasks_app.domain.errors import InvalidSelectionError
from tasks_app.domain.tasks.states import Pool, State, pool_of

MOST_IDS = 10_000
"""Of one selection: they stand in the audit."""


class Action(StrEnum):
    """What can be done to many."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    EDIT = "edit"


_POOLS = {
    Action.CANCEL: (Pool.PENDING,),
    Action.REQUEUE: (Pool.ERROR, Pool.COMPLETED),
    Action.EDIT: (Pool.PENDING, Pool.ERROR),
}
"""Where each finds its tasks; the first one unless a pool or state is given."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A task is meant if all that is given is true of it. Ages are those at the beginning."""

    pool: Pool
    state: State | None = None
    name: str | None = None
    queue: str | None = None
    biz_key: str | None = None
    error_kind: str | None = None
    """Class of the last error, with or without its module."""
    error_text: str | None = None
    """Is part of the last error, in small letters or capitals."""
    older_than: timedelta | None = None
    """Since it was created, or has finished."""
    newer_than: timedelta | None = None
    ids: tuple[int, ...] | None = None

    def plain(self) -> dict[str, Any]:
        """Return what is given, as JSON has it."""
        return {name: _plain(value) for name, value in self.given().items()}

    def given(self) -> dict[str, Any]:
        """Return the fields that are not None, in their order."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def select(action: Action, given: dict[str, Any]) -> Selection:
    """Return the selection for an action; spans may be text, ids any integers.

    Raises:
        InvalidSelectionError: it would mean everything, or what the action cannot be done to.
    """
    words = {name: value for name, value in given.items() if value not in (None, ())}
    unknown = words.keys() - {field.name for field in fields(Selection)}
    if unknown:
        raise InvalidSelectionError(f"Nothing can be selected by {', '.join(sorted(unknown))}.")
    if not words.keys() - {"pool", "state"}:
        raise InvalidSelectionError("That would be everything. Say which: by name, queue, ids, …")
    state = _word(State, "state", words.get("state"))
    pool = _word(Pool, "pool", words.get("pool"))
    if pool is None:
        pool = _POOLS[action][0] if state is None else pool_of(state)
    if pool not in _POOLS[action] or (state and pool_of(state) is not pool):
        where = " or ".join(_POOLS[action])
        raise InvalidSelectionError(f"Only tasks of the pool {where} can be chosen for {action}.")
    if action is Action.EDIT and pool is Pool.PENDING:
        if state is State.RUNNING:
            raise InvalidSelectionError("What runs has its payload already. Edit what is PENDING.")
        state = State.PENDING
    words |= {"pool": pool, "state": state}
    for span in ("older_than", "newer_than"):
        words[span] = _span(span, words.get(span))
    ids = tuple(sorted({int(one) for one in words.get("ids") or ()}))
    if len(ids) > MOST_IDS:
        raise InvalidSelectionError(f"{len(ids)} ids are too many. Give {MOST_IDS} at a time.")
    return Selection(**{**words, "ids": ids or None})


def _word(kind: Any, what: str, word: Any) -> Any:
    known = {str(one).lower(): one for one in kind}
    if word is not None and str(word).lower() not in known:
        raise InvalidSelectionError(f"There is no {what} {word!r:.40}. Known: {', '.join(kind)}.")
    return known.get(str(word).lower())


def _span(name: str, value: Any) -> timedelta | None:
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise InvalidSelectionError(f"{name} {error}. Say it as 30s, 10m, 6h or 2d.") from None


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return format_duration(value)
    return list(value) if isinstance(value, tuple) else value
