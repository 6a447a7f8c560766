"""Audit: what operators did, line by line."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from tasks_app.pool.connection.clock import instant
from tasks_app.pool.operations.audit import AuditLine, find_among_newest

FILTERS = ("who", "action", "task")
PAGE = 50


@dataclass(frozen=True, slots=True)
class Audit:
    """One page of lines, the newest first."""

    at: datetime
    filters: dict[str, str]
    lines: tuple[AuditLine, ...]
    older: int | None
    """The id to go on below; None: this is the last page."""


def audit(connection: Connection, filters: dict[str, str], *, before: int | None = None) -> Audit:
    found = find_among_newest(
        connection,
        who=filters.get("who"),
        task_id=int(filters["task"]) if "task" in filters else None,
        action=filters.get("action"),
        before=before,
        most=PAGE + 1,
    )
    older = found[PAGE - 1].id if len(found) > PAGE else None
    return Audit(instant(connection), filters, tuple(found[:PAGE]), older)
