"""Which tasks are due now or soon, whether the leader has work, how long tasks usually run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.domain.tasks.states import State
from tasks_app.pool.connection.execute import Statement, fetch, to_psycopg_sql
from tasks_app.pool.dispatch.set_aside import BARRED
from tasks_app.pool.fragments.conditions import (
    BEHIND,
    HAS_GATE,
    NUMBERED,
    SINCE,
    WAITS,
    Places,
    is_free,
    queue_runs,
    scan_position_values,
)
from tasks_app.pool.tables import (
    BREAKER,
    GATE,
    NOW,
    PACE,
    PENDING,
    QUEUE,
    SCHEDULE,
    UNGATED,
    Clock,
    has_pending,
)


@dataclass(frozen=True, slots=True)
class DueRows:
    """Due rows of one queue, column by column: a pass may read twenty thousand."""

    queue: str
    ids: list[int]
    names: list[str]
    priorities: list[int]
    scan_at: list[float]  # seconds since 1970, as ``datetime.timestamp`` counts them
    barred: frozenset[int]  # disabled or expired; to be swept
    gated: frozenset[int] = frozenset()  # behind gates
    held: frozenset[int] = frozenset()  # held by a breaker; to be parked

    def rows(self) -> Iterable[tuple[int, str, float]]:
        return zip(self.ids, self.names, self.scan_at, strict=True)


_DUE = text(f"""
    SELECT q.queue, d.* FROM unnest(CAST(:queues AS text[]), CAST(:most AS int[]))
        WITH ORDINALITY AS q(queue, most, number)
    CROSS JOIN LATERAL (
        SELECT array_agg(p.id) AS ids, array_agg(p.name) AS names,
            array_agg(p.priority) AS priorities,
            array_agg(date_part('epoch', p.scan_at)) AS scan_at,
            array_agg(p.id) FILTER (WHERE NOT p.enabled OR p.expires_at <= {NOW}) AS barred,
            array_agg(p.id) FILTER (WHERE NOT ({UNGATED})) AS gated,
            array_agg(p.id) FILTER (WHERE NOT {is_free()}) AS held
        FROM (
            SELECT p.* FROM generate_series(0, 9) AS r(priority)
            {NUMBERED}
            CROSS JOIN LATERAL (
                SELECT p.id, p.name, p.scan_at, p.enabled, p.expires_at, p.priority, p.queue,
                    p.order_key, p.limit_key, p.locks, p.parked_kind
                FROM {PENDING} p
                WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
                  AND p.scan_at <= {NOW}
                  AND {BEHIND}
                ORDER BY p.scan_at, p.id LIMIT q.most) AS p
            ORDER BY p.priority, p.scan_at, p.id LIMIT q.most) AS p) AS d
    WHERE {queue_runs("q.queue")} AND {has_pending(SINCE)} AND d.ids IS NOT NULL""")


def find_due(
    connection: Connection,
    wanted: Mapping[str, int],
    *,
    after: Places | None = None,
    within: timedelta | None = None,
    now: Clock = None,
) -> list[DueRows]:
    """Return up to ``wanted`` due rows of each queue, by priority, then scan_at, then id."""
    # Queues that have none or are stopped are left out. The rows of a queue and priority begin
    # after ``after``. Rows due for longer than ``within`` are not read.
    queues = list(wanted)
    values = {"queues": queues, "most": list(wanted.values()), "within": within, "now": now}
    values |= scan_position_values(queues, after)
    return [
        DueRows(
            row.queue,
            row.ids,
            row.names,
            row.priorities,
            row.scan_at,
            frozenset(row.barred or ()),
            frozenset(row.gated or ()),
            frozenset(row.held or ()),
        )
        for row in connection.execute(_DUE, values)
    ]


class Upcoming(NamedTuple):
    id: int
    queue: str
    due_in_s: float  # from the statement on, by the database's clock


# A few rows of the index per queue and priority. A parked row has been due for a while; to look
# behind such rows would read all of them.
_FROM = f"{NOW} - CAST(:since AS interval)"
_UPCOMING = text(f"""
    SELECT p.id, q.queue, CAST(EXTRACT(EPOCH FROM p.scan_at - {NOW}) AS float) AS due_in_s
    FROM (SELECT q.queue FROM unnest(CAST(:queues AS text[])) AS q(queue)
          WHERE {queue_runs("q.queue")} AND {has_pending(_FROM)} OFFSET 0) AS q
    CROSS JOIN generate_series(0, 9) AS r(priority)
    CROSS JOIN LATERAL (
        SELECT p.id, p.scan_at, p.due_at FROM {PENDING} p
        WHERE p.queue = q.queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
          AND p.scan_at > {_FROM} AND p.scan_at <= {NOW} + CAST(:within AS interval)
        ORDER BY p.scan_at, p.id LIMIT :most) AS p
    WHERE p.due_at > {_FROM}
    ORDER BY p.scan_at, p.id LIMIT :most""")


def find_upcoming(
    connection: Connection,
    queues: Sequence[str],
    within: timedelta,
    most: int = 10,
    *,
    since: timedelta = timedelta(0),
    now: Clock = None,
) -> list[Upcoming]:
    """Return up to ``most`` rows that become due ``within`` this time, nearest first."""
    # They include rows that became due ``since`` the caller's last scan. Stopped queues are left
    # out.
    values = {"queues": list(queues), "within": within, "most": most, "since": since, "now": now}
    return [Upcoming(*row) for row in connection.execute(_UPCOMING, values)]


@dataclass(frozen=True, slots=True)
class IdleCheck:
    """Whether the leader has work, by one cheap read."""

    expired: bool  # a task's lease is over
    next_due: timedelta | None  # to the first row; negative: overdue; None: no such row
    next_fire_s: float | None = None  # until the first schedule is due, in seconds
    next_look_s: float | None = None  # until the first gate is checked, in seconds
    gates: bool = False  # a queue has a load gate
    breakers: bool = False  # a breaker is due
    barred: bool = False  # a task is to be swept
    at_s: float = field(default=0.0, compare=False)  # of the read, in seconds since 1970

    def is_quiet(self, within: timedelta) -> bool:
        near = self.next_due is not None and self.next_due <= within
        return not (self.expired or self.barred or near)


_IDLE_CHECK = to_psycopg_sql(f"""
    WITH RECURSIVE {WAITS}
    SELECT EXISTS (SELECT FROM {PENDING} p
                WHERE p.state = '{State.RUNNING}' AND p.lease_until < {NOW}) AS expired,
        (SELECT min(waits.scan_at) - {NOW} FROM waits
            WHERE {queue_runs("waits.queue")}) AS next_due,
        CAST(EXTRACT(EPOCH FROM (SELECT min(s.look_at) FROM {SCHEDULE} s WHERE s.enabled) - {NOW})
            AS float) AS next_fire_s,
        CAST(EXTRACT(EPOCH FROM (SELECT min(t.look_at) FROM {GATE} t WHERE t.look_at IS NOT NULL)
            - {NOW}) AS float) AS next_look_s,
        EXISTS (SELECT FROM {QUEUE} g WHERE {HAS_GATE}) AS gates,
        EXISTS (SELECT FROM {BREAKER} b WHERE b.look_at <= {NOW}) AS breakers,
        EXISTS (SELECT FROM {PENDING} p WHERE {BARRED}) AS barred,
        CAST(EXTRACT(EPOCH FROM {NOW}) AS float) AS at_s""")


def check_idle(connection: Connection, *, now: Clock = None) -> IdleCheck:
    (row,) = fetch(connection, Statement(_IDLE_CHECK, {"now": now}))
    return IdleCheck(*row)


_READ = text(f"SELECT name, run_s FROM {PACE} WHERE name = ANY(CAST(:names AS text[]))")


def read_run_times(connection: Connection, names: Collection[str]) -> dict[str, float]:
    return {row.name: row.run_s for row in connection.execute(_READ, {"names": list(names)})}


_WRITE = text(f"""
    INSERT INTO {PACE} (name, run_s, updated_at)
    SELECT l.name, l.run_s, {NOW}
    FROM unnest(CAST(:names AS text[]), CAST(:seconds AS double precision[])) AS l(name, run_s)
    ORDER BY l.name
    ON CONFLICT (name) DO UPDATE SET run_s = EXCLUDED.run_s, updated_at = EXCLUDED.updated_at""")


def write_run_times(connection: Connection, seconds: Mapping[str, float]) -> None:
    values = {"names": list(seconds), "seconds": list(seconds.values()), "now": None}
    connection.execute(_WRITE, values)
