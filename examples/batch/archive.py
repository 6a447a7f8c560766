"""Old rows move to an archive, in small commits, while others work with the table.

    export TASKS_APP_IMPORTS=batch.archive PYTHONPATH=examples
    tasks-app batch start archive '{"before": "2025-01-01"}'
    tasks-app work --drain

A row is deleted and inserted in one commit with the checkpoint, so it is always in one of the two
tables. One that changed since it was read stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from pydantic import BaseModel
from sqlalchemy import column, select, table, text

from tasks_app import BatchJob, ChunkContext, Query, Step
from tasks_app.batch.planners.even import Even

SCHEMA = """
CREATE TABLE IF NOT EXISTS message (
    id bigint PRIMARY KEY, sent date NOT NULL, body text NOT NULL, pinned boolean DEFAULT false);
CREATE TABLE IF NOT EXISTS message_archive (LIKE message INCLUDING ALL)
"""
MOVE = text("""
    WITH gone AS (
        DELETE FROM message WHERE id = ANY(CAST(:ids AS bigint[])) AND NOT pinned RETURNING *)
    INSERT INTO message_archive SELECT * FROM gone
""")
MESSAGE = table("message", column("id"), column("sent"), column("pinned"))


class Cut(BaseModel):
    """Rows older than this move."""

    before: date


def old(params: Cut) -> Query:
    """Return the rows to move."""
    rows = select(MESSAGE.c.id).where(MESSAGE.c.sent < params.before, ~MESSAGE.c.pinned)
    return Query(rows, "id")


def move(ctx: ChunkContext, rows: Sequence[Any]) -> int:
    """Move a chunk. It checks the condition again: somebody may have pinned a row meanwhile."""
    moved = ctx.connection.execute(MOVE, {"ids": [row.id for row in rows]})
    return int(moved.rowcount)


archive = BatchJob(
    "archive",
    [
        Step(
            "move",
            old,
            planner=Even(rows=20_000),
            chunk=move,
            commit_every="500 rows or 200ms",
            priority=9,
        )
    ],
    params=Cut,
)
