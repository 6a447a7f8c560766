"""What a test sees of the statements on an engine, and does beside one: by SQLAlchemy's events.

An engine that was listened to takes the slower way for good. So of the suite's own engine take
``engine.execution_options()``: another one with the same connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError


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
def once_after(
    engine: Engine, part: str, do: Callable[[], object], *, number: int = 1
) -> Iterator[None]:
    """Call ``do`` once, when the statement of this number with ``part`` in it is answered."""
    answered = 0

    def meanwhile(_: Any, __: Any, sql: str, *___: Any) -> None:
        nonlocal answered
        answered += part in sql
        if part in sql and answered == number:
            do()

    event.listen(engine, "after_cursor_execute", meanwhile)
    try:
        yield
    finally:
        event.remove(engine, "after_cursor_execute", meanwhile)
    assert answered >= number, f"{answered} statements had {part!r} in them"


@contextmanager
def commit_unanswered(engine: Engine, *, number: int = 1) -> Iterator[None]:
    """Let the next COMMIT, or the one of this number, be carried out, and its answer be lost."""
    commits = 0

    def unanswered(connection: Connection) -> None:
        nonlocal commits
        commits += 1
        if commits < number:
            return
        event.remove(engine, "commit", unanswered)
        connection.connection.commit()
        raise OperationalError("COMMIT", None, ConnectionError())

    event.listen(engine, "commit", unanswered)
    yield
    assert not event.contains(engine, "commit", unanswered), "nothing was committed"
