"""Which JSON may enter the pool, and how it is read back.

The limits are those beyond which PostgreSQL's jsonb, Python's reader or a person at a dashboard
gives up: jsonb refuses NUL and lone surrogates, JSON has no NaN, 64 bits are what other languages
read, and a reader of deep nesting runs out of stack.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, is_dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import pydantic_core
from pydantic import BaseModel

from tasks_app.domain.errors import InvalidTaskError, UnreadableTaskError

DEEPEST = 32
DEEPEST_READABLE = 500
"""Of what a stranger wrote; how deep Python's reader can go differs between its versions."""
SMALLEST_INT, LARGEST_INT = -(2**63), 2**63 - 1
FLOATS_WITH_EXPONENT = 1e16
"""From here on Python writes floats, which are whole numbers then, with an exponent."""
_CONTAINERS = frozenset({dict, list, tuple})
_NUL = "\\u0000"
_DIGITS = re.compile(r'"\\u0000(-?\d+\.0)"')
"""A float that is written digit by digit, as text; no other text begins so: NUL is refused."""
_DECODER = json.JSONDecoder()
"""What ``json.loads`` uses, without its looking at each text for what a str cannot hold."""
_SCAN: Callable[[str, int], tuple[Any, int]] = _DECODER.scan_once  # type: ignore[attr-defined]
"""And without the white space around it."""
ToJson: TypeAlias = Callable[[Any], Any]
"""Returns what stands for a value that JSON does not know; TypeError: nothing does."""


