"""Tasks: a page of them by filters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine

from tasks_app.domain.statistics.unkept import Unkept
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.pool.connection.clock import instant
from tasks_app.pool.pages import tasks as rows
from tasks_app.pool.pages.tasks import FILTERS, MOST, TaskLine
from tasks_app.pool.statistics.unkept import unkept
from tasks_app.pool.tasks import browse
from tasks_app.runtime.encryption.older_texts import masked_errors, masked_texts

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
_NEVER_THEIRS = frozenset({"error", "fingerprint", "group", "held"})
"""No success that left no row has one of these."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """One page."""

    at: datetime
    filters: dict[str, str]
    rows: tuple[TaskLine, ...]
    remarks: dict[int, str]
    """Its sub-status, and the error or why it waits, by id."""
    number: int
    """All that match, or ``most``."""
    more: bool
    """There may be more than ``number``: not all tasks were looked at."""
    unkept: Unkept | None
    """Successes that may fit, too, and left no row."""
    older: int | None
    """The id to go on below, where more tasks may fit; None: this is the last page."""

    @property
    def selection(self) -> dict[str, str]:
        """The same filters for a bulk; empty: it knows not all of them, or they mean everything."""
        if self.filters.keys() - SELECTIONS or not self.filters.keys() - {"pool", "state"}:
            return {}
        return {SELECTIONS[name]: value for name, value in self.filters.items()}


def tasks(connection: Connection, filters: dict[str, str], *, before: int | None = None) -> Tasks:
    found = rows.look(connection, filters, before=before, most=PAGE)
    shown = tuple(masked_errors(connection, found.rows))
    going = [row.id for row in shown if row.attempt and row.finished_at is None]
    causes = masked_texts(connection, browse.last_causes(connection, going))
    remarks = {row.id: _remark(row, causes.get(row.id)) for row in shown}
    return Tasks(
        at=instant(connection),
        filters=filters,
        rows=shown,
        remarks=remarks,
        number=min(found.number, MOST),
        more=found.number > MOST or not found.whole,
        unkept=unkept_of(connection, filters),
        older=found.below,
    )


def unkept_of(connection: Connection, filters: Mapping[str, Any]) -> Unkept | None:
    """Return successes that left no row, where the filters ask for successes, too.

    The counters know their names and queues; any of them may fit the other filters.
    """
    said = {"pool": Pool.COMPLETED, "state": State.SUCCEEDED}
    said |= {key: value for key, value in filters.items() if value}
    places = said["pool"], said["state"].upper()
    if places != (Pool.COMPLETED, State.SUCCEEDED) or said.keys() & _NEVER_THEIRS:
        return None
    return unkept(connection, name=said.get("name"), queue=said.get("queue"))


def _remark(row: TaskLine, last_error: str | None) -> str:
    said = (row.sub_status, row.error or row.parked or last_error)
    return "; ".join(each for each in said if each)


def page_by_page(engine: Engine, filters: dict[str, str]) -> Iterator[list[TaskLine]]:
    """Yield all that match, at most MOST_EXPORTED, the newest first; a short read for each page."""
    before, left, more = None, MOST_EXPORTED, True
    while left > 0 and more:
        with engine.connect() as connection:
            found = rows.look(connection, filters, before=before, most=min(EXPORTED, left))
            shown = masked_errors(connection, found.rows)
        if shown:
            yield shown
        before, left, more = found.below, left - len(found.rows), found.below is not None
