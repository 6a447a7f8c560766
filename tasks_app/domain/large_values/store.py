"""What an object store has to do to keep large values."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol


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
