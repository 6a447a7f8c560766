"""What operators request: which tasks, what changes in them, by whom, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import ValidationError

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.durations import ALLOWED_RATE, format_duration, parse_duration, parse_rate
from tasks_app.domain.errors import InvalidSelectionError, InvalidTaskError, UnreadableTaskError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks import options
from tasks_app.domain.tasks.error_text import parse_fingerprint
from tasks_app.domain.tasks.options import check_id, check_queue
from tasks_app.domain.tasks.payload_checks import check_text
from tasks_app.domain.tasks.payload_type import explain
from tasks_app.domain.tasks.states import Pool, State, pool_of

MOST_IDS = 10_000  # in one selection: the audit keeps them


class BulkAction(StrEnum):
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
}  # the actions that change how a task waits, and the words for what they did
WAITING = frozenset(DONE)
_POOLS = {  # of other actions: PENDING; the first is the default
    BulkAction.REQUEUE: (Pool.ERROR, Pool.COMPLETED),
    BulkAction.EDIT: (Pool.PENDING, Pool.ERROR),
}
_HELD = {BulkAction.HOLD: False, BulkAction.RELEASE: True}  # other tasks need no change


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects the tasks that match all given fields. Ages count from the start of the operation."""

    pool: Pool
    state: State | None = None
    name: str | None = None
    queue: str | None = None
    biz_key: str | None = None
    group: int | None = None  # they are members of this group
    error_kind: str | None = None  # class of the last error, with or without its module
    fingerprint: str | None = None  # 16 hexadecimal digits; only in the error pool
    error_text: str | None = None  # a part of the last error's text, in any case
    older_than: timedelta | None = None  # since its creation, or since its end
    newer_than: timedelta | None = None
    retrying: bool | None = None  # it has run, and waits for its next attempt
    held: bool | None = None
    ids: tuple[int, ...] | None = None

    def given(self) -> dict[str, Any]:
        """Return the fields that are not None, in their order."""
        return _given_fields(self)

    def plain(self) -> dict[str, Any]:
        """Return the given fields as JSON values."""
        return {name: _as_json(value) for name, value in self.given().items()}


def _given_fields(record: Selection | Amendment) -> dict[str, Any]:
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: value for name, value in values.items() if value is not None}


def _as_json(value: Any) -> Any:
    match value:
        case timedelta():
            return format_duration(value)
        case datetime():
            return value.isoformat()
        case tuple():
            return list(value)
        case _:
            return value


def parse_selection(action: BulkAction, given: dict[str, Any]) -> Selection:
    """Return the selection for an action; durations may be text, ids may be any integers.

    Raises InvalidSelectionError: it selects all tasks, or tasks that the action does not fit.
    """
    words = {name: value for name, value in given.items() if value not in (None, ())}
    if not words.get("retrying", True):
        del words["retrying"]
    unknown = words.keys() - {field.name for field in fields(Selection)}
    if unknown:
        raise InvalidSelectionError(f"Tasks cannot be selected by {', '.join(sorted(unknown))}.")
    if not words.keys() - {"pool", "state"}:
        raise InvalidSelectionError("This selects every task. Select by name, queue, ids, …")
    if "group" in words:
        try:
            words["group"] = check_id(words["group"], "group")
        except InvalidTaskError as error:
            raise InvalidSelectionError(str(error)) from None
    state = _word(State, "state", words.get("state"))
    pool = _word(Pool, "pool", words.get("pool"))
    if "fingerprint" in words:
        if pool not in {None, Pool.ERROR}:
            raise InvalidSelectionError("Only tasks of the pool error are selected by fingerprint.")
        pool = Pool.ERROR
        try:
            words["fingerprint"] = parse_fingerprint(str(words["fingerprint"])).hex()
        except ValueError as error:
            raise InvalidSelectionError(str(error)) from None
    pool, state = _pool_and_state(action, pool, state)
    if pool is not Pool.PENDING and words.keys() & {"retrying", "held"}:
        raise InvalidSelectionError("Only tasks of the pool pending are held or retry.")
    words |= {"pool": pool, "state": state}
    if action in _HELD:
        words["held"] = _HELD[action]
    for age in words.keys() & {"older_than", "newer_than"}:
        try:
            words[age] = parse_duration(words[age])
        except ValueError as error:
            problem = f"{age} {error}. Write it as 30s, 10m, 6h or 2d."
            raise InvalidSelectionError(problem) from None
    ids = tuple(sorted({int(one) for one in words.get("ids") or ()}))
    if len(ids) > MOST_IDS:
        raise InvalidSelectionError(f"{len(ids)} ids are too many. Give {MOST_IDS} at a time.")
    return Selection(**{**words, "ids": ids or None})


