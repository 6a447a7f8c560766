"""Marker: how it is seen of a row whether somebody has processed it."""

from __future__ import annotations

from dataclasses import dataclass

Mark = str | int | None


@dataclass(frozen=True, slots=True)
class Marker:
    """A column of the user's own table.

    There is no mark for a row that is in somebody's hands: his lock on it says so, and ends with
    his transaction, however that ends.
    """

    column: str
    waiting: Mark = None
    """What rows have that nobody has processed."""
    done: Mark = "done"
    error: Mark = "error"
    """What skipped rows get."""