class Dataclass(Protocol):
    """An instance of a dataclass, as type checkers know it."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Payload: TypeAlias = Mapping[str, Any] | BaseModel | Dataclass | None
"""What a task carries whose handler is not known where it is created."""


def encode_object(
    value: Payload,
    path: str,
    limit: int,
    to_json: ToJson | None = None,
) -> str:
    """Return a JSON object as text; None is the empty object.

    Raises:
        InvalidTaskError: with the path of the first bad value.
    """
    if value is None:
        return "{}"
    if type(value) is dict:
        return encode(value, path, limit, to_json)
    plain: Any = value
    if isinstance(value, BaseModel):
        plain = dump_model(value, path, round_trip=True)
    elif is_dataclass(value) and not isinstance(value, type):
        plain = _dump_dataclass(value, path)
    if not isinstance(plain, Mapping):
        raise InvalidTaskError(
            path,
            f"is of type {type(plain).__name__}",
            "a dict with string keys, a pydantic model or a dataclass",
        )
    return encode(plain, path, limit, to_json)


def encode(value: Any, path: str, limit: int, to_json: ToJson | None = None) -> str:
    """Return any admitted JSON value as text of at most ``limit`` bytes.

    Raises:
        InvalidTaskError: with the path of the first bad value.
    """
    return encode_plain(value, limit) or _encode_checked(value, path, limit, to_json)


def encode_plain(value: Any, limit: int) -> str | None:
    """Write what nearly all payloads are made of in a tenth of the time; None: look closer."""
    if type(value) not in _CONTAINERS or _spare(value, limit, 1) < 0:
        return None
    try:
        data = pydantic_core.to_json(value)
    except (pydantic_core.PydanticSerializationError, UnicodeEncodeError):  # a lone surrogate
        return None
    text = data.decode()
    return None if len(data) > limit or _NUL in text else text


def _spare(value: dict[Any, Any] | list[Any] | tuple[Any, ...], budget: int, depth: int) -> int:
    """Return how many more values may come; below 0: something is too much, or not plain."""
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
    """Look at every value, change what has to be written otherwise, and name what is refused."""
    try:
        plain = _Check(iter(range(limit)), to_json).value(value, path, 1)
    except StopIteration:
        raise InvalidTaskError(
            path,
            f"has more than {limit} values",
            f"at most {limit} bytes; store big data elsewhere",
        ) from None
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if _NUL in text:
        text = _DIGITS.sub(r"\1", text)
    size_bytes = len(text.encode())
    if size_bytes > limit:
        raise InvalidTaskError(
            path,
            f"has {size_bytes} bytes as JSON",
            f"at most {limit} bytes; store big data elsewhere",
        )
    return text


def decode(text: str, what: str) -> Any:
    """Return the value of JSON text that somebody may have written past the checks.

    Raises:
        UnreadableTaskError: too deep, a number too long, or no JSON.
    """
    try:
        value = _read(text)
        if text.count("[") + text.count("{") > DEEPEST_READABLE and _is_deep(value):
            raise RecursionError
    except (ValueError, RecursionError) as error:
        raise UnreadableTaskError(
            f"The {what} cannot be read ({type(error).__name__}). "
            "Write tasks with create_task or task_create()."
        ) from error
    return value


def _read(text: str) -> Any:
    """Read JSON as PostgreSQL writes it, without anything around it; else as anybody may."""
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:  # there is something before it
        return _DECODER.decode(text)
    return value if end == len(text) else _DECODER.decode(text)


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


def dump_model(model: BaseModel, path: str, *, round_trip: bool = False) -> Any:
    """Return a pydantic model as plain values; ``round_trip`` leaves out what it computes itself.

    Raises:
        InvalidTaskError: it has a field that JSON cannot hold.
    """
    try:
        return model.model_dump(mode="json", by_alias=True, round_trip=round_trip)
    except (ValueError, RecursionError) as error:
        raise _no_json(path, error) from None


def _dump_dataclass(value: Any, path: str) -> Any:
    try:
        return pydantic_core.to_jsonable_python(value, round_trip=True)
    except (ValueError, RecursionError) as error:
        raise _no_json(path, error) from None


def _no_json(path: str, error: Exception) -> InvalidTaskError:
    kind = type(error).__name__
    return InvalidTaskError(
        path, f"cannot be written as JSON ({kind})", "fields that JSON can hold"
    )


def check_text(value: str, path: str) -> str:
    """Return ``value`` if PostgreSQL can store it.

    Raises:
        InvalidTaskError: it holds NUL or a lone surrogate.
    """
    if "\x00" in value:
        raise InvalidTaskError(path, "holds the character NUL", "text without \\u0000")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidTaskError(path, "holds a lone surrogate", "valid Unicode") from None
    return value


class _Check:
    """One walk through a value.

    Each value in it takes a byte at least, so the limit is a budget of values, too: shared branches
    may be many more than memory holds.
    """

    def __init__(self, budget: Iterator[int], to_json: ToJson | None) -> None:
        self._budget = budget
        self._to_json = to_json

    def value(self, value: Any, path: str, depth: int) -> Any:
        """Return it as it is to be written."""
        next(self._budget)
        match value:
            case None | bool():
                return value
            case str():
                return _plain(check_text(value, path))
            case int():
                return _checked_int(value, path)
            case float():
                return _checked_float(value, path)
            case Mapping():
                _check_depth(path, depth)
                return {
                    _checked_key(key, path): self.value(item, f"{path}.{key}", depth + 1)
                    for key, item in value.items()
                }
            case list() | tuple():
                _check_depth(path, depth)
                return [self.value(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
            case BaseModel():
                return self.value(dump_model(value, path), path, depth)
            case _:
                _check_depth(path, depth)
                return self.value(self._written(value, path), path, depth + 1)

    def _written(self, value: Any, path: str) -> Any:
        if self._to_json is not None:
            with contextlib.suppress(TypeError):
                return self._to_json(value)
        raise InvalidTaskError(
            path,
            f"is of type {type(value).__name__}",
            "dict, list, str, int, float, bool and None",
        )


def _check_depth(path: str, depth: int) -> None:
    if depth > DEEPEST:
        raise InvalidTaskError(path, f"is nested deeper than {DEEPEST}", f"depth {DEEPEST}")


def _checked_key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        kind = type(key).__name__
        raise InvalidTaskError(f"{path}[{kind}]", f"has a key of type {kind}", "string keys")
    return _plain(check_text(key, f"{path}[{key!r}]"))


def _plain(value: str) -> str:
    """Return the text itself; ``str()`` of an enumeration's member would be its name."""
    return str.__str__(value)


def _checked_int(value: int, path: str) -> int:
    if not SMALLEST_INT <= value <= LARGEST_INT:
        raise InvalidTaskError(path, "is an integer beyond 64 bits", "-2**63 .. 2**63-1, or text")
    return int(value)


def _checked_float(value: float, path: str) -> float | str:
    if not math.isfinite(value):
        raise InvalidTaskError(path, f"is {value!r}", "finite numbers, or None")
    # jsonb reads 1e23 as an exact decimal, which is not the float 1e23: write all its digits. And a
    # fraction, which it keeps, so that a float is read again and no int.
    return f"\0{int(value)}.0" if abs(value) >= FLOATS_WITH_EXPONENT else float(value)
