"""What a verb wants to say to a connection of any kind, without saying it.

A plan is a generator: it yields what it wants to ask or to copy and is sent the rows. Statements
mark their values as psycopg does: ``%(name)s``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")
Rows: TypeAlias = Sequence[Any]


class Statement(NamedTuple):
    """A statement whose rows are wanted."""

    sql: str
    values: Mapping[str, Any]
    yields: bool = True
    """False: it has no rows, such as a SAVEPOINT."""


class Copy(NamedTuple):
    """Rows that ``COPY … FROM STDIN`` takes, as pieces of its text."""

    sql: str
    pieces: Iterable[str]


Statements: TypeAlias = Generator[Statement | Copy, Rows, T]
