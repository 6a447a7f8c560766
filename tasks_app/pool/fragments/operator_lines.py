"""What operators do, in the log of transitions, if that has all: a statement of its own.

The audit has their actions, too, whatever the log has; but not what became of each task, and of a
large action it keeps a sample of the ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, TextClause, text

from tasks_app.domain.operations.author import Author
from tasks_app.domain.tasks.error_text import clean
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.pool.fragments.held import is_held
from tasks_app.pool.fragments.transition_log import LOG, LONGEST, creations
from tasks_app.pool.tables import ERROR, NOW, PENDING, TRANSITION


def _told(pool: str, due_at: str) -> TextClause:
    return text(f"""
    INSERT INTO {TRANSITION}
        (task_id, at, attempt, event, from_state, to_state, due_at, detail, who, why)
    SELECT p.id, {NOW}, p.attempt, :event, coalesce(:origin, p.state), coalesce(:target, p.state),
        {due_at}, left(:detail, {LONGEST}), coalesce(nullif(:who, ''), current_user),
        nullif(:why, '')
    FROM {pool} p WHERE p.id = ANY(CAST(:ids AS bigint[])) ORDER BY p.id
    """)


_TOLD = {
    Pool.PENDING: _told(
        PENDING,
        f"""CASE WHEN p.state = '{State.PENDING}'
        AND :target IS NULL AND NOT {is_held()} THEN p.due_at END""",
    ),
    Pool.ERROR: _told(ERROR, "NULL"),
}
_CREATED = text(creations(f"{PENDING} n WHERE n.id = ANY(CAST(:ids AS bigint[]))"))


def tell(  # noqa: PLR0913  who did what to which, by keyword
    connection: Connection,
    event: str,
    ids: Sequence[int],
    by: Author,
    *,
    origin: State | None = None,
    target: State | None = None,
    detail: str | None = None,
    pool: Pool = Pool.PENDING,
    now: datetime | None = None,
) -> None:
    """Write a line for each task, which is in ``pool`` now.

    ``origin`` and ``target`` are its states before and behind the action, where its row does not
    say so: that is, before a cancel and behind a requeue.
    """
    if not (LOG.has_successes and ids):
        return
    values = {"ids": sorted(ids), "now": now}
    if target is not None:
        connection.execute(_CREATED, values)
    words = {"event": event, "origin": origin, "target": target, "detail": detail}
    told = {"who": clean(by.who, LONGEST), "why": by.why}
    connection.execute(_TOLD[pool], {**values, **words, **told})
