"""Conditions in SQL that several statements share: which rows may run, are held, parked, next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Connection, text

from tasks_app.domain.flow_control.limits import ANY, REASON_WORDS, WaitingKind
from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import (
    BREAKER,
    CALENDAR,
    ERROR,
    EVERY_QUEUE,
    LIMIT,
    NOW,
    PAUSE,
    PENDING,
    PLACE_UNLIMITED,
    QUEUE,
    WINDOW,
    Clock,
)

STOPS = f"(z.resume_at IS NULL OR z.resume_at > {NOW})"  # the condition that the pause ``z`` holds
_LOCAL = f"({NOW} AT TIME ZONE w.zone)"
_MIDNIGHT_BETWEEN = "CASE WHEN w.closes <= w.opens THEN interval '1 day' ELSE interval '0' END"


def _open_since(day: str) -> str:
    """Return the condition that the window ``w`` opened on this day, and has not closed."""
    return f"""(
        {_LOCAL} >= {day} + w.opens AND {_LOCAL} < {day} + w.closes + {_MIDNIGHT_BETWEEN}
        AND extract(isodow FROM {day}) = ANY(w.days)
        AND (w.calendar IS NULL OR NOT {day} = ANY(
            CAST((SELECT k.days FROM {CALENDAR} k WHERE k.name = w.calendar) AS date[]))))"""


_TODAY = f"CAST({_LOCAL} AS date)"
OPEN = f"({_open_since(_TODAY)} OR {_open_since(f'({_TODAY} - 1)')})"
"""The condition that the window ``w`` is open; an hour that the clock repeats counts twice."""
_STOPPED = f"""
    SELECT z.queue FROM {PAUSE} z WHERE {STOPS}
    UNION ALL SELECT g.queue FROM {QUEUE} g WHERE g.shut IS NOT NULL
    UNION ALL SELECT w.queue FROM {WINDOW} w GROUP BY w.queue HAVING NOT bool_or({OPEN})
"""
_READ = text(f"SELECT DISTINCT s.queue FROM ({_STOPPED}) AS s")


def is_free() -> str:
    """Return the condition that no breaker holds the row ``p``; names are read once a statement."""
    held = f"ARRAY(SELECT unnest(b.names) FROM {BREAKER} b WHERE b.state <> 'closed')"
    return f"(NOT p.name = ANY({held}) OR {is_parked_as(WaitingKind.LET_THROUGH)})"


def queue_runs(queue: str) -> str:
    """Return the condition that the queue is not stopped; read once a statement."""
    return f"NOT ARRAY[{queue}, '{EVERY_QUEUE}'] && ARRAY({_STOPPED})"


ALL_RUN = f"""NOT EXISTS (SELECT FROM {PAUSE} z WHERE {STOPS})
    AND NOT EXISTS (SELECT FROM {QUEUE} g WHERE g.shut IS NOT NULL)
    AND NOT EXISTS (SELECT FROM {WINDOW})
    AND NOT EXISTS (SELECT FROM {BREAKER} b WHERE b.state <> 'closed')"""
"""The condition that no queue or name is stopped, and that there are no windows."""
CHECK_STOPPED_EVERY_S = 1.0  # how often a long run asks whether its queue stands still


def is_queue_stopped(connection: Connection, queue: str) -> bool:
    return not stopped_queues(connection).isdisjoint({EVERY_QUEUE, queue})


def stopped_queues(connection: Connection, *, now: Clock = None) -> set[str]:
    """Return the queues that are stopped: paused, outside windows or gated; ``*``: every queue."""
    return set(connection.execute(_READ, {"now": now}).scalars())


_IS_PREFIX = f"right(l.target, 1) = '{ANY}'"
LIMIT_OF_KEY = f"""CROSS JOIN LATERAL (
        SELECT l.most, l.burst FROM (
            SELECT l.most, l.burst, 0 AS place FROM {LIMIT} l
            WHERE l.kind = 'key' AND l.target = k.key AND NOT {_IS_PREFIX}
            UNION ALL
            SELECT l.most, l.burst, -length(l.target)
            FROM (SELECT * FROM {LIMIT} l WHERE l.kind = 'key' AND {_IS_PREFIX}) AS l
            WHERE starts_with(k.key, left(l.target, -1))) AS l
        ORDER BY l.place <> 0, l.place LIMIT 1) AS l"""
"""Joins the limit of each limit key to ``k``; keys without a limit drop out."""
_OF_IDS = f"{PENDING} t WHERE t.id = ANY(CAST(:ids AS bigint[])) AND t.limit_key IS NOT NULL"
_NOT_CLEAR = f"""
        SELECT k.key FROM (
            SELECT n.key, sum(n.number) AS number FROM (
                SELECT t.limit_key AS key, count(*) AS number FROM {_OF_IDS} GROUP BY t.limit_key
                UNION ALL
                SELECT r.limit_key, count(*) FROM {PENDING} r
                WHERE r.state = '{State.RUNNING}' AND r.limit_key IS NOT NULL
                  AND r.limit_key = ANY(ARRAY(SELECT DISTINCT t.limit_key FROM {_OF_IDS}))
                GROUP BY r.limit_key) AS n
            GROUP BY n.key) AS k
        {LIMIT_OF_KEY}
        WHERE l.burst IS NOT NULL OR k.number > l.most"""
# OFFSET keeps the planner from a join with the whole pool.
CLEAR = f"""(p.parked IS NULL OR p.scan_at <= {NOW}) AND p.more_limit_keys IS NULL
    AND p.locks IS NULL AND {PLACE_UNLIMITED}
    AND (p.order_key IS NULL
        OR NOT EXISTS (
            SELECT FROM {PENDING} o
            WHERE o.order_key = p.order_key AND o.id <> p.id OFFSET 0)
        AND NOT EXISTS (
            SELECT FROM {ERROR} o
            WHERE o.order_key = p.order_key AND o.order_skips IS NOT TRUE OFFSET 0))
    AND (p.limit_key IS NULL
        OR p.limit_key <> ALL (ARRAY({_NOT_CLEAR}))
        AND NOT EXISTS (
            SELECT FROM {PENDING} m
            WHERE m.state = '{State.RUNNING}' AND m.more_limit_keys IS NOT NULL))"""
"""The condition that the gates of the row ``p`` admit it together with all others of ``:ids``.

