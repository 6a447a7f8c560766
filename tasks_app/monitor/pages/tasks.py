"""Tasks: a page of them by filters."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from tasks_app.pool.connection.clock import instant
from tasks_app.pool.pages import tasks as rows
from tasks_app.pool.pages.tasks import FILTERS, MOST, Row
from tasks_app.pool.tasks import browse

__all__ = ["FILTERS", "Tasks", "tasks"]
PAGE = 50


@dataclass(frozen=True, slots=True)
class Tasks:
    """One page."""

    at: datetime
    filters: dict[str, str]
    rows: tuple[Row, ...]
    remarks: dict[int, str]
    """The error, or why it waits, by id."""
    number: int
    """All that match, or ``most``."""
    more: bool
    """There are more than ``number``."""
    older: int | None
    """The id to go on below; None: this is the last page."""


def tasks(connection: Connection, filters: dict[str, str], *, before: int | None = None) -> Tasks:
    found = rows.find(connection, filters, before=before, most=PAGE + 1)
    shown = found[:PAGE]
    causes = browse.last_causes(
        connection, [row.id for row in shown if row.attempt and row.finished_at is None]
    )
    remarks = {row.id: row.error or row.parked or causes.get(row.id, "") for row in shown}
    number = rows.count(connection, filters)
    return Tasks(
        at=instant(connection),
        filters=filters,
        rows=tuple(shown),
        remarks=remarks,
        number=min(number, MOST),
        more=number > MOST,
        older=shown[-1].id if len(found) > PAGE else None,
    )
