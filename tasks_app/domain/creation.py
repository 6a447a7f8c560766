"""What a producer says of one task, and the check that makes a row of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, overload

from tasks_app.domain.creation.row_template import checked_template
from tasks_app.domain.encryption.envelope import BEGIN, check_no_token
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.large_values import reference
from tasks_app.domain.tasks import erased
from tasks_app.domain.tasks.option_checks import key, limit_keys
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.domain.tasks.payload import encode_object, encode_plain
from tasks_app.domain.tasks.payload_type import own_type
from tasks_app.domain.tasks.records import KEYS, RowTemplate, TaskRow
from tasks_app.domain.text_array import text_array

if TYPE_CHECKING:
    from typing import TypeVar, Unpack

    from tasks_app.domain.handlers.spec import Handler
    from tasks_app.domain.tasks.call_payload import CeleryCall
    from tasks_app.domain.tasks.payload import Payload

    P = TypeVar("P")

_BEGINS = (BEGIN, reference.BEGIN, erased.BEGIN)
_NO_OPTIONS: Mapping[str, Any] = {}
_KEYS = frozenset(KEYS)
_NO_KEYS: tuple[str | None, ...] = (None,) * len(KEYS)
_IMMUTABLE = frozenset({str, int, float, bool, type(None), timedelta, datetime})
"""Types of option values that cannot change, and of which equal ones mean the same."""


@dataclass(slots=True, init=False)  # frozen, it would take four times as long to make
class NewTask:
    """One task for ``create_tasks``; the arguments are those of ``create_task``.

    Options are given by keyword, or all at once as ``options``.
    """

    task: Any
    """A task name, the handler itself, or a Celery task or signature."""
    payload: Any
    options: TaskOptions | None
    args: Sequence[Any] | None
    """With ``kwargs``, instead of a payload: the arguments of a Celery task."""
    kwargs: Mapping[str, Any] | None

    @overload
    def __init__(
        self,
        task: Handler[P, Any],
        payload: P,
        options: TaskOptions | None = None,
        **more: Unpack[TaskOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        task: Handler[None, Any],
        payload: None = None,
        options: TaskOptions | None = None,
        **more: Unpack[TaskOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        task: str | CeleryCall,
        payload: Payload = None,
        options: TaskOptions | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **more: Unpack[TaskOptions],
    ) -> None: ...
    def __init__(
        self,
        task: Any,
        payload: Any = None,
        options: TaskOptions | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **more: Unpack[TaskOptions],
    ) -> None:
        self.task, self.payload, self.args, self.kwargs = task, payload, args, kwargs
        self.options = {**(options or {}), **more} if more else options


def validate(new: NewTask, spec: HandlerSpec | None, limit: int) -> TaskRow:
    """Return the row to insert; ``spec`` is the handler's where this process knows it.

    Raises:
        InvalidTaskError: with the path of the bad value and what is allowed.
    """
    name = new.task if spec is None else spec.name
    if new.options:
        keys, terms = _keys_and_terms(name, spec, new.options)
    else:
        keys, terms = _NO_KEYS, _template(name, spec, _NO_OPTIONS)
    payload = _payload(_given(new, spec), spec, limit)
    if payload.startswith(_BEGINS):
        check_no_token(payload)
        reference.check_no_reference(payload)
        erased.check_not_erased(payload)
    return tuple.__new__(TaskRow, (payload, *keys, terms))  # the class takes longer


def admit_alike(new: NewTask, terms: RowTemplate, limit: int) -> TaskRow | None:
    """Return the same row at half of the price, if the task has nothing but a plain payload.

    ``terms`` are those of a task of the same name, with no options, whose handler asks nothing of
    payloads. None: look closer.
    """
    if new.options or new.args is not None or new.kwargs is not None:
        return None
    payload = new.payload
    text = encode_plain(payload, limit) if type(payload) is dict else None
    return (
        None
        if text is None or text.startswith(_BEGINS)
        else tuple.__new__(TaskRow, (text, *_NO_KEYS, terms))
    )


def _keys_and_terms(
    name: Any, spec: HandlerSpec | None, options: Mapping[str, Any]
) -> tuple[tuple[str | None, ...], RowTemplate]:
    keys: tuple[str | None, ...] = _NO_KEYS
    more: list[str] = []
    if not _KEYS.isdisjoint(options):
        first, *more = limit_keys(options) or (None,)
        keys = tuple([first if name == "limit_key" else key(options, name) for name in KEYS])
        options = {k: v for k, v in options.items() if k not in _KEYS}
    terms = _template(name, spec, options)
    if more:
        terms = terms._replace(more_limit_keys=text_array(more))
    _, unique_key, order_key, _ = keys
    if unique_key is None and terms.rule is not None:
        raise InvalidTaskError("options.unique_key", "is None, yet has a scope or policy", "a key")
    if order_key is None and (terms.order_skips or terms.strict_order):
        raise InvalidTaskError(
            "options.order_key", "is None, yet has a policy or is strict", "a key"
        )
    return keys, terms


def _template(name: Any, spec: HandlerSpec | None, options: Mapping[str, Any]) -> RowTemplate:
    """Producers repeat themselves, so templates are remembered."""
    if type(name) is str:
        if not options:
            return _remembered_template(name, spec, (), ())
        types = tuple(map(type, options.values()))
        if _IMMUTABLE.issuperset(types) and not options.get("wait_first"):
            return _remembered_template(name, spec, tuple(options.items()), types)
    return checked_template(name, spec, options)


@lru_cache(1024)
def _remembered_template(
    name: str,
    spec: HandlerSpec | None,
    options: tuple[tuple[str, Any], ...],
    _types: tuple[type, ...],  # for True == 1, and one of them may be refused
) -> RowTemplate:
    return checked_template(name, spec, dict(options))


def check_call(new: NewTask) -> None:
    """Pass if ``args`` and ``kwargs`` are something to call a function with.

    Raises:
        InvalidTaskError: they are not.
    """
    if not isinstance(new.args, list | tuple | None):
        raise InvalidTaskError("args", f"is of type {type(new.args).__name__}", "a list or tuple")
    if not isinstance(new.kwargs, Mapping | None):
        raise InvalidTaskError("kwargs", f"is of type {type(new.kwargs).__name__}", "a dict")


def _given(new: NewTask, spec: HandlerSpec | None) -> Any:
    """Return the payload; ``args`` and ``kwargs`` make that of a task with Python arguments."""
    if new.args is None and new.kwargs is None:
        return new.payload
    if new.payload is not None:
        raise InvalidTaskError("payload", "is given together with args or kwargs", "one of them")
    from tasks_app.domain.tasks.call_payload import CALL  # noqa: PLC0415  the first model is slow to make

    if spec is not None and spec.payload_type is not CALL:
        raise InvalidTaskError("args", f"is given to the handler {spec.name}", "a payload")
    check_call(new)
    return {"args": new.args or [], "kwargs": new.kwargs or {}}


def _payload(payload: Any, spec: HandlerSpec | None, limit: int) -> str:
    if spec is not None:
        return spec.stored(payload, limit)
    kind: Any = type(payload)
    if payload is None or kind is dict or (own := own_type(kind)) is None:
        return encode_object(payload, "payload", limit)
    return own.write(payload, limit, None)


def check_many(tasks: Any) -> None:
    """Pass if these are NewTasks, one after the other.

    Raises:
        InvalidTaskError: they are not.
    """
    allowed = "a list of NewTask(task, payload, …)"
    if not isinstance(tasks, Sequence):
        raise InvalidTaskError("tasks", f"is of type {type(tasks).__name__}", allowed)
    for place, new in enumerate(tasks):
        if not isinstance(new, NewTask):
            kind = type(new).__name__
            raise InvalidTaskError(f"tasks[{place}]", f"is of type {kind}", allowed)
