"""What a test sees of the statements on an engine, and does beside one: by SQLAlchemy's events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Engine, event


class Seen(NamedTuple):
    """One statement that was sent."""

    sql: str
    values: Any


@contextmanager
def watched(engine: Engine, part: str = "") -> Iterator[list[Seen]]:
    """Note the statements that have ``part`` in them, as they are sent."""
    seen: list[Seen] = []

    def note(_: Any, __: Any, sql: str, values: Any, *___: Any) -> None:
        if part in sql:
            seen.append(Seen(sql, values))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


@contextmanager
def once_after(engine: Engine, part: str, do: Callable[[], object]) -> Iterator[None]:
    """Call ``do`` once, when the first statement with ``part`` in it is answered."""
    done = False

    def meanwhile(_: Any, __: Any, sql: str, *___: Any) -> None:
        nonlocal done
        if part in sql and not done:
            done = True
            do()

    event.listen(engine, "after_cursor_execute", meanwhile)
    try:
        yield
    finally:
        event.remove(engine, "after_cursor_execute", meanwhile)
    assert done, f"no statement had {part!r} in it"
