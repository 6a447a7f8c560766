"""Values kept outside their rows: what a store has to do, and the reference left in the row."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple, Protocol, Self
from uuid import UUID, uuid4

from tasks_app.domain.errors import InvalidTaskError, TasksError


class LargeValueStore(Protocol):
    """Stores bytes under keys that are never reused; any number of processes call it at once.

    An exception of a method is an outage: a producer's transaction fails, a task whose payload
    does not come goes back to the pool, and maintenance tries again.
    """

    def put(self, key: str, data: bytes) -> None:
        """Write it completely and durably before this returns."""

    def get(self, key: str) -> bytes | None:
        """Return it; None: the key does not exist."""

    def delete(self, key: str) -> None:
        """Remove it; a missing key is no error."""

    def keys(self, before: datetime) -> Iterable[str]:
        """Return the keys that were written before this instant."""


REFERENCE_MARK = "$large"
REFERENCE_BEGIN = f'{{"{REFERENCE_MARK}":'  # the beginning of each reference's JSON text
PAYLOAD, RESULT = "payload", "result"  # kinds of values


class Reference(NamedTuple):
    """Where a value is, and what is known without reading it."""

    id: UUID
    bytes: int
    encrypted: bool

    @property
    def key(self) -> str:  # in an object store
        return self.id.hex

    def __str__(self) -> str:
        value = {"id": str(self.id), "bytes": self.bytes, "encrypted": self.encrypted}
        return f"{REFERENCE_BEGIN} {json.dumps(value)}}}"


class LargePayload(str):
    """The text of a reference, as in its row, with the value to write beside the row."""

    __slots__ = ("content", "reference")
    reference: Reference
    content: str | None  # JSON text; None: an object store has it already

    @classmethod
    def of(cls, text: str, *, encrypted: bool) -> Self:
        reference = Reference(uuid4(), len(text.encode()), encrypted)
        self = cls(reference)
        self.reference, self.content = reference, text
        return self


class LargeValueLostError(TasksError):
    def __init__(self, kind: str) -> None:
        super().__init__(
            f"The {kind} was stored outside of its row and is missing. "
            "Restore the store of large values, or create the task again."
        )


def reference_in(text: str | None) -> Reference | None:
    """Return the reference in a JSON text; None: it is not a reference."""
    if text is not None and text.startswith(REFERENCE_BEGIN):
        with suppress(ValueError, RecursionError):
            return reference_of(json.loads(text))
    return None


def reference_of(value: Any) -> Reference | None:
    """Return the reference in a decoded JSON value; None: it is not a reference."""
    match value:
        case {"$large": {"id": str(id_), "bytes": int(size), "encrypted": bool(encrypted)}} if (
            len(value) == 1
        ):
            with suppress(ValueError):
                return Reference(UUID(id_), size, encrypted)
    return None


def check_no_reference(text: str) -> None:
    """Raise InvalidTaskError if a payload is a reference, whose value would not be checked."""
    if reference_in(text) is not None:
        path = f"payload.{REFERENCE_MARK}"
        raise InvalidTaskError(path, "is a stored reference", "the value itself")


def describe_large_value(value: Any) -> Any:
    """Return a value for people: of a reference, the size of the value."""
    reference = reference_of(value)
    if reference is None:
        return value
    secret = ", encrypted" if reference.encrypted else ""
    return f"kept outside of the row ({reference.bytes} bytes{secret})"
