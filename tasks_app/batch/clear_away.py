"""Clear away: what partitions of a step have beside their rows goes when the step is done with."""

from __future__ import annotations

from sqlalchemy import Connection

from tasks_app.domain.partition.records import Kind
from tasks_app.pool.batch import marks, partitions, views


def clear_away(connection: Connection, batch_id: int, step: str) -> None:
    """Drop their views and marks."""
    for stored in partitions.of_batch(connection, batch_id):
        if stored.step != step:
            continue
        if stored.partition.view is not None:
            views.drop(connection, [stored.partition])
        if stored.partition.kind is Kind.MARKED:
            marks.clear(connection, stored.program)
