"""Tasks: a page of them by filters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from tasks_app.pool.connection.clock import instant
from tasks_app.pool.pages import tasks as rows
from tasks_app.pool.pages.tasks import FILTERS, MOST, TaskLine
from tasks_app.pool.tasks import browse

__all__ = ["FILTERS", "SINCE", "Tasks", "page_by_page", "tasks"]
PAGE, EXPORTED = 50, 1_000
MOST_EXPORTED = 100_000
SINCE = ("1h", "24h", "7d", "30d")
"""How long ago a task was created at most."""
SELECTIONS = {
    **{name: name for name in ("pool", "state", "name", "queue", "biz_key")},
    "error": "error_text",
}
"""Filters that a bulk knows, too, and what it calls them."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """One page."""

    at: datetime
    filters: dict[str, str]
    rows: tuple[TaskLine, ...]
    remarks: dict[int, str]
    """The error, or why it waits, by id."""
    number: int
    """All that match, or ``most``."""
    more: bool
    """There are more than ``number``."""
    older: int | None
    """The id to go on below; None: this is the last page."""

    @property
    def selection(self) -> dict[str, str]:
        """The same filters for a bulk; empty: it knows not all of them, or they mean everything."""
        if self.filters.keys() - SELECTIONS or not self.filters.keys() - {"pool", "state"}:
            return {}
        return {SELECTIONS[name]: value for name, value in self.filters.items()}


def tasks(connection: Connection, filters: dict[str, str], *, before: int | None = None) -> Tasks:
    found = rows.find(connection, filters, before=before, most=PAGE + 1)
    shown = found[:PAGE]
    causes = browse.last_causes(
        connection, [row.id for row in shown if row.attempt and row.finished_at is None]
    )
    remarks = {row.id: row.error or row.parked or causes.get(row.id, "") for row in shown}
    whole = before is None and len(found) <= PAGE
    number = len(found) if whole else rows.count(connection, filters)
    return Tasks(
        at=instant(connection),
        filters=filters,
        rows=tuple(shown),
        remarks=remarks,
        number=min(number, MOST),
        more=number > MOST,
        older=shown[-1].id if len(found) > PAGE else None,
    )


def page_by_page(engine: Engine, filters: dict[str, str]) -> Iterator[list[TaskLine]]:
    """Yield all that match, at most MOST_EXPORTED, the newest first; a short read for each page."""
    before, left = None, MOST_EXPORTED
    while left > 0:
        with engine.connect() as connection:
            found = rows.find(connection, filters, before=before, most=min(EXPORTED, left))
        if found:
            yield found
            before = found[-1].id
        left = left - len(found) if len(found) == EXPORTED else 0
