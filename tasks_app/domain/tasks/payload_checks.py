"""The check of each value of a payload, and its conversion for JSON."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel

from tasks_app.domain.errors import InvalidTaskError

DEEPEST = 32
SMALLEST_INT, LARGEST_INT = -(2**63), 2**63 - 1
FLOATS_WITH_EXPONENT = 1e16
"""From here on floats are whole numbers, and Python writes them with an exponent."""
ToJson: TypeAlias = Callable[[Any], Any]
"""Returns a JSON value for one that JSON does not know; TypeError: there is none."""


def dump_model(model: BaseModel, path: str, *, round_trip: bool = False) -> Any:
    """Return a pydantic model as plain values; ``round_trip`` leaves out computed fields.

    Raises:
        InvalidTaskError: it has a field that JSON cannot hold.
    """
    try:
        return model.model_dump(mode="json", by_alias=True, round_trip=round_trip)
    except (ValueError, RecursionError) as error:
        raise no_json(path, error) from None


def no_json(path: str, error: Exception) -> InvalidTaskError:
    """Return the refusal of a value whose own library could not write it."""
    kind = type(error).__name__
    return InvalidTaskError(
        path, f"cannot be written as JSON ({kind})", "fields that JSON can hold"
    )


def check_text(value: str, path: str) -> str:
    """Return ``value``; InvalidTaskError if it has NUL or a lone surrogate."""
    if "\x00" in value:
        raise InvalidTaskError(path, "holds the character NUL", "text without \\u0000")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidTaskError(path, "holds a lone surrogate", "valid Unicode") from None
    return value


class PayloadCheck:
    """One walk through a payload.

    Each value takes at least one byte, so the limit in bytes also bounds the number of values:
    shared branches may expand to more than memory holds.
    """

    def __init__(self, budget: Iterator[int], to_json: ToJson | None) -> None:
        self._budget = budget
        self._to_json = to_json

    def value(self, value: Any, path: str, depth: int) -> Any:
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
            "dict, list, str, int, float, bool and None; a model writes others as text, and so "
            "does a handler's type, if the handler is given instead of its name",
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
    """Return the text itself; ``str()`` of an enum's member would be its name."""
    return str.__str__(value)


def _checked_int(value: int, path: str) -> int:
    if not SMALLEST_INT <= value <= LARGEST_INT:
        raise InvalidTaskError(path, "is an integer beyond 64 bits", "-2**63 .. 2**63-1, or text")
    return int(value)


def _checked_float(value: float, path: str) -> float | str:
    if not math.isfinite(value):
        raise InvalidTaskError(path, f"is {value!r}", "finite numbers, or None")
    # jsonb reads 1e23 as an exact decimal, which is not the float 1e23: write all its digits, and a
    # fraction, which jsonb keeps, so that it is read back as a float and not as an int.
    return f"\0{int(value)}.0" if abs(value) >= FLOATS_WITH_EXPONENT else float(value)
