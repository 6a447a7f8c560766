"""What a producer says of a task, and the checks that make a row of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any, overload

from tasks_app.domain.durations import format_duration
from tasks_app.domain.encryption import TOKEN_BEGIN, check_no_token
from tasks_app.domain.errors import NAMES_ELSEWHERE, InvalidTaskError, suggestion_for
from tasks_app.domain.handlers.spec import Handler, HandlerSpec
from tasks_app.domain.large_values import store
from tasks_app.domain.locks import named_locks, stored_locks
from tasks_app.domain.tasks import masks
from tasks_app.domain.tasks import options as checks
from tasks_app.domain.tasks.options import OrderPolicy, TaskOptions
from tasks_app.domain.tasks.payload import Payload, encode, encode_object, encode_plain
from tasks_app.domain.tasks.payload_type import WRAPPED, own_type
from tasks_app.domain.tasks.records import (
    KEYS,
    KeyRule,
    RowTemplate,
    TaskRow,
    parse_rule,
    text_array,
)
from tasks_app.domain.tasks.retry_policy import (
    MOST_ATTEMPTS,
    RETRIES,
    Levels,
    parse_policy,
)

if TYPE_CHECKING:
    from typing import TypeVar, Unpack

    from tasks_app.domain.tasks.call_payload import CeleryCall

    P = TypeVar("P")


_RESERVED_BEGINNINGS = (TOKEN_BEGIN, store.REFERENCE_BEGIN, masks.ERASED_BEGIN)
_NO_OPTIONS: Mapping[str, Any] = {}
_KEYS = frozenset(KEYS)
_OF_ONE_ROW = _KEYS | {"weight"}
_NO_KEYS: tuple[str | None, ...] = (None,) * len(KEYS)
_IMMUTABLE = frozenset({str, int, float, bool, type(None), timedelta, datetime})
"""Types whose values cannot change, and mean the same if they are equal."""


@dataclass(slots=True, init=False)  # frozen, it would take four times as long to make
class NewTask:
    """One task for ``create_tasks``; the arguments are those of ``create_task``.

    Options are given by keyword, or all at once as ``options``.
    """

    task: Any  # a task name, a handler, or a Celery task or signature
    payload: Any
    options: TaskOptions | None
    args: Sequence[Any] | None  # with `kwargs`, instead of a payload: arguments of a Celery task
    kwargs: Mapping[str, Any] | None

    # fmt: off
    @overload
    def __init__(
        self, task: Handler[P, Any], payload: P,
        options: TaskOptions | None = None, **more: Unpack[TaskOptions],
    ) -> None: ...
    @overload
    def __init__(
        self, task: Handler[None, Any], payload: None = None,
        options: TaskOptions | None = None, **more: Unpack[TaskOptions],
    ) -> None: ...
    @overload
    def __init__(
        self, task: str | CeleryCall, payload: Payload = None, options: TaskOptions | None = None,
        args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None,
        **more: Unpack[TaskOptions],
    ) -> None: ...
    # fmt: on
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


def validate_task(new: NewTask, spec: HandlerSpec | None, limit: int) -> TaskRow:
    """Return the row to insert; ``spec`` is None if this process does not know the handler.

    Raises InvalidTaskError with the path of the bad value and what is allowed.
    """
    name = new.task if spec is None else spec.name
    if new.options:
        keys, terms = _keys_and_terms(name, spec, new.options)
    else:
        keys, terms = _NO_KEYS, _template(name, spec, _NO_OPTIONS)
    payload = new.payload
    if new.args is not None or new.kwargs is not None:
        payload = _call_payload(new, spec)
    kind: Any = type(payload)
    if spec is not None:
        text = spec.stored(payload, limit)
    elif payload is None or kind is dict or (own := own_type(kind)) is None:
        text = encode_object(payload, "payload", limit)
    else:
        text = own.write(payload, limit, None)
    _check_not_reserved(text)
    if spec is not None and spec.locks is not None and terms.locks is None:
        named_locks(spec.locks, json.loads(text))  # they are made at the claim, from its payload
    return tuple.__new__(TaskRow, (text, *keys, terms))  # the class takes longer


def _check_not_reserved(text: str) -> None:
    if text.startswith(_RESERVED_BEGINNINGS):
        check_no_token(text)
        store.check_no_reference(text)
        masks.check_not_erased(text)


def item_row(new: NewTask, spec: HandlerSpec | None) -> TaskRow:
    """Return the row that all items of a map share, without a payload; raises InvalidTaskError."""
    keys, terms = _keys_and_terms(spec.name if spec else new.task, spec, new.options or {})
    row = TaskRow._make(("{}", *keys, terms))
    if row.unique_key is not None:
        raise InvalidTaskError("options.unique_key", "is given", "none: the items would share it")
    return row


def item_payload(item: Any, limit: int, *, wraps: bool) -> str:
    """Return an item as payload, unchecked: its handler's type checks it when the task runs.

    ``wraps``: the type stores objects, too, as it stores what is none.
    """
    if item is None or (type(item) is dict and not wraps):
        text = encode_object(item, "payload", limit)
    else:
        text = WRAPPED % encode(item, "payload", limit - len(WRAPPED))
    _check_not_reserved(text)
    return text


def validate_plain(new: NewTask, terms: RowTemplate, limit: int) -> TaskRow | None:
    """Return the same row at half the cost if the task has nothing but a plain payload, else None.

    ``terms`` are those of a task of the same name without options, whose handler takes any payload.
    """
    if new.options or new.args is not None or new.kwargs is not None:
        return None
    payload = new.payload
    text = encode_plain(payload, limit) if type(payload) is dict else None
    if text is None or text.startswith(_RESERVED_BEGINNINGS):
        return None
    return tuple.__new__(TaskRow, (text, *_NO_KEYS, terms))


def check_many(tasks: Any) -> None:
    """Raise InvalidTaskError if this is not a sequence of NewTasks."""
    allowed = "a list of NewTask(task, payload, …)"
    if not isinstance(tasks, Sequence):
        raise InvalidTaskError("tasks", f"is of type {type(tasks).__name__}", allowed)
    for place, new in enumerate(tasks):
        if not isinstance(new, NewTask):
            kind = type(new).__name__
            raise InvalidTaskError(f"tasks[{place}]", f"is of type {kind}", allowed)


def _call_payload(new: NewTask, spec: HandlerSpec | None) -> dict[str, Any]:
    """Return the payload of a task with Python arguments."""
    if new.payload is not None:
        raise InvalidTaskError("payload", "is given together with args or kwargs", "one of them")
    from tasks_app.domain.tasks.call_payload import CALL  # noqa: PLC0415  the first model is slow to make

    if spec is not None and spec.payload_type is not CALL:
        raise InvalidTaskError("args", f"is given to the handler {spec.name}", "a payload")
    check_call(new)
    return {"args": new.args or [], "kwargs": new.kwargs or {}}


def check_call(new: NewTask) -> None:
    """Raise InvalidTaskError if no function can be called with ``args`` and ``kwargs``."""
    if not isinstance(new.args, list | tuple | None):
        raise InvalidTaskError("args", f"is of type {type(new.args).__name__}", "a list or tuple")
    if not isinstance(new.kwargs, Mapping | None):
        raise InvalidTaskError("kwargs", f"is of type {type(new.kwargs).__name__}", "a dict")


def _keys_and_terms(
    name: Any, spec: HandlerSpec | None, options: Mapping[str, Any]
) -> tuple[tuple[str | None, ...], RowTemplate]:
    keys: tuple[str | None, ...] = _NO_KEYS
    more: list[str] = []
    weight: int | None = None
    if not _OF_ONE_ROW.isdisjoint(options):
        first, *more = checks.read_limit_keys(options) or (None,)
        read = checks.read_key
        keys = tuple([first if name == "limit_key" else read(options, name) for name in KEYS])
        if options.get("weight") is not None:
            weight = checks.read_integer(options, "weight", 1, checks.HEAVIEST)
            if first is None:
                raise InvalidTaskError("options.weight", "is given without a limit_key", "both")
        options = {k: v for k, v in options.items() if k not in _OF_ONE_ROW}
    terms = _template(name, spec, options)
    if more:
        terms = terms._replace(more_limit_keys=text_array(more))
    if weight is not None:
        terms = terms._replace(weight=weight)
    _, unique_key, order_key, _ = keys
    if unique_key is None and terms.rule is not None:
        raise InvalidTaskError("options.unique_key", "is None, but has a scope or policy", "a key")
    if order_key is None and (terms.order_skips or terms.strict_order):
        problem = "is None, but has a policy or is strict"
        raise InvalidTaskError("options.order_key", problem, "a key")
    return keys, terms


def _template(name: Any, spec: HandlerSpec | None, options: Mapping[str, Any]) -> RowTemplate:
    """Cache templates: producers create similar tasks again and again."""
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


HEADERS_LIMIT = 8 * 1024  # bytes of JSON
_KNOWN = frozenset(TaskOptions.__annotations__)
_RNG = Random()  # noqa: S311  jitter, not a secret


def checked_template(name: Any, spec: HandlerSpec | None, given: Mapping[str, Any]) -> RowTemplate:
    for option in given:
        if option not in _KNOWN:
            problem = "is unknown"
            if option not in NAMES_ELSEWHERE:
                problem += f'; a value for the handler goes into the payload: {{"{option}": …}}'
            problem += suggestion_for(option, _KNOWN)
            raise InvalidTaskError(f"options.{option}", problem, ", ".join(sorted(_KNOWN)))
    options: Mapping[str, Any] = {k: v for k, v in given.items() if v is not None}
    retry = spec.retry if spec else None
    if "retry" in options:
        retry = checks.parse_option(parse_policy, options["retry"], "retry", RETRIES)
    wait_first = checks.read_boolean(options, "wait_first", default=False)
    if wait_first and retry is None:
        allowed = "it together with retry=, or for a known handler"
        raise InvalidTaskError("options.wait_first", "needs a known retry policy", allowed)
    run_at = checks.read_instant(options, "run_at")
    delay = checks.read_duration(options, "delay")
    if run_at is not None and delay is not None:
        raise InvalidTaskError("options.delay", "is given together with run_at", "one of the two")
    order_policy = options.get("order_policy", OrderPolicy.BLOCKS)
    if not isinstance(order_policy, str) or order_policy not in set(OrderPolicy):
        raise InvalidTaskError("options.order_policy", "is not a policy", ", ".join(OrderPolicy))
    _check_timeouts(options, spec)
    headers = options.get("headers")
    if headers is not None:
        headers = encode_object(headers, "options.headers", HEADERS_LIMIT)
    max_attempts = None  # None: the claim writes the handler's own number into the row
    has_own = spec is not None and spec.max_attempts != spec.retry.max_attempts
    if "max_attempts" in options:
        max_attempts = checks.read_integer(options, "max_attempts", 1, MOST_ATTEMPTS)
    elif "retry" in options or not has_own:
        if wait_first and isinstance(retry, Levels):
            max_attempts = len(retry.waits)  # level 1 precedes the first run
        elif "retry" in options and retry:
            max_attempts = retry.max_attempts
    first_wait = retry.wait(1, _RNG) if wait_first and retry else timedelta(0)
    return RowTemplate(
        name=checks.check_name(name),
        queue=checks.check_queue(options.get("queue", spec.queue if spec else "default")),
        priority=checks.read_integer(options, "priority", 0, 9) if "priority" in options else 5,
        headers=headers,
        enabled=checks.read_boolean(options, "enabled", default=True),
        retry_level=1 if wait_first else 0,
        max_attempts=max_attempts,
        retry=str(retry) if "retry" in options else None,
        run_at=run_at,
        delay=(delay or timedelta(0)) + first_wait,
        expires_at=checks.read_instant(options, "expires_at"),
        timeout_ms=checks.read_milliseconds(options, "timeout"),
        hard_timeout_ms=checks.read_milliseconds(options, "hard_timeout"),
        order_skips=order_policy == OrderPolicy.SKIPS or None,
        strict_order=checks.read_boolean(options, "strict_order", default=False),
        fair_key=checks.read_key(options, "fair_key"),
        locks=_locks(options["locks"]) if "locks" in options else None,
        rule=_rule(options, delay),
        encrypted=spec is not None and spec.encrypted,
    )


def _locks(given: Any) -> str:
    try:
        return json.dumps(stored_locks(given))
    except InvalidTaskError as error:
        raise error.at("options") from None


def _check_timeouts(options: Mapping[str, Any], spec: HandlerSpec | None) -> None:
    """Refuse a timeout above the hard timeout, if both are known."""
    soft, hard = (
        checks.read_duration(options, "timeout"),
        checks.read_duration(options, "hard_timeout"),
    )
    if soft is None and hard is None:
        return
    if spec is not None:
        soft, hard = soft or spec.timeout, hard or spec.hard_timeout
    if soft and hard and soft > hard:
        problem = f"is {format_duration(soft)}, longer than the hard limit"
        raise InvalidTaskError("options.timeout", problem, f"at most {format_duration(hard)}")


def _rule(options: Mapping[str, Any], delay: timedelta | None) -> KeyRule | None:
    try:
        given = (options.get(name) for name in ("unique_scope", "on_conflict", "max_wait"))
        rule = parse_rule(*given)
    except ValueError as error:
        option, problem, allowed = error.args
        raise InvalidTaskError(f"options.{option}", problem, allowed) from None
    if rule and rule.max_wait and delay and delay > rule.max_wait:
        raise InvalidTaskError("options.max_wait", "is shorter than delay", "delay or more")
    return rule
