"""How the rows of a partition are had, whatever they lie in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sqlalchemy import Connection


class Reader(Protocol):
    """Reads a partition, some rows at a time."""

    until: Any
    """Where it ends, as JSON, if that is known when it begins; kept with the checkpoint."""

    def read(self, connection: Connection, after: Any, size: int) -> Sequence[Any]:
        """Return the next rows behind a checkpoint."""

    def is_last(self, connection: Connection, rows: Sequence[Any], size: int) -> bool:
        """Whether nothing comes behind these rows, for which ``size`` were asked."""

    def leave_out(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Note at the source, if it wants to know, that these rows are left out."""

    def after(self, rows: Sequence[Any]) -> Any:
        """Return the checkpoint behind these rows, as JSON."""

    def name(self, row: Any) -> str:
        """Return the key by which people find the row."""


class NoRows:
    """Of a step that reads nothing: its handler is called once."""

    until = None

    def read(self, _connection: Connection, _after: Any, _size: int) -> Sequence[Any]:
        """Return none."""
        return ()

    def is_last(self, _connection: Connection, _rows: Sequence[Any], _size: int) -> bool:
        """Return that there was no more."""
        return True

    def leave_out(self, _connection: Connection, _rows: Sequence[Any]) -> None:
        """Do nothing."""

    def after(self, _rows: Sequence[Any]) -> Any:
        """Return nothing to go on behind."""
        return None

    def name(self, _row: Any) -> str:
        """Return no key."""
        return ""
