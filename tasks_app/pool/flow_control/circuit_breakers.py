"""Circuit breakers: one locked row for each dependency, and the tasks that it holds back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.circuit_breaker import (
    LONGEST_RAMP,
    LOST_AFTER,
    SOON,
    Breaker,
    BreakerMode,
    BreakerState,
    BreakerStep,
    StoredBreaker,
    failures_to_open,
    next_ramp,
    step_after_calls,
    step_after_wait,
    step_by_operator,
)
from tasks_app.domain.flow_control.circuit_breaker import NOW as AT_ONCE
from tasks_app.domain.flow_control.limits import REASON_WORDS, WaitingKind, WaitingReason
from tasks_app.domain.tasks.states import Event, State
from tasks_app.pool.connection.row_by_row import row_by_row
from tasks_app.pool.fragments.conditions import UNPARKED, is_parked_as
from tasks_app.pool.tables import BREAKER, CALLS, HELD, NOW, PENDING, Clock, admits_by_id

MOST_COUNTED = 1_000_000
_SETTINGS = ("ratio", "least", '"window"', "open_for", "probes")
_KNOWN = text(f"SELECT dependency, names, {', '.join(_SETTINGS)} FROM {BREAKER}")
_DECLARE = text(f"""
    INSERT INTO {BREAKER} AS b (dependency, names, {", ".join(_SETTINGS)}, since)
    VALUES (:dependency, CAST(:names AS text[]), :ratio, :least, CAST(:window AS interval),
        CAST(:open_for AS interval), :probes, {NOW})
    ON CONFLICT (dependency) DO UPDATE
    SET {", ".join(f"{name} = EXCLUDED.{name}" for name in _SETTINGS)},
        names = ARRAY(
            SELECT n.name FROM unnest(b.names || EXCLUDED.names) AS n(name)
            WHERE n.name = ANY(EXCLUDED.names) OR NOT n.name = ANY(CAST(:known AS text[]))
            GROUP BY n.name ORDER BY n.name)""")
_FORGET = text(f"""
    UPDATE {BREAKER} SET names = ARRAY(
        SELECT n FROM unnest(names) AS n WHERE NOT n = ANY(CAST(:known AS text[])))
    WHERE NOT dependency = ANY(CAST(:declared AS text[])) AND names && CAST(:known AS text[])""")
STANDING = f"""
    SELECT b.*, {NOW} AS at, coalesce(c.good, 0) AS good, coalesce(c.bad, 0) AS bad
    FROM {BREAKER} b LEFT JOIN LATERAL (
        SELECT sum(c.good) AS good, sum(c.bad) AS bad FROM {CALLS} c
        WHERE c.dependency = b.dependency AND c.at > {NOW} - b."window") AS c ON true