def _pool_and_state(
    action: BulkAction, pool: Pool | None, state: State | None
) -> tuple[Pool, State | None]:
    pools = _POOLS.get(action, (Pool.PENDING,))
    if pool is None:
        pool = pools[0] if state is None else pool_of(state)
    if pool not in pools or (state and pool_of(state) is not pool):
        allowed = " or ".join(pools)
        raise InvalidSelectionError(f"Only tasks of the pool {allowed} can be chosen for {action}.")
    if pool is not Pool.PENDING or action not in {BulkAction.EDIT, *WAITING}:
        return pool, state
    if state is State.RUNNING and action is BulkAction.EDIT:
        raise InvalidSelectionError("A running task already has its payload. Edit PENDING tasks.")
    if state is State.RUNNING:
        raise InvalidSelectionError(
            f"A running task does not wait. Choose PENDING tasks for {action}."
        )
    return pool, State.PENDING


def _word(kind: Any, what: str, word: Any) -> Any:
    known = {str(one).lower(): one for one in kind}
    if word is not None and str(word).lower() not in known:
        raise InvalidSelectionError(f"There is no {what} {word!r:.40}. Known: {', '.join(kind)}.")
    return known.get(str(word).lower())


_TAKES = {  # beside `why`; of the first three, exactly one must be given
    BulkAction.RESCHEDULE: {"at", "delay"},
    BulkAction.REPRIORITISE: {"to_priority"},
    BulkAction.MOVE: {"to_queue"},
    BulkAction.RUN_NOW: {"rate"},
    BulkAction.RELEASE: {"rate"},
}


@dataclass(frozen=True, slots=True)
class Amendment:
    """The arguments of an action; those that it does not take are None."""

    at: datetime | None = None
    delay: timedelta | None = None  # from the start of the action
    to_queue: str | None = None
    to_priority: int | None = None
    rate: str | None = None  # how many become due in which time, as 50/1s
    why: str | None = None

    @property
    def gap(self) -> timedelta | None:
        """The time between two tasks, by ``rate``."""
        if self.rate is None:
            return None
        number, period = parse_rate(self.rate)
        return period / number

    @property
    def place(self) -> str | None:
        """The new queue or priority in words."""
        if self.to_queue is not None:
            return f"to queue {self.to_queue}"
        return None if self.to_priority is None else f"to priority {self.to_priority}"

    def plain(self) -> dict[str, Any]:
        """Return the given fields as JSON values."""
        return {name: _as_json(value) for name, value in _given_fields(self).items()}


AMENDMENT_FIELDS = frozenset(field.name for field in fields(Amendment))  # no field of a selection


def parse_amendment(action: BulkAction, words: dict[str, Any]) -> Amendment:
    """Return the change; instants and durations may be text; raises InvalidSelectionError."""
    given = {name: value for name, value in words.items() if value not in (None, "")}
    takes = _TAKES.get(action, set())
    unknown = given.keys() - takes - {"why"}
    if unknown:
        raise InvalidSelectionError(
            f"{action} takes no {', '.join(sorted(unknown))}. Leave it out."
        )
    if takes and "rate" not in takes and len(given.keys() & takes) != 1:
        raise InvalidSelectionError(f"{action} needs {' or '.join(sorted(takes))}. Give one.")
    try:
        return Amendment(**_checked_arguments(given))
    except InvalidTaskError as error:
        raise InvalidSelectionError(str(error)) from None


