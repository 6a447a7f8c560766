"""Who may enter the pool: from a NewTask to a checked TaskRow, or an InvalidTaskError."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from tasks_app.domain.durations import parse_duration
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.gates import OrderPolicy
from tasks_app.domain.handler import HandlerSpec, explain
from tasks_app.domain.payload import check_text, dump_model, encode_object, encode_plain
from tasks_app.domain.retry import MOST_ATTEMPTS, Levels, RetryPolicy, parse_policy
from tasks_app.domain.task import KEYS, NewTask, TaskOptions, TaskRow, Terms
from tasks_app.domain.unique import KeyRule, parse_rule

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.:-]{0,254}$")
QUEUE = re.compile(r"^[A-Za-z_][A-Za-z0-9_.-]{0,99}$")
LONGEST_KEY = 255
HEADERS_LIMIT = 8 * 1024
_KNOWN = frozenset(TaskOptions.__annotations__)
_NO_OPTIONS: Mapping[str, Any] = {}
_KEYS = frozenset(KEYS)
_NO_KEYS: tuple[str | None, ...] = (None,) * len(KEYS)
_MEMORABLE = frozenset({str, int, float, bool, type(None), timedelta, datetime})
"""Types whose values cannot change, and of which equal ones mean the same."""
T = TypeVar("T")
_RNG = Random()  # noqa: S311  jitter, not a secret


def admit(new: NewTask, spec: HandlerSpec | None, limit: int) -> TaskRow:
    """Return the row to insert; ``spec`` is the handler's where this process knows it.

    Raises:
        InvalidTaskError: with the path of the bad value and what is allowed.
    """
    name = new.task if spec is None else spec.name
    if new.options:
        keys, terms = _keys_and_terms(name, spec, new.options)
    else:
        keys, terms = _NO_KEYS, _terms(name, spec, _NO_OPTIONS)
    payload = _payload(_given(new, spec), spec, limit)
    return tuple.__new__(TaskRow, (payload, *keys, terms))  # the class takes longer


def admit_alike(new: NewTask, terms: Terms, limit: int) -> TaskRow | None:
    """Return the same row at half of the price, if the task has nothing but a plain payload.

    ``terms`` are those of a task of the same name, with no options, whose handler asks nothing of
    payloads. None: look closer.
    """
    if new.options or new.args is not None or new.kwargs is not None:
        return None
    payload = new.payload
    text = encode_plain(payload, limit) if type(payload) is dict else None
    return None if text is None else tuple.__new__(TaskRow, (text, *_NO_KEYS, terms))


def _keys_and_terms(
    name: Any, spec: HandlerSpec | None, options: Mapping[str, Any]
) -> tuple[tuple[str | None, ...], Terms]:
    keys = _NO_KEYS
    if not _KEYS.isdisjoint(options):
        keys = tuple([_key(options, key) for key in KEYS])
        options = {k: v for k, v in options.items() if k not in _KEYS}
    terms = _terms(name, spec, options)
    _, unique_key, order_key, _ = keys
    if unique_key is None and terms.rule is not None:
        raise InvalidTaskError("options.unique_key", "is None, yet has a scope or policy", "a key")
    if order_key is None and (terms.order_skips or terms.strict_order):
        raise InvalidTaskError(
            "options.order_key", "is None, yet has a policy or is strict", "a key"
        )
    return keys, terms


def _terms(name: Any, spec: HandlerSpec | None, options: Mapping[str, Any]) -> Terms:
    """Return a row's terms; producers repeat themselves, so they are remembered."""
    if type(name) is str:
        if not options:
            return _remembered_terms(name, spec, (), ())
        types = tuple(map(type, options.values()))
        if _MEMORABLE.issuperset(types) and not options.get("wait_first"):
            return _remembered_terms(name, spec, tuple(options.items()), types)
    return _checked_terms(name, spec, options)


@lru_cache(1024)
def _remembered_terms(
    name: str,
    spec: HandlerSpec | None,
    options: tuple[tuple[str, Any], ...],
    _types: tuple[type, ...],  # for True == 1, and one of them may be refused
) -> Terms:
    return _checked_terms(name, spec, dict(options))


