"""Which JSON may enter the pool, and how it is read back.

The limits are those of PostgreSQL's jsonb, of JSON readers and of people: jsonb refuses NUL and
lone surrogates, JSON has no NaN, other languages read 64 bits, and a reader of deep nesting runs
out of stack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, is_dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import pydantic_core
from pydantic import BaseModel

from tasks_app.domain.errors import InvalidTaskError, UnreadableTaskError
from tasks_app.domain.tasks.payload_checks import (
    DEEPEST,
    FLOATS_WITH_EXPONENT,
    LARGEST_INT,
    SMALLEST_INT,
    STARS,
    PayloadCheck,
    ToJson,
    check_secrets,
    dump_model,
    no_json,
)

DEEPEST_READABLE = 500  # in rows that bypassed the checks; Python's limit depends on its version
_CONTAINERS = frozenset({dict, list, tuple})
_NUL = "\\u0000"
# A large float as text, see PayloadCheck; no other text has NUL.
_DIGITS = re.compile(r'"\\u0000(-?\d+\.0)"')
_DECODER = json.JSONDecoder()  # of json.loads, without its check for a byte order mark
# The same for text without white space around the value.
_SCAN: Callable[[str, int], tuple[Any, int]] = _DECODER.scan_once  # type: ignore[attr-defined]


class Dataclass(Protocol):
    """An instance of a dataclass, for type checkers."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Payload: TypeAlias = Mapping[str, Any] | BaseModel | Dataclass | None
"""A payload for a task whose handler the producer does not know."""


def encode_object(value: Payload, path: str, limit: int, to_json: ToJson | None = None) -> str:
    """Return a JSON object as text; None is the empty object; raises InvalidTaskError."""
    if value is None:
        return "{}"
    if type(value) is dict and (text := encode_plain(value, limit)):
        return text
    plain: Any = value
    if isinstance(value, BaseModel):
        plain = dump_model(value, path, round_trip=True)
    elif is_dataclass(value) and not isinstance(value, type):
        try:
            plain = pydantic_core.to_jsonable_python(value, round_trip=True)
        except (ValueError, RecursionError) as error:
            raise no_json(path, error) from None
    if not isinstance(plain, Mapping):
        allowed = "a dict with string keys, a pydantic model or a dataclass"
        raise InvalidTaskError(path, f"is of type {type(plain).__name__}", allowed)
    if type(value) is dict:
        text = _encode_checked(plain, path, limit, to_json)
    else:
        text = encode(plain, path, limit, to_json)
    if STARS in text:
        check_secrets(value, text, path)
    return text


def encode(value: Any, path: str, limit: int, to_json: ToJson | None = None) -> str:
    """Return any allowed JSON value as text of at most ``limit`` bytes; raises InvalidTaskError."""
    return encode_plain(value, limit) or _encode_checked(value, path, limit, to_json)


def encode_plain(value: Any, limit: int) -> str | None:
    """Write a plain payload, as most are, in a tenth of the time; None: it is not plain."""
    if type(value) not in _CONTAINERS or _spare(value, limit, 1) < 0:
        return None
    try:
        data = pydantic_core.to_json(value)
    except (pydantic_core.PydanticSerializationError, UnicodeEncodeError):  # a lone surrogate
        return None
    text = data.decode()
    return None if len(data) > limit or _NUL in text else text


def _spare(value: dict[Any, Any] | list[Any] | tuple[Any, ...], budget: int, depth: int) -> int:
    """Return how many more values may follow; below 0: too many, or one is not plain."""
    budget -= len(value)
    items: Iterable[Any] = value
    if isinstance(value, dict):
        for key in value:
            if type(key) is not str:
                return -1
        items = value.values()
    for item in items:
        kind = type(item)
        if kind is str or item is None or kind is bool:
            continue
        if kind is int:
            plain = SMALLEST_INT <= item <= LARGEST_INT
        elif kind is float:
            plain = -FLOATS_WITH_EXPONENT < item < FLOATS_WITH_EXPONENT  # NaN is not
        elif plain := kind in _CONTAINERS and depth < DEEPEST and budget >= 0:
            budget = _spare(item, budget, depth + 1)
        if not plain:
            return -1
    return budget


def _encode_checked(value: Any, path: str, limit: int, to_json: ToJson | None) -> str:
    """Check every value, convert what JSON does not know, and name the refused one."""
    allowed = f"at most {limit} bytes; store big data elsewhere"
    try:
        plain = PayloadCheck(iter(range(limit)), to_json).value(value, path, 1)
    except StopIteration:
        raise InvalidTaskError(path, f"has more than {limit} values", allowed) from None
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if _NUL in text:
        text = _DIGITS.sub(r"\1", text)
    size_bytes = len(text.encode())
    if size_bytes > limit:
        raise InvalidTaskError(path, f"has {size_bytes} bytes as JSON", allowed)
    return text


def decode(text: str, what: str) -> Any:
    """Return the value of JSON text, which may have bypassed the checks.

    Raises UnreadableTaskError: it is too deep, has too long a number, or is not JSON.
    """
    try:
        try:  # without white space around it, as PostgreSQL writes it
            value, end = _SCAN(text, 0)
        except StopIteration:  # the text begins with white space
            value, end = None, None
        if end != len(text):
            value = _DECODER.decode(text)
        if text.count("[") + text.count("{") > DEEPEST_READABLE and _is_deep(value):
            raise RecursionError
    except (ValueError, RecursionError) as error:
        raise UnreadableTaskError(
            f"The {what} cannot be read ({type(error).__name__}). "
            "Write tasks with create_task or task_create()."
        ) from error
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST_READABLE):
        level = [
            item
            for outer in level
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