def _checked_arguments(given: dict[str, Any]) -> dict[str, Any]:
    checked = dict(given)
    if isinstance(checked.get("at"), str):
        try:
            checked["at"] = datetime.fromisoformat(checked["at"])
        except ValueError:
            problem = f"is {checked['at']!r:.40}"
            raise InvalidTaskError("options.at", problem, "an ISO 8601 instant") from None
    if "at" in checked:
        checked["at"] = options.read_instant(checked, "at")
    if "delay" in checked:
        checked["delay"] = options.read_duration(checked, "delay")
    if "to_queue" in checked:
        check_queue(checked["to_queue"])
    if "to_priority" in checked:
        options.read_integer(checked, "to_priority", 0, 9)
    if "rate" in checked:
        options.parse_option(parse_rate, checked["rate"], "rate", ALLOWED_RATE)
    if "why" in checked:
        checked["why"] = check_author("", str(checked["why"])).why
    return checked


LONGEST_WHY = 500


class Author(NamedTuple):
    """The actor and the reason; empty: unknown."""

    who: str = ""
    why: str = ""

    @property
    def reason(self) -> dict[str, str]:
        """What the audit keeps beside the action."""
        return {"why": self.why} if self.why else {}


NO_AUTHOR = Author()


class SignedName(str):
    """A name with a reason, for functions that take a name alone."""

    __slots__ = ("why",)
    why: str


def sign_name(who: str, why: str) -> SignedName:
    """Raises InvalidSelectionError: the reason cannot be stored."""
    name = SignedName(who)
    name.why = check_author(who, why).why
    return name


def check_author(who: str, why: str) -> Author:
    """Raises InvalidSelectionError: the reason cannot be stored."""
    try:
        return Author(who, check_text(why, "why")[:LONGEST_WHY] if why else "")
    except InvalidTaskError as error:
        raise InvalidSelectionError(str(error)) from None


LONGEST_STEP = 40


def apply_patch(payload: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    new = dict(payload) if isinstance(payload, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = apply_patch(new.get(key), value)
    return new


def parse_patch(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that sets paths, as in ``{"customer.name": "A"}``, to their values.

    Raises InvalidSelectionError: two paths conflict.
    """
    patch: dict[str, Any] = {}
    for path, value in settings.items():
        *outer, last = path.split(".")
        inner: Any = patch
        for step in outer:
            inner = inner.setdefault(step, {})
            if not isinstance(inner, dict):
                break
        if not isinstance(inner, dict) or last in inner or not all((*outer, last)):
            raise InvalidSelectionError(f"The path {path!r:.60} cannot be set beside the others.")
        inner[last] = value
    return patch


def paths_of_patch(patch: Mapping[str, Any], outer: str = "payload") -> Iterator[str]:
    """Yield the paths that a patch touches, without their values."""
    for key, value in patch.items():
        path = f"{outer}.{key:.{LONGEST_STEP}}"
        if isinstance(value, Mapping) and value:
            yield from paths_of_patch(value, path)
        else:
            yield path


def check_patched_payload(name: str, payload: Any, spec: HandlerSpec, limit: int) -> str:
    """Return the JSON text of a payload that is given in its stored form.

    Raises InvalidSelectionError: the handler's model refuses it. The message says where, but omits
    the validator's own text, which may repeat the value.
    """
    try:
        text = validate_task(NewTask(name, payload), None, limit).payload
        spec.payload(text)
    except (InvalidTaskError, ValidationError, UnreadableTaskError) as error:
        path = explain(error)[0] if isinstance(error, ValidationError) else "payload"
        _, *steps = path.replace("[", ".").split(".")
        fields_ = spec.payload_type.fields if spec.payload_type else ()
        # Show the first step alone, if it is a field: others may be keys of the payload.
        where = f"payload.{steps[0]}" if steps and steps[0] in fields_ else "the payload"
        raise InvalidSelectionError(f"its handler refuses {where}") from None
    return text
