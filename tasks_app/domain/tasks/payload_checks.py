"""The check of each value of a payload, and the refusal of what would not be read back equal."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeAlias

from pydantic import BaseModel, RootModel, Secret, SecretBytes, SecretStr
from pydantic_core import SchemaSerializer, core_schema

from tasks_app.domain.errors import InvalidTaskError

DEEPEST = 32
SMALLEST_INT, LARGEST_INT = -(2**63), 2**63 - 1
FLOATS_WITH_EXPONENT = 1e16  # from here on floats are whole, and Python writes an exponent
ToJson: TypeAlias = Callable[[Any], Any]
"""Converts a value that JSON does not know to JSON; raises TypeError if it cannot."""


def dump_model(model: BaseModel, path: str, *, round_trip: bool = False) -> Any:
    """Return a pydantic model as plain values; ``round_trip`` leaves out computed fields.

    Raises InvalidTaskError: it has a field that JSON cannot hold.
    """
    try:
        return model.model_dump(mode="json", by_alias=True, round_trip=round_trip)
    except (ValueError, RecursionError) as error:
        raise no_json(path, error) from None


def no_json(path: str, error: Exception) -> InvalidTaskError:
    """Return the error for a value that its own library could not write."""
    problem = f"cannot be written as JSON ({type(error).__name__})"
    return InvalidTaskError(path, problem, "fields that JSON can hold")


def check_text(value: str, path: str) -> str:
    """Return ``value``; InvalidTaskError: it has NUL or a lone surrogate."""
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
                return str.__str__(check_text(value, path))  # of an enum's member, the value
            case int() if SMALLEST_INT <= value <= LARGEST_INT:
                return int(value)
            case int():
                allowed = "-2**63 .. 2**63-1, or text"
                raise InvalidTaskError(path, "is an integer beyond 64 bits", allowed)
            case float() if not math.isfinite(value):
                raise InvalidTaskError(path, f"is {value!r}", "finite numbers, or None")
            case float() if abs(value) >= FLOATS_WITH_EXPONENT:
                # jsonb reads 1e23 as an exact decimal, which is not the float 1e23. So write all
                # digits, and a fraction, which jsonb keeps, so that it is read back as a float.
                return f"\0{int(value)}.0"
            case float():
                return float(value)
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
    return str.__str__(check_text(key, f"{path}[{key!r}]"))


STARS = "***"  # in every secret that pydantic writes
TEN = "**********"  # written by pydantic's own classes
_ANY = SchemaSerializer(core_schema.any_schema())


def check_secrets(value: Any, text: str, path: str) -> None:
    """Raise InvalidTaskError if a secret of ``value`` is masked in ``text``, its JSON."""
    found = _masked(value, json.loads(text), path)
    if found is not None:
        raise InvalidTaskError(
            found,
            "is a secret, which pydantic writes as stars",
            "a reference to the secret, or a field whose field_serializer writes the real value",
        )


def check_read_back(given: Any, back: Any, path: str) -> None:
    """Raise InvalidTaskError if ``back``, read from the JSON of ``given``, is not equal to it."""
    found = next(_changed(given, back, path), None)
    if found is not None:
        raise InvalidTaskError(
            found,
            "is written in one way and read in another, so its handler would get another value",
            "types that read what they write (see aliases, serializers and validators)",
        )


def _changed(given: Any, back: Any, path: str) -> Iterator[str]:
    """Yield the paths of unequal values; private state, which is no field, does not count."""
    if given is back or given == back or (_is_nan(given) and _is_nan(back)):
        return
    lists = isinstance(given, list | tuple) and isinstance(back, list | tuple)  # one kind in JSON
    related = lists or isinstance(given, type(back)) or isinstance(back, type(given))
    mine, its = _parts(given), _parts(back)
    if isinstance(given, datetime) and related and given.tzinfo and back.tzinfo:
        # Between zones Python finds an hour that a clock shows twice unequal to any other.
        if given.astimezone(UTC) != back.astimezone(UTC):
            yield path
    elif not related or mine is None or its is None:
        yield path
    else:
        for step, value in mine.items():
            if step in its:
                yield from _changed(value, its[step], f"{path}{step}")
            else:
                yield f"{path}{step}"
        if its.keys() - mine.keys():
            yield path


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | Decimal) and math.isnan(value)


def _parts(value: Any) -> dict[str, Any] | None:
    """Return the values in a container by the steps to them; None: it is not a container."""
    if isinstance(value, RootModel):
        return {"": value.root}
    if isinstance(value, BaseModel):
        own = {k: v for k, v in vars(value).items() if k in type(value).model_fields}
        return {f".{k}": v for k, v in {**own, **(value.__pydantic_extra__ or {})}.items()}
    if is_dataclass(value):
        return {f".{f.name}": getattr(value, f.name, None) for f in fields(value)}
    if isinstance(value, Mapping):
        # In JSON a key is text: another key comes back as text, which differs from it.
        return {f".{k}" if isinstance(k, str) else f"[{k!r}]": v for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return {f"[{place}]": item for place, item in enumerate(value)}
    equal: Any = type(value).__eq__
    if equal is object.__eq__:  # no two are ever equal
        return {f".{key}": item for key, item in getattr(value, "__dict__", {}).items()}
    return None


def _masked(value: Any, kept: Any, path: str) -> str | None:
    if isinstance(value, SecretStr | SecretBytes | Secret):
        return path if kept and kept in (str(value), TEN) else None  # of bytes: "b'***'"
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        # The mode "python" keeps secrets as objects, and has the names and the order of JSON.
        return _masked(_ANY.to_python(value, by_alias=True, warnings=False), kept, path)
    pairs: Any = ()
    if isinstance(value, Mapping) and isinstance(kept, dict):
        pairs = zip((f"{path}.{key}" for key in kept), value.values(), kept.values(), strict=False)
    elif isinstance(value, Collection) and isinstance(kept, list):
        pairs = ((f"{path}[{n}]", *both) for n, both in enumerate(zip(value, kept, strict=False)))
    for where, inner, written in pairs:
        if found := _masked(inner, written, where):
            return found
    return None