It is the only task of its order key. Its limit key has room for all of ``:ids`` that have the key.
"""
Place: TypeAlias = tuple[float, int]  # a row's scan_at, in seconds since 1970, and its id
Places: TypeAlias = Mapping[tuple[str, int], Place]  # by queue and priority; none: read from SINCE
SINCE = f"coalesce({NOW} - CAST(:within AS interval), '-infinity')"
BEHIND = f"""(p.scan_at, p.id) > (
                    coalesce(to_timestamp((CAST(:after_at AS float8[]))[n.place]), {SINCE}),
                    coalesce((CAST(:after_id AS bigint[]))[n.place], 0))"""
"""The condition that the row comes after the place of its queue and priority."""
NUMBERED = (
    "CROSS JOIN LATERAL (SELECT CAST(10 * (q.number - 1) + r.priority + 1 AS int) AS place) AS n"
)
"""Joins ``n.place`` to ``unnest(…) WITH ORDINALITY AS q(…, number)`` and the priorities ``r``."""


def scan_position_values(queues: Sequence[str], places: Places | None) -> dict[str, Any]:
    """Return the values of ``BEHIND``; ``queues`` in the order of their numbers."""
    each: list[Place | None] = []
    if places:
        each = [places.get((queue, priority)) for queue in queues for priority in range(10)]
    return {
        "after_at": [place and place[0] for place in each],
        "after_id": [place and place[1] for place in each],
    }


_FIRST = f"SELECT p.queue, p.priority, p.scan_at FROM {PENDING} p WHERE p.state = '{State.PENDING}'"
_ORDER = "ORDER BY p.queue, p.priority, p.scan_at, p.id LIMIT 1"
WAITS = f"""waits(queue, priority, scan_at) AS (
    ({_FIRST} {_ORDER})
    UNION ALL
    SELECT next.* FROM waits CROSS JOIN LATERAL (
        {_FIRST} AND (p.queue, p.priority) > (waits.queue, waits.priority) {_ORDER}) AS next)"""
"""A CTE for WITH RECURSIVE: the first row of each queue and priority that has any."""
_FIRST_QUEUE = f"SELECT min(queue) AS queue FROM {PENDING} WHERE state = '{State.PENDING}'"
# One probe for each queue: rows that are not due, millions perhaps, are not read.
QUEUES = f"""
    WITH RECURSIVE q AS (
        {_FIRST_QUEUE}
        UNION ALL
        SELECT ({_FIRST_QUEUE} AND queue > q.queue) FROM q WHERE q.queue IS NOT NULL)
    SELECT queue FROM q WHERE queue IS NOT NULL
"""
HAS_GATE = "num_nonnulls(g.running_below, g.waiting_below, g.only_while) > 0"
FAR = "timestamptz '9899-01-01Z'"  # below the bound of ``moments_are_readable``
_FAR_OFF = "timestamptz '9500-01-01Z'"  # after a producer's latest; below FAR if tests shift time
# the due_at of a row while it is held, from its columns before
HELD_DUE = f"CASE WHEN p.expires_at IS NULL THEN {FAR} ELSE greatest(p.due_at, p.expires_at) END"


def is_put_off(alias: str = "p") -> str:
    """Return the condition that a PENDING row is held, or a step with open needs; never null."""
    return f"""({alias}.held_due_at IS NOT NULL
        AND {alias}.due_at >= coalesce({alias}.expires_at, {_FAR_OFF}))"""


def is_held(alias: str = "p") -> str:
    """Return the condition that an operator holds a PENDING row; never null."""
    return f"({is_put_off(alias)} AND coalesce({alias}.waits_for, 0) <= 0)"


def own_date(alias: str = "p") -> str:
    """Return the due date of a row; of one that is put off, the date that it gets back."""
    return f"CASE WHEN {is_put_off(alias)} THEN {alias}.held_due_at ELSE {alias}.due_at END"


OPEN_NEEDS = "abs(t.waits_for)"  # how many needs of a row of ``t`` are open
UNPARKED = "parked = NULL, parked_kind = NULL, parked_for = NULL"


def parked_as(kind: WaitingKind, subject: str) -> str:
    """Return the SET that parks a row; ``subject`` is an expression."""
    return f"""parked = '{REASON_WORDS[kind]} ' || {subject},
        parked_kind = '{kind}', parked_for = {subject}"""


def is_parked_as(kind: WaitingKind) -> str:
    """Return the condition on the row ``p``; never null, so that it can be negated."""
    return f"p.parked_kind IS NOT DISTINCT FROM '{kind}'"


def judged_anew(alias: str) -> str:
    """Return the SET of a row whose locks change: it leaves the lines that it stands in."""
    parked = f"{alias}.parked_kind = '{WaitingKind.LOCK}'"
    return f"scan_at = CASE WHEN {parked} THEN {alias}.due_at ELSE {alias}.scan_at END"
