"""Claim the next tasks straight from the pool, without a message."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from uuid import UUID

from sqlalchemy import Connection, text

from tasks_app.domain.large_values.reference import MARK
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.fragments.conditions import is_free
from tasks_app.pool.fragments.conditions import runs
from tasks_app.pool.fragments.scan_position import BEHIND, NUMBERED, Place, place_values
from tasks_app.pool.fragments.transition_log import LOG
from tasks_app.pool.runs.claim_sql import (
    ALONE,
    CANDIDATE,
    END,
    KNOWN,
    Claimer,
    plain,
    statement,
    task_of,
    values_of,
)
from tasks_app.pool.tables import NOW, PENDING, QUEUE, READY, UNGATED, admits

_QUEUE = 1 + ClaimedTask._fields.index("queue")
_IN_TURN = itemgetter(END, 1 + ClaimedTask._fields.index("due_s"), 0)
"""By priority, then as they became due."""


def claims(*, logs: bool, more: str = "true") -> str:
    """Return the statement; ``more``: a condition on the row ``p`` besides."""
    return statement(
        f"""
    candidate AS MATERIALIZED (
        SELECT p.*
        FROM unnest(CAST(:queues AS text[])) WITH ORDINALITY AS q(queue, number)
        CROSS JOIN generate_series(0, 9) AS r(priority)
        {NUMBERED}
        CROSS JOIN LATERAL (
            SELECT {CANDIDATE} FROM {PENDING} p
            WHERE p.queue = q.queue AND p.priority = r.priority
              AND p.scan_at <= {NOW}
              AND {BEHIND}
              AND {admits(Event.CLAIM)} AND {KNOWN} AND {READY} AND {is_free()} AND {UNGATED}
              AND {more}
              AND (CAST(:lonely AS boolean) OR NOT {ALONE})
            ORDER BY p.scan_at, p.id LIMIT :most FOR NO KEY UPDATE SKIP LOCKED) AS p
        WHERE {runs("q.queue")}
        ORDER BY p.priority, p.scan_at, p.id LIMIT :most)
    """,
        order="priority, scan_at, id",
        # The pool may never run out of others, so the first in line goes first.
        lonely_goes_first="(SELECT alone FROM candidate ORDER BY priority, scan_at, id LIMIT 1)",
        more=", p.priority, date_part('epoch', p.scan_at)",
        logs=logs,
    )


LEFT_ALONE = f"""num_nonnulls(p.retry, p.timeout_ms, p.hard_timeout_ms) = 0
              AND NOT jsonb_exists(p.payload, '{MARK}') AND NOT EXISTS (
                SELECT FROM {QUEUE} g WHERE g.queue = p.queue
                  AND num_nonnulls(g.retry, g.timeout_ms, g.hard_timeout_ms) > 0)"""
"""The condition that neither the row nor its queue has a time limit or a policy of its own, and
that the payload is in the row."""
_NEXT, _NEXT_LOGGED = text(claims(logs=False)), text(claims(logs=True))


def claim_next(  # noqa: PLR0913  who, what and how much of it, by keyword
    connection: Connection,
    queues: Sequence[str],
    most: int,
    claimer: Claimer,
    token: UUID,
    *,
    lonely: bool = True,
    within: timedelta | None = None,
    places: dict[tuple[str, int], Place] | None = None,
    now: datetime | None = None,
) -> list[ClaimedTask]:
    """Take up to ``most`` due tasks straight from the pool, in order of priority.

    Without ``lonely`` none that has to run alone. What is due for longer than ``within`` is not
    read. It begins behind ``places``, and moves them behind what it took.
    """
    found = connection.execute(
        _NEXT_LOGGED if LOG.has_successes else _NEXT,
        {
            **values_of(claimer, token),
            "queues": list(queues),
            "most": most,
            "lonely": lonely,
            "within": within,
            "now": now,
            **place_values(queues, places),
        },
    )
    rows = sorted(plain(found), key=_IN_TURN)
    if places is not None:
        for row in rows:
            line, place = (row[_QUEUE], row[END]), (row[END + 1], row[0])
            places[line] = max(place, places.get(line, place))
    return [task_of(row, token) for row in rows]
