"""Rows that are taken as they come and marked; there is no checkpoint but the marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from tasks_app.domain.partition.sources import Marker, Table
from tasks_app.pool.batch import marks


class MarkReader:
    """Of one instance; marks stand in a column of the table, or beside it."""

    until = None

    def __init__(self, source: Table, marker: Marker | None, program: str, number: int) -> None:
        self._source = source
        self._marker = marker
        self._program = program
        self._number = number

    def read(self, connection: Connection, _after: Any, size: int) -> Sequence[Any]:
        """Take rows that nobody has in hand; a rollback gives them back."""
        if self._marker is None:
            return marks.take_beside(connection, self._program, self._source, size, self._number)
        return marks.take(connection, self._source, self._marker, size)

    def is_last(self, connection: Connection, rows: Sequence[Any], size: int) -> bool:
        """Whether no row waits, in nobody's hands and in no other's."""
        if len(rows) >= size:
            return False
        if self._marker is None:
            return not marks.left_beside(connection, self._program)
        return not marks.left(connection, self._source, self._marker)

    def leave_out(self, connection: Connection, rows: Sequence[Any]) -> None:
        """Mark rows as such that were left out."""
        keys = [row.key for row in rows]
        if self._marker is None:
            marks.fail_beside(connection, self._program, keys)
        else:
            marks.fail(connection, self._source, self._marker, keys)

    def after(self, _rows: Sequence[Any]) -> None:
        """Return nothing: the marks tell."""

    def name(self, row: Any) -> str:
        """Return the row's key."""
        return str(row.key)