"""
_FIND = text(f"""
    SELECT s.*, (SELECT count(*) FROM (
        SELECT FROM {HELD} h WHERE h.dependency = s.dependency AND NOT h.let
        LIMIT :most) AS h) AS held
    FROM ({STANDING}) AS s ORDER BY s.dependency""")
_ONE = text(f"{STANDING} WHERE b.dependency = :dependency FOR UPDATE OF b")
_LOCK = text(f"SELECT FROM {BREAKER} WHERE dependency = :dependency FOR UPDATE")
_DUE = text(f"""
    SELECT dependency FROM {BREAKER} WHERE look_at <= {NOW} ORDER BY dependency
    FOR UPDATE SKIP LOCKED""")
_COUNT = text(f"""
    INSERT INTO {CALLS} AS c (dependency, at, good, bad)
    SELECT b.dependency, date_bin(b."window" / 20, {NOW}, '2000-01-01Z'), :good, :bad
    FROM {BREAKER} b WHERE b.dependency = :dependency
    ON CONFLICT (dependency, at) DO UPDATE
    SET good = c.good + EXCLUDED.good, bad = c.bad + EXCLUDED.bad""")
_FORGET_CALLS = text(f"""
    DELETE FROM {CALLS} c WHERE c.dependency = :dependency AND (CAST(:all AS boolean)
        OR c.at <= {NOW} - (SELECT "window" FROM {BREAKER} WHERE dependency = :dependency))""")
_STEP = text(f"""
    UPDATE {BREAKER} SET state = :state, reason = :reason, since = {NOW}, let_through = 0,
        let_at = NULL, look_at = {NOW} + CAST(:look_in AS interval)
    WHERE dependency = :dependency""")
_SET_RELEASED = text(f"""
    UPDATE {BREAKER} SET let_through = :number, look_at = {NOW} + CAST(:look_in AS interval),
        let_at = CASE WHEN CAST(:let AS boolean) THEN {NOW} ELSE let_at END
    WHERE dependency = :dependency""")
_MODE = text(f"UPDATE {BREAKER} SET mode = :mode WHERE dependency = :dependency")


def synchronise(
    connection: Connection, declared: Mapping[Breaker, Collection[str]], known: Collection[str]
) -> None:
    """Write the breakers that this code declares for its ``known`` handlers, if they differ."""
    # Names that only other workers know stay.
    there = {row.dependency: row for row in connection.execute(_KNOWN)}
    names_known = list(known)
    for breaker, names in sorted(declared.items(), key=lambda item: item[0].dependency):
        row, settings = there.get(breaker.dependency), settings_of(breaker)
        kept = set(row.names) - (set(known) - set(names)) if row else set()
        same = row and set(names) <= kept and kept == set(row.names)
        if same and all(getattr(row, name) == value for name, value in settings.items()):
            continue
        values = {"names": sorted(names), "known": names_known, **settings, "now": None}
        connection.execute(_DECLARE, values)
    others = {row.dependency for row in there.values() if set(row.names) & set(known)}
    dependencies = [breaker.dependency for breaker in declared]
    if others - set(dependencies):
        connection.execute(_FORGET, {"known": names_known, "declared": dependencies})


def find_breakers(
    connection: Connection, *, most: int = MOST_COUNTED, now: Clock = None
) -> list[StoredBreaker]:
    """Return all breakers, by dependency; up to ``most`` held tasks of each are counted."""
    found = connection.execute(_FIND, {"most": most, "now": now})
    return [standing_of(row, held=row.held) for row in found]


def report_calls(
    connection: Connection, dependency: str, good: int, bad: int, *, now: Clock = None
) -> BreakerStep | None:
    """Count ended calls, and change the state if needed; return the change."""
    values = {"dependency": dependency, "now": now}
    connection.execute(_LOCK, values)
    connection.execute(_COUNT, {**values, "good": good, "bad": bad})
    connection.execute(_FORGET_CALLS, {**values, "all": False})
    row = connection.execute(_ONE, values).first()
    step = None if row is None else step_after_calls(standing_of(row))
    if step is not None:
        _step(connection, dependency, step, now)
    return step


def failures_left(connection: Connection, dependency: str) -> float:
    """Return how many more failed calls in a row would open it; infinity: they would not."""
    # It locks the row, so call it in the transaction of :func:`report`.
    row = connection.execute(_ONE, {"dependency": dependency, "now": None}).first()
    return math.inf if row is None else failures_to_open(standing_of(row))


def advance_due(connection: Connection, *, now: Clock = None) -> dict[str, int]:
    """Advance each due breaker; return how many tasks each releases."""
    # After its time an open breaker releases probes; a ramping one, more tasks each second.
    # Locked ones are left out.
    found = {}
    for dependency in connection.execute(_DUE, {"now": now}).scalars().all():
        values = {"dependency": dependency, "now": now}
        standing = standing_of(connection.execute(_ONE, values).one())
        step = step_after_wait(standing)
        if step is not None:
            _step(connection, dependency, step, now)
            standing = standing_of(connection.execute(_ONE, values).one())
        found[dependency] = _release_due(connection, standing, now)
    return found


def override(
    connection: Connection, dependency: str, mode: BreakerMode, *, now: Clock = None
) -> bool:
    """Set what decides: an operator, or the outcomes; False: no such breaker."""
    values = {"dependency": dependency, "now": now}
    row = connection.execute(_ONE, values).first()
    if row is None:
        return False
    connection.execute(_MODE, {**values, "mode": mode})
    _step(connection, dependency, step_by_operator(mode, BreakerState(row.state)), now)
    return True


def _release_due(connection: Connection, standing: StoredBreaker, now: Clock) -> int:
    dependency, number = standing.breaker.dependency, standing.let_through
    release = partial(release_tasks, connection, dependency, now=now)

    def note(number: int, look_in: timedelta | None, *, let: bool = False) -> None:
        values = {"dependency": dependency, "number": number, "look_in": look_in, "let": let}
        connection.execute(_SET_RELEASED, {**values, "now": now})

    match standing.state:
        case BreakerState.OPEN:  # it is too early, or an operator keeps it open
            left = standing.since + standing.breaker.open_for - standing.at
            note(number, left if standing.mode is BreakerMode.AUTO else None)
            return 0
        case BreakerState.CLOSED:
            freed = release(LONGEST_RAMP, marked=False)
            note(number, SOON if freed else None)
            return freed
        case BreakerState.PROBING:
            wanted = standing.breaker.probes - number
            freed = release(wanted, marked=True) if wanted else 0
            if not freed and _are_probes_lost(connection, standing):
                step = BreakerStep(BreakerState.PROBING, AT_ONCE, "its probes were lost")
                _step(connection, dependency, step, now)
            else:
                note(number + freed, SOON, let=freed > 0)
            return freed
        case BreakerState.RAMPING:
            wanted = next_ramp(number)
            freed = release(wanted, marked=True)
            if freed < wanted or wanted == LONGEST_RAMP:
                _step(connection, dependency, BreakerStep(BreakerState.CLOSED, AT_ONCE), now)
            else:
                note(wanted, SOON, let=True)
            return freed


def _are_probes_lost(connection: Connection, standing: StoredBreaker) -> bool:
    if standing.let_at is None or standing.at - standing.let_at < LOST_AFTER:
        return False
    values = {"dependency": standing.breaker.dependency}
    return int(connection.execute(_COUNT_RELEASED, values).scalar_one()) == 0


def _step(connection: Connection, dependency: str, step: BreakerStep, now: Clock) -> None:
    values = {"dependency": dependency, "now": now}
    changes = {"state": step.state, "reason": step.reason, "look_in": step.look_in}
    connection.execute(_STEP, {**values, **changes})
    connection.execute(_FORGET_CALLS, {**values, "all": True})
    unmark_released(connection, dependency)


def settings_of(of: Any) -> dict[str, Any]:
    return {name: getattr(of, name) for name in Breaker.__dataclass_fields__}


def standing_of(row: Any, held: int = 0) -> StoredBreaker:
    return StoredBreaker(
        Breaker(**settings_of(row)),
        row.names,
        BreakerState(row.state),
        BreakerMode(row.mode),
        row.since,
        row.at,
        row.look_at,
        int(row.good),
        int(row.bad),
        row.let_through,
        row.let_at,
        row.reason,
        held,
    )


_LET = is_parked_as(WaitingKind.LET_THROUGH)
# The breaker's row is locked: a later close finds all tasks that it holds.
_HOLD = text(f"""
    WITH down AS MATERIALIZED (
        SELECT b.dependency, b.names FROM {BREAKER} b WHERE b.state <> 'closed'
        ORDER BY b.dependency FOR SHARE),
    parked AS MATERIALIZED (
        SELECT p.id, p.priority, (
            SELECT d.dependency FROM down d WHERE p.name = ANY(d.names) LIMIT 1) AS dependency
        FROM {PENDING} p
        WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)}
          AND p.scan_at <= {NOW} AND NOT {_LET}
          AND p.name = ANY(ARRAY(SELECT unnest(d.names) FROM down d))
        ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED),
    listed AS (
        INSERT INTO {HELD} (dependency, priority, task_id)
        SELECT a.dependency, a.priority, a.id FROM parked a ON CONFLICT DO NOTHING)
    UPDATE {PENDING} p
    SET scan_at = greatest({NOW}, p.due_at) + interval '1 day',
        (parked, parked_kind, parked_for) = (
            SELECT '{REASON_WORDS[WaitingKind.BREAKER]} ' || a.dependency, '{WaitingKind.BREAKER}',
                a.dependency
            FROM parked a WHERE a.id = p.id)
    WHERE p.id = ANY(ARRAY(SELECT id FROM parked))""")
_HELD_NAMES = text(f"""
    SELECT unnest(names) FROM {BREAKER}
    WHERE dependency = :dependency AND state = '{BreakerState.OPEN}'""")
_NEXT = text(f"""
    SELECT h.priority, h.task_id FROM {HELD} h
    WHERE h.dependency = :dependency AND NOT h.let
    ORDER BY h.priority, h.task_id LIMIT :most OFFSET :skipped""")
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
    SELECT count(*) FROM there""")
