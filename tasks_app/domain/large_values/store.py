"""Values kept outside their rows: what a store has to do, and the reference left in the row."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple, Protocol, Self
from uuid import UUID, uuid4

from tasks_app.domain.errors import InvalidTaskError, TasksError


class LargeValueStore(Protocol):
    """Keeps bytes under keys that are never used twice; any number of processes call it at once.

    What a method raises is an outage: the transaction of a producer fails, a task whose payload
    does not come is given back, and maintenance tries again.
    """

    def put(self, key: str, data: bytes) -> None:
        """Write it, whole and for good, before this returns."""

    def get(self, key: str) -> bytes | None:
        """Return it; None: there is no such key."""

    def delete(self, key: str) -> None:
        """Remove it; a key that is not there is no error."""

    def keys(self, before: datetime) -> Iterable[str]:
        """Return the keys that were written before this instant."""


REFERENCE_MARK = "$large"
REFERENCE_BEGIN = f'{{"{REFERENCE_MARK}":'
"""With what the JSON text of each reference begins."""
PAYLOAD, RESULT = "payload", "result"
"""Kinds of values."""


class Reference(NamedTuple):
    """Where a value is, and what is known of it without looking."""

    id: UUID
    bytes: int
    encrypted: bool

    @property
    def key(self) -> str:
        """The value's name in an object store."""
        return self.id.hex

    def __str__(self) -> str:
        value = {"id": str(self.id), "bytes": self.bytes, "encrypted": self.encrypted}
        return f"{REFERENCE_BEGIN} {json.dumps(value)}}}"


class LargePayload(str):
    """The text of a reference, as a row has it, with what is to be written beside the row."""

    __slots__ = ("content", "reference")
    reference: Reference
    content: str | None
    """The value, JSON text. None: an object store has it already."""

    @classmethod
    def of(cls, text: str, *, encrypted: bool) -> Self:
        reference = Reference(uuid4(), len(text.encode()), encrypted)
        self = cls(reference)
        self.reference, self.content = reference, text
        return self


class LargeValueLostError(TasksError):
    """There is no such value of this task."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"The {kind} was kept outside of its row and is gone. "
            "Restore what keeps large values, or create the task anew."
        )


def reference_in(text: str | None) -> Reference | None:
    """Return the reference that a JSON text is; None: it is none."""
    if text is None or not text.startswith(REFERENCE_BEGIN):
        return None
    try:
        return reference_of(json.loads(text))
    except (ValueError, RecursionError):
        return None


def reference_of(value: Any) -> Reference | None:
    """Return the reference that a decoded JSON value is; None: it is none."""
    match value:
        case {"$large": {"id": str(id_), "bytes": int(size), "encrypted": bool(encrypted)}} if (
            len(value) == 1
        ):
            try:
                return Reference(UUID(id_), size, encrypted)
            except ValueError:
                return None
    return None


def check_no_reference(text: str) -> None:
    """Pass if a payload is no reference: what one stands for is not checked again.

    Raises:
        InvalidTaskError: it is one.
    """
    if reference_in(text) is not None:
        raise InvalidTaskError(
            f"payload.{REFERENCE_MARK}", "is a stored reference", "the value itself"
        )


def described(value: Any) -> Any:
    """Return what people see of a value: of a reference, how large the value is."""
    reference = reference_of(value)
    if reference is None:
        return value
    secret = ", encrypted" if reference.encrypted else ""
    return f"kept outside of the row ({reference.bytes} bytes{secret})"