def _checked_terms(name: Any, spec: HandlerSpec | None, given: Mapping[str, Any]) -> Terms:
    for option in given:
        if option not in _KNOWN:
            raise InvalidTaskError(f"options.{option}", "is unknown", ", ".join(sorted(_KNOWN)))
    options: Mapping[str, Any] = {k: v for k, v in given.items() if v is not None}
    retry = _policy(options, spec)
    wait_first = _bool(options, "wait_first", default=False)
    run_at = _moment(options, "run_at")
    delay = _span(options, "delay")
    if run_at is not None and delay is not None:
        raise InvalidTaskError("options.delay", "is given together with run_at", "one of the two")
    return Terms(
        name=check_name(name),
        queue=check_queue(_queue(options, spec)),
        priority=_integer(options, "priority", 0, 9) if "priority" in options else 5,
        headers=_headers(options),
        enabled=_bool(options, "enabled", default=True),
        retry_level=1 if wait_first else 0,
        max_attempts=_max_attempts(options, retry, spec, wait_first=wait_first),
        retry=str(retry) if "retry" in options else None,
        run_at=run_at,
        delay=(delay or timedelta(0)) + _first_wait(retry, wait_first=wait_first),
        expires_at=_moment(options, "expires_at"),
        timeout_ms=_milliseconds(options, "timeout"),
        hard_timeout_ms=_milliseconds(options, "hard_timeout"),
        order_skips=_order_skips(options),
        strict_order=_bool(options, "strict_order", default=False),
        fair_key=_key(options, "fair_key"),
        rule=_rule(options),
    )


def check_call(new: NewTask) -> None:
    """Pass if ``args`` and ``kwargs`` are something to call a function with.

    Raises:
        InvalidTaskError: they are not.
    """
    if not isinstance(new.args, list | tuple | None):
        raise InvalidTaskError("args", f"is of type {type(new.args).__name__}", "a list or tuple")
    if not isinstance(new.kwargs, Mapping | None):
        raise InvalidTaskError("kwargs", f"is of type {type(new.kwargs).__name__}", "a dict")


def check_name(name: Any) -> str:
    """Return a valid task name.

    Raises:
        InvalidTaskError: it is not one.
    """
    if not isinstance(name, str) or not NAME.match(name) or name.endswith("\n"):
        raise InvalidTaskError("name", f"is {_shown(name)}", f"text that matches {NAME.pattern}")
    return name


def check_queue(queue: Any) -> str:
    """Return a valid queue name.

    Raises:
        InvalidTaskError: it is not one.
    """
    if not isinstance(queue, str) or not QUEUE.match(queue) or queue.endswith("\n"):
        raise InvalidTaskError(
            "options.queue", f"is {_shown(queue)}", f"text that matches {QUEUE.pattern}"
        )
    return queue


def _queue(options: Mapping[str, Any], spec: HandlerSpec | None) -> Any:
    queue = options.get("queue")
    if queue is not None:
        return queue
    return spec.queue if spec else "default"


def _given(new: NewTask, spec: HandlerSpec | None) -> Any:
    """Return the payload; ``args`` and ``kwargs`` make that of a task with Python arguments."""
    if new.args is None and new.kwargs is None:
        return new.payload
    if new.payload is not None:
        raise InvalidTaskError("payload", "is given together with args or kwargs", "one of them")
    from tasks_app.domain.call import Call  # noqa: PLC0415  the first model is slow to make

    if spec is not None and spec.payload_type is not Call:
        raise InvalidTaskError("args", f"is given to the handler {spec.name}", "a payload")
    check_call(new)
    return {"args": new.args or [], "kwargs": new.kwargs or {}}


def _payload(payload: Any, spec: HandlerSpec | None, limit: int) -> str:
    if spec is not None and spec.payload_type is not None:
        plain = payload
        if isinstance(payload, BaseModel):
            plain = dump_model(payload, "payload", round_trip=True)
        try:
            spec.payload_type.model_validate({} if plain is None else plain)
        except ValidationError as error:
            path, problem = explain(error)
            raise InvalidTaskError(
                path, problem, f"what {spec.payload_type.__name__} takes"
            ) from None
        payload = plain
    return encode_object(payload, "payload", limit, spec.to_json if spec else None)


