"""Refuses what a handler would not be given as its producer gave it.

A type may write a value one way and read it another: by an alias, a serializer or a validator. So
what was read back is compared with what was given. Secrets that pydantic wrote as stars have words
of their own. Whether a type holds a secret says nothing about that: a serializer of the field may
write the real value. So the JSON is compared with the value, and only where it has stars.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, RootModel, Secret, SecretBytes, SecretStr
from pydantic_core import SchemaSerializer, core_schema

from tasks_app.domain.errors import InvalidTaskError

STARS = "***"
"""In all that pydantic writes for a secret."""
TEN = "**********"
"""What pydantic's own classes are written as."""
_ANY = SchemaSerializer(core_schema.any_schema())


def check_secrets(value: Any, text: str, path: str) -> None:
    """Pass if ``text``, the JSON of ``value``, has the real value of each secret.

    Raises:
        InvalidTaskError: with the path of the first one that is masked.
    """
    found = _masked(value, json.loads(text), path)
    if found is not None:
        raise InvalidTaskError(
            found,
            "is a secret, which pydantic writes as stars",
            "a reference to the secret, or a field whose field_serializer writes the real value",
        )


def check_read_back(given: Any, back: Any, path: str) -> None:
    """Pass if ``back``, read from the JSON of ``given``, is equal to it.

    Raises:
        InvalidTaskError: with the path of the first value that is not.
    """
    found = next(_changed(given, back, path), None)
    if found is not None:
        raise InvalidTaskError(
            found,
            "is written one way and read another, so that its handler would get another value",
            "what its type reads as it writes it (see aliases, serializers and validators)",
        )


def _changed(given: Any, back: Any, path: str) -> Iterator[str]:
    """Yield the paths of unequal values; what is no field of a type, as private state, is none."""
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
    """Return the values in it by the steps to them; None: it has none."""
    if isinstance(value, RootModel):
        return {"": value.root}
    if isinstance(value, BaseModel):
        own = {k: v for k, v in vars(value).items() if k in type(value).model_fields}
        return {f".{k}": v for k, v in {**own, **(value.__pydantic_extra__ or {})}.items()}
    if is_dataclass(value):
        return {f".{f.name}": getattr(value, f.name, None) for f in fields(value)}
    if isinstance(value, Mapping):
        # JSON has no key that is no text: one that comes back as text is another.
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
