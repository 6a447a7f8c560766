"""Tasks that a breaker holds, in a list beside the pool; those let through are marked.

They are parked for a day at a time, so that a hundred thousand of them cost nothing. The list says
which to let go; entries of tasks that are gone fall out when their turn comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.circuit_breaker import BreakerState
from tasks_app.domain.flow_control.waiting_reason import WORDS, WaitingKind, WaitingReason
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.fragments.parked import UNPARKED, is_parked_as
from tasks_app.pool.tables import BREAKER, HELD, NOW, PENDING, admits_by_id

_LET = is_parked_as(WaitingKind.LET_THROUGH)
# The breaker's row is locked: a later close finds all that it holds.
_HOLD = text(f"""
    WITH down AS MATERIALIZED (
        SELECT b.dependency, b.names FROM {BREAKER} b WHERE b.state <> 'closed'
        ORDER BY b.dependency FOR SHARE),
    aside AS MATERIALIZED (
        SELECT p.id, p.priority, (
            SELECT d.dependency FROM down d WHERE p.name = ANY(d.names) LIMIT 1) AS dependency
        FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)}
          AND p.scan_at <= {NOW} AND NOT {_LET}
          AND p.name = ANY(ARRAY(SELECT unnest(d.names) FROM down d))
        ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED),
    listed AS (
        INSERT INTO {HELD} (dependency, priority, task_id)
        SELECT a.dependency, a.priority, a.id FROM aside a ON CONFLICT DO NOTHING)
    UPDATE {PENDING} p
    SET scan_at = greatest({NOW}, p.due_at) + interval '1 day',
        (parked, parked_kind, parked_for) = (
            SELECT '{WORDS[WaitingKind.BREAKER]} ' || a.dependency, '{WaitingKind.BREAKER}',
                a.dependency
            FROM aside a WHERE a.id = p.id)
    WHERE p.id = ANY(ARRAY(SELECT id FROM aside))
""")
_HELD_NAMES = text(f"""
    SELECT unnest(names) FROM {BREAKER}
    WHERE dependency = :dependency AND state = '{BreakerState.OPEN}'
""")
_NEXT = text(f"""
    SELECT h.priority, h.task_id FROM {HELD} h
    WHERE h.dependency = :dependency AND NOT h.let
    ORDER BY h.priority, h.task_id LIMIT :most OFFSET :skipped
""")
_LET_GO = text(f"""
    WITH next AS MATERIALIZED (
        SELECT n.priority, n.task_id
        FROM unnest(CAST(:priorities AS smallint[]), CAST(:ids AS bigint[]))
            AS n(priority, task_id)),
    there AS MATERIALIZED (
        SELECT p.id FROM {PENDING} p
        WHERE p.id = ANY(ARRAY(SELECT task_id FROM next)) AND {admits_by_id(Event.CLAIM)}
          AND p.parked_kind = '{WaitingKind.BREAKER}' AND p.parked_for = :dependency
        ORDER BY p.id FOR NO KEY UPDATE),
    freed AS (
        UPDATE {PENDING} p SET scan_at = greatest({NOW}, p.due_at), parked = CAST(:mark AS text),
            parked_kind = CAST(:kind AS text), parked_for = CAST(:subject AS text)
        WHERE p.id = ANY(ARRAY(SELECT id FROM there))),
    unlisted AS (
        DELETE FROM {HELD} h USING next n
        WHERE h.dependency = :dependency AND NOT h.let AND h.priority = n.priority
          AND h.task_id = n.task_id),
    marked AS (
        INSERT INTO {HELD} (dependency, let, priority, task_id)
        SELECT :dependency, true, n.priority, n.task_id FROM next n JOIN there t ON t.id = n.task_id
        WHERE CAST(:mark AS text) IS NOT NULL
        ON CONFLICT DO NOTHING)
    SELECT count(*) FROM there
""")
_MARKED = text(f"""
    DELETE FROM {HELD} h WHERE h.dependency = :dependency AND h.let RETURNING h.task_id
""")
_UNMARK = text(f"""
    UPDATE {PENDING} p SET {UNPARKED}
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)} AND {_LET}
""")
_OUTSTANDING = text(f"""
    SELECT count(*) FROM {PENDING} p
    WHERE p.id = ANY(ARRAY(
        SELECT h.task_id FROM {HELD} h WHERE h.dependency = :dependency AND h.let))
      AND (p.state = '{State.RUNNING}' OR {_LET})
""")


def held_names(connection: Connection, dependency: str) -> list[str]:
    """Return the handlers whose claimed tasks should not begin, because the breaker is open."""
    return list(connection.execute(_HELD_NAMES, {"dependency": dependency}).scalars())


def hold(connection: Connection, ids: Sequence[int], *, now: datetime | None = None) -> int:
    """Park due rows whose breaker is not closed; return how many."""

    def park(some: Sequence[int]) -> int:
        values = {"ids": sorted(map(int, some)), "now": now}
        return int(connection.execute(_HOLD, values).rowcount)

    return sum(row_by_row(connection, ids, park, "holding of tasks", now=now))


def let_go(
    connection: Connection,
    dependency: str,
    most: int,
    *,
    marked: bool,
    now: datetime | None = None,
) -> int:
    """Let up to ``most`` go, best priority and lowest id first; return how many.

    ``marked`` tasks may run although the breaker is not closed.
    """
    mark = WaitingReason(WaitingKind.LET_THROUGH, dependency) if marked else None
    kind, subject = mark or (None, None)
    values = {
        "dependency": dependency,
        "mark": mark and str(mark),
        "kind": kind,
        "subject": subject,
        "now": now,
    }

    def free(some: Sequence[Any]) -> int:
        columns = {"priorities": [r.priority for r in some], "ids": [r.task_id for r in some]}
        return int(connection.execute(_LET_GO, {**values, **columns}).scalar_one())

    freed = 0
    refused = set[int]()
    while freed < most:
        place = {"dependency": dependency, "most": most - freed, "skipped": len(refused)}
        rows = connection.execute(_NEXT, place).all()
        if not rows:
            break
        parts = row_by_row(connection, rows, free, "letting go of tasks", left=refused, now=now)
        freed += sum(parts)
    return freed


def unmark(connection: Connection, dependency: str) -> None:
    """Unmark what was let through and has not begun: the next scan holds it again."""
    marked = connection.execute(_MARKED, {"dependency": dependency}).scalars().all()
    row_by_row(
        connection,
        marked,
        lambda some: connection.execute(_UNMARK, {"ids": list(some)}),
        "unmarking of tasks",
    )


def outstanding(connection: Connection, dependency: str) -> int:
    """Return how many of those that were let through wait or run."""
    return int(connection.execute(_OUTSTANDING, {"dependency": dependency}).scalar_one())
