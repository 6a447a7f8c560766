"""Tasks that a breaker holds, in a list beside the pool; those let through are marked.

They are parked for a day at a time, so that a hundred thousand of them cost nothing. The list says
which to let go; entries of tasks that are gone fall out when their turn comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.circuit_breaker import BreakerState
from tasks_app.domain.flow_control.waiting_reason import WORDS, WaitingKind, WaitingReason
from tasks_app.domain.tasks.states import Event, State
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
_LET_GO = text(f"""
    WITH next AS MATERIALIZED (
        SELECT h.priority, h.task_id FROM {HELD} h
        WHERE h.dependency = :dependency AND NOT h.let
        ORDER BY h.priority, h.task_id LIMIT :most),
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
    SELECT (SELECT count(*) FROM next) AS taken, (SELECT count(*) FROM there) AS freed
""")
_UNMARK = text(f"""
    WITH marked AS (
        DELETE FROM {HELD} h WHERE h.dependency = :dependency AND h.let RETURNING h.task_id)
    UPDATE {PENDING} p SET {UNPARKED}
    WHERE p.id = ANY(ARRAY(SELECT task_id FROM marked)) AND {admits_by_id(Event.CLAIM)} AND {_LET}
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
    values = {"ids": sorted(map(int, ids)), "now": now}
    return int(connection.execute(_HOLD, values).rowcount)


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
    freed = 0
    while freed < most:
        row = connection.execute(_LET_GO, {**values, "most": most - freed}).one()
        freed += row.freed
        if not row.taken:
            break
    return freed


def unmark(connection: Connection, dependency: str) -> None:
    """Unmark what was let through and has not begun: the next scan holds it again."""
    connection.execute(_UNMARK, {"dependency": dependency})


def outstanding(connection: Connection, dependency: str) -> int:
    """Return how many of those that were let through wait or run."""
    return int(connection.execute(_OUTSTANDING, {"dependency": dependency}).scalar_one())
