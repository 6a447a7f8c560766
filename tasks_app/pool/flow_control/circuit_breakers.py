"""Breakers: one row for each dependency, locked by each change, so that all workers agree."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.circuit_breaker import (
    LONGEST_RAMP,
    LOST_AFTER,
    SOON,
    Breaker,
    BreakerMode,
    BreakerStanding,
    BreakerState,
    BreakerStep,
    after_wait,
    by_operator,
    failures_to_open,
    judge,
    next_ramp,
)
from tasks_app.domain.flow_control.circuit_breaker import NOW as AT_ONCE
from tasks_app.pool.flow_control.breaker_standing import STANDING, settings_of, standing_of
from tasks_app.pool.flow_control.breaker_waiting_list import let_go, outstanding, unmark
from tasks_app.pool.tables import BREAKER, CALLS, HELD, NOW

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
            GROUP BY n.name ORDER BY n.name)
""")
_FORGET = text(f"""
    UPDATE {BREAKER} SET names = ARRAY(
        SELECT n FROM unnest(names) AS n WHERE NOT n = ANY(CAST(:known AS text[])))
    WHERE NOT dependency = ANY(CAST(:declared AS text[])) AND names && CAST(:known AS text[])
""")
_FIND = text(f"""
    SELECT s.*, (SELECT count(*) FROM (
        SELECT FROM {HELD} h WHERE h.dependency = s.dependency AND NOT h.let
        LIMIT :most) AS h) AS held
    FROM ({STANDING}) AS s ORDER BY s.dependency
""")
_ONE = text(f"{STANDING} WHERE b.dependency = :dependency FOR UPDATE OF b")
_LOCK = text(f"SELECT FROM {BREAKER} WHERE dependency = :dependency FOR UPDATE")
_DUE = text(f"""
    SELECT dependency FROM {BREAKER} WHERE look_at <= {NOW} ORDER BY dependency
    FOR UPDATE SKIP LOCKED
""")
_COUNT = text(f"""
    INSERT INTO {CALLS} AS c (dependency, at, good, bad)
    SELECT b.dependency, date_bin(b."window" / 20, {NOW}, '2000-01-01Z'), :good, :bad
    FROM {BREAKER} b WHERE b.dependency = :dependency
    ON CONFLICT (dependency, at) DO UPDATE
    SET good = c.good + EXCLUDED.good, bad = c.bad + EXCLUDED.bad
""")
_FORGET_CALLS = text(f"""
    DELETE FROM {CALLS} c WHERE c.dependency = :dependency AND (CAST(:all AS boolean)
        OR c.at <= {NOW} - (SELECT "window" FROM {BREAKER} WHERE dependency = :dependency))
""")
_STEP = text(f"""
    UPDATE {BREAKER} SET state = :state, reason = :reason, since = {NOW}, let_through = 0,
        let_at = NULL, look_at = {NOW} + CAST(:look_in AS interval)
    WHERE dependency = :dependency
""")
_LET = text(f"""
    UPDATE {BREAKER} SET let_through = :number, look_at = {NOW} + CAST(:look_in AS interval),
        let_at = CASE WHEN CAST(:let AS boolean) THEN {NOW} ELSE let_at END
    WHERE dependency = :dependency
""")
_MODE = text(f"UPDATE {BREAKER} SET mode = :mode WHERE dependency = :dependency")


def synchronise(
    connection: Connection, declared: Mapping[Breaker, Collection[str]], known: Collection[str]
) -> None:
    """Write the breakers that this code declares for its ``known`` handlers.

    Names that only other workers know stay. What is up to date is not written.
    """
    there = {row.dependency: row for row in connection.execute(_KNOWN)}
    names_known = list(known)
    for breaker, names in sorted(declared.items(), key=lambda item: item[0].dependency):
        row = there.get(breaker.dependency)
        kept = set(row.names) - (set(known) - set(names)) if row else set()
        if row and set(names) <= kept and kept == set(row.names) and _same(row, breaker):
            continue
        values = {"names": sorted(names), "known": names_known, **settings_of(breaker), "now": None}
        connection.execute(_DECLARE, values)
    others = {row.dependency for row in there.values() if set(row.names) & set(known)}
    dependencies = [breaker.dependency for breaker in declared]
    if others - set(dependencies):
        connection.execute(_FORGET, {"known": names_known, "declared": dependencies})


def find(
    connection: Connection, *, most: int = MOST_COUNTED, now: datetime | None = None
) -> list[BreakerStanding]:
    """Return all breakers, by dependency; of what each holds ``most`` are counted."""
    found = connection.execute(_FIND, {"most": most, "now": now})
    return [standing_of(row, held=row.held) for row in found]