_MARKED = text(f"""
    DELETE FROM {HELD} h WHERE h.dependency = :dependency AND h.let RETURNING h.task_id""")
_UNMARK = text(f"""
    UPDATE {PENDING} p SET {UNPARKED}
    WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {admits_by_id(Event.CLAIM)} AND {_LET}""")
_COUNT_RELEASED = text(f"""
    SELECT count(*) FROM {PENDING} p
    WHERE p.id = ANY(ARRAY(
        SELECT h.task_id FROM {HELD} h WHERE h.dependency = :dependency AND h.let))
      AND (p.state = '{State.RUNNING}' OR {_LET})""")


def held_names(connection: Connection, dependency: str) -> list[str]:
    """Return the handlers whose claimed tasks should not start, because the breaker is open."""
    return list(connection.execute(_HELD_NAMES, {"dependency": dependency}).scalars())


def hold_tasks(connection: Connection, ids: Sequence[int], *, now: Clock = None) -> int:
    """Park due rows whose breaker is not closed; return how many."""

    def park(some: Sequence[int]) -> int:
        return int(connection.execute(_HOLD, {"ids": sorted(map(int, some)), "now": now}).rowcount)

    return sum(row_by_row(connection, ids, park, "holding of tasks", now=now))


def release_tasks(
    connection: Connection, dependency: str, most: int, *, marked: bool, now: Clock = None
) -> int:
    """Release up to ``most`` tasks, best priority and lowest id first; return how many."""
    # ``marked`` tasks may run although the breaker is not closed.
    mark = WaitingReason(WaitingKind.LET_THROUGH, dependency) if marked else None
    kind, subject = mark or (None, None)
    values: dict[str, Any] = {"mark": mark and str(mark), "kind": kind, "subject": subject}
    values |= {"dependency": dependency, "now": now}

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


def unmark_released(connection: Connection, dependency: str) -> None:
    """Unmark released tasks that have not started: the next scan holds them again."""

    def unmark(ids: Sequence[int]) -> None:
        connection.execute(_UNMARK, {"ids": list(ids)})

    marked = connection.execute(_MARKED, {"dependency": dependency}).scalars().all()
    row_by_row(connection, marked, unmark, "unmarking of tasks")
