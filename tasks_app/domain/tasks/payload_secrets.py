"""Refuses secrets that pydantic wrote as stars: the task would run with the stars.

Whether a type holds a secret says nothing about what is written: a serializer of the field may
write the real value. So the JSON is compared with the value, and only where it has stars.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from typing import Any

from pydantic import BaseModel, Secret, SecretBytes, SecretStr
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