def report(
    connection: Connection, dependency: str, good: int, bad: int, *, now: datetime | None = None
) -> BreakerStep | None:
    """Count calls that ended, and change the state if they demand it; return the change."""
    values = {"dependency": dependency, "now": now}
    connection.execute(_LOCK, values)
    connection.execute(_COUNT, {**values, "good": good, "bad": bad})
    connection.execute(_FORGET_CALLS, {**values, "all": False})
    row = connection.execute(_ONE, values).first()
    step = None if row is None else judge(standing_of(row))
    if step is not None:
        _take(connection, dependency, step, now)
    return step


def failures_left(connection: Connection, dependency: str, *, now: datetime | None = None) -> float:
    """Return how many more failed calls in a row would open it; infinity: none would.

    In the transaction that has reported: it locks the row.
    """
    row = connection.execute(_ONE, {"dependency": dependency, "now": now}).first()
    return math.inf if row is None else failures_to_open(standing_of(row))


def look(connection: Connection, *, now: datetime | None = None) -> dict[str, int]:
    """Advance each breaker whose time has come; return how many tasks each lets go.

    An open one whose time is over lets its probes through; one that ramps, more each second.
    Locked ones are left out.
    """
    found = {}
    for dependency in connection.execute(_DUE, {"now": now}).scalars().all():
        values = {"dependency": dependency, "now": now}
        standing = standing_of(connection.execute(_ONE, values).one())
        step = after_wait(standing)
        if step is not None:
            _take(connection, dependency, step, now)
            standing = standing_of(connection.execute(_ONE, values).one())
        found[dependency] = _go_on(connection, standing, now)
    return found


def override(
    connection: Connection, dependency: str, mode: BreakerMode, *, now: datetime | None = None
) -> bool:
    """Set who decides: an operator, or the outcomes; False: there is no such breaker."""
    values = {"dependency": dependency, "now": now}
    row = connection.execute(_ONE, values).first()
    if row is None:
        return False
    connection.execute(_MODE, {**values, "mode": mode})
    _take(connection, dependency, by_operator(mode, BreakerState(row.state)), now)
    return True


def _go_on(connection: Connection, standing: BreakerStanding, now: datetime | None) -> int:
    dependency, number = standing.breaker.dependency, standing.let_through
    match standing.state:
        case BreakerState.OPEN:  # the look was too early, or an operator keeps it open
            left = standing.since + standing.breaker.open_for - standing.at
            look_in = left if standing.mode is BreakerMode.AUTO else None
            _note(connection, dependency, number, look_in, now)
            return 0
        case BreakerState.CLOSED:
            freed = let_go(connection, dependency, LONGEST_RAMP, marked=False, now=now)
            _note(connection, dependency, number, SOON if freed else None, now)
            return freed
        case BreakerState.PROBING:
            wanted = standing.breaker.probes - number
            freed = let_go(connection, dependency, wanted, marked=True, now=now) if wanted else 0
            if not freed and _is_lost(connection, standing):
                step = BreakerStep(
                    BreakerState.PROBING, AT_ONCE, "its probes were not heard of again"
                )
                _take(connection, dependency, step, now)
            else:
                _note(connection, dependency, number + freed, SOON, now, let=freed > 0)
            return freed
        case BreakerState.RAMPING:
            wanted = next_ramp(number)
            freed = let_go(connection, dependency, wanted, marked=True, now=now)
            if freed < wanted or wanted == LONGEST_RAMP:
                _take(connection, dependency, BreakerStep(BreakerState.CLOSED, AT_ONCE), now)
            else:
                _note(connection, dependency, wanted, SOON, now, let=True)
            return freed


def _is_lost(connection: Connection, standing: BreakerStanding) -> bool:
    if standing.let_at is None or standing.at - standing.let_at < LOST_AFTER:
        return False
    return outstanding(connection, standing.breaker.dependency) == 0


def _take(connection: Connection, dependency: str, step: BreakerStep, now: datetime | None) -> None:
    values = {"dependency": dependency, "now": now}
    connection.execute(
        _STEP, {**values, "state": step.state, "reason": step.reason, "look_in": step.look_in}
    )
    connection.execute(_FORGET_CALLS, {**values, "all": True})
    unmark(connection, dependency)


def _note(
    connection: Connection,
    dependency: str,
    number: int,
    look_in: timedelta | None,
    now: datetime | None,
    *,
    let: bool = False,
) -> None:
    values = {"dependency": dependency, "number": number, "look_in": look_in, "let": let}
    connection.execute(_LET, {**values, "now": now})


def _same(row: Any, breaker: Breaker) -> bool:
    return all(getattr(row, name) == value for name, value in settings_of(breaker).items())