def _policy(options: Mapping[str, Any], spec: HandlerSpec | None) -> RetryPolicy | None:
    if "retry" not in options:
        return spec.retry if spec else None
    return _tried(parse_policy, options["retry"], "retry", "such as '5s,30s,1m' or 'fixed 30s'")


def _max_attempts(
    options: Mapping[str, Any],
    retry: RetryPolicy | None,
    spec: HandlerSpec | None,
    *,
    wait_first: bool,
) -> int | None:
    if options.get("max_attempts") is not None:
        return _integer(options, "max_attempts", 1, MOST_ATTEMPTS)
    if "retry" not in options and spec and spec.max_attempts != spec.retry.max_attempts:
        return None  # the handler says a number of its own, which the claim writes into the row
    if wait_first and isinstance(retry, Levels):
        return len(retry.waits)  # level 1 is spent before the first run, so each level has one run
    return retry.max_attempts if "retry" in options and retry else None


def _first_wait(retry: RetryPolicy | None, *, wait_first: bool) -> timedelta:
    if not wait_first:
        return timedelta(0)
    if retry is None:
        raise InvalidTaskError(
            "options.wait_first",
            "needs to know the waits",
            "it with retry=, or a known handler",
        )
    return retry.wait(1, _RNG)


def _headers(options: Mapping[str, Any]) -> str | None:
    headers = options.get("headers")
    return None if headers is None else encode_object(headers, "options.headers", HEADERS_LIMIT)


def _key(options: Mapping[str, Any], name: str) -> str | None:
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_KEY:
        raise InvalidTaskError(
            f"options.{name}", f"is {_shown(value)}", f"text of 1 to {LONGEST_KEY} characters"
        )
    return check_text(value, f"options.{name}")


def _order_skips(options: Mapping[str, Any]) -> bool | None:
    policy = options.get("order_policy", OrderPolicy.BLOCKS)
    if not isinstance(policy, str) or policy not in set(OrderPolicy):
        raise InvalidTaskError("options.order_policy", "names no policy", ", ".join(OrderPolicy))
    return True if policy == OrderPolicy.SKIPS else None


def _rule(options: Mapping[str, Any]) -> KeyRule | None:
    try:
        return parse_rule(options.get("unique_scope"), options.get("on_conflict"))
    except ValueError as error:
        option, problem, allowed = error.args
        raise InvalidTaskError(f"options.{option}", problem, allowed) from None


def _integer(options: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidTaskError(
            f"options.{name}", f"is {_shown(value)}", f"an integer {least} .. {most}"
        )
    return int(value)


def _bool(options: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise InvalidTaskError(f"options.{name}", f"is {_shown(value)}", "True or False")
    return value


def _moment(options: Mapping[str, Any], name: str) -> datetime | None:
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidTaskError(f"options.{name}", f"is {_shown(value)}", "an aware datetime")
    if value.utcoffset() is None:
        raise InvalidTaskError(
            f"options.{name}",
            "has no time zone",
            "an aware datetime, such as datetime.now(UTC)",
        )
    if not 1970 <= value.year < 9000:  # noqa: PLR2004  what any driver can hold, and any wait
        raise InvalidTaskError(f"options.{name}", f"is in the year {value.year}", "1970 .. 8999")
    return value


def _span(options: Mapping[str, Any], name: str) -> timedelta | None:
    value = options.get(name)
    if value is None:
        return None
    return _tried(parse_duration, value, name, "seconds, a timedelta, or text such as '30s'")


def _milliseconds(options: Mapping[str, Any], name: str) -> int | None:
    span = _span(options, name)
    if span is None:
        return None
    milliseconds = round(span / timedelta(milliseconds=1))
    if not 1 <= milliseconds < 2**31:
        raise InvalidTaskError(f"options.{name}", f"is {span}", "1 ms .. 24 days")
    return milliseconds


def _tried(parse: Callable[[Any], T], value: Any, name: str, allowed: str) -> T:
    try:
        return parse(value)
    except (ValueError, TypeError) as error:
        raise InvalidTaskError(f"options.{name}", str(error), allowed) from None


def _shown(value: Any) -> str:
    """Name a bad value without repeating much of it: it may be long, or a secret."""
    if isinstance(value, int) and value.bit_length() > 64:  # noqa: PLR2004  too long to be printed
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str | int | float):
        return f"{value!r:.60}"
    return f"of type {type(value).__name__}"
