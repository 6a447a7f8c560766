"""Reads all facts about one task, in a few statements of bounded cost. Never locks."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.explain import facts as model
from tasks_app.domain.explain.estimate import LEAST_MINUTES, WITHIN
from tasks_app.domain.explain.facts import StoredRow, TaskFacts
from tasks_app.domain.flow_control.admission import Waiting
from tasks_app.domain.queues import Pause
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.domain.tasks.states import State
from tasks_app.pool import tables as t
from tasks_app.pool.events import waits_of
from tasks_app.pool.flow_control import order_and_limits
from tasks_app.pool.flow_control.capacity import capacities_of
from tasks_app.pool.flows import step_of
from tasks_app.pool.fragments.conditions import OPEN_NEEDS, STOPS, is_held, own_date
from tasks_app.pool.locks.declared import lock_rooms
from tasks_app.pool.operations.audit import last_hold
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.runs.heartbeats import OF_WORK
from tasks_app.pool.statistics.read import (
    Grain,
    Wanted,
    history,
    minutes_not_rolled_up,
    unkept,
)

MINUTE, MS = timedelta(minutes=1), timedelta(milliseconds=1)
COUNTS_TAKE = timedelta(seconds=10)  # processes write their counts every few seconds
DONE = CountedOutcome.DONE
_RUNS = (DONE, CountedOutcome.FAILED, CountedOutcome.RETRIED, CountedOutcome.SNOOZED)


def read_facts(
    connection: Connection,
    task_id: int,
    *,
    lease: timedelta,
    late_after: timedelta,
    heartbeat_every: timedelta = timedelta(seconds=10),
    now: datetime | None = None,
) -> TaskFacts:
    """Return the facts; a child without a heartbeat counts as alive for ``lease``."""
    query = text(f"""
        SELECT n.now, {_COLUMNS} FROM (SELECT {t.NOW} AS now) AS n
        LEFT JOIN {t.ALL} t ON t.id = :id
        LEFT JOIN LATERAL (
            SELECT {", ".join(sorted(_OF_PENDING))} FROM {t.PENDING} WHERE id = :id) AS p ON true
    """)
    found = dict(connection.execute(query, {"id": task_id, "now": now}).one()._mapping)  # noqa: SLF001
    at = found.pop("now")
    if found["id"] is None:
        return TaskFacts(task_id, at, None, unkept(connection, now=now), late_after=late_after)
    row = StoredRow(**{**found, "state": State(found["state"])})
    of_row = ("id", "queue", "name", "owner", "scan_at", "started_at")
    values = {**{name: getattr(row, name) for name in of_row}, "lease": lease, "now": at}
    around = connection.execute(AROUND, values).one()
    unknown = row.state is State.PENDING and not around.knowing
    names = connection.execute(NAMES, values).one() if unknown else None
    service = model.Service(
        *(around.children, around.knowing, around.busy),
        names=tuple(names.names) if names else (),
        elsewhere=tuple(names.elsewhere) if names else (),
        last_seen=around.last_seen,
        heartbeat_at=around.any_heard_at,
        scanning=around.scanning,
    )
    facts = TaskFacts(
        task_id,
        at,
        row,
        hold=last_hold(connection, task_id) if row.held else None,
        service=service,
        run_by=heartbeats.started_by(connection, lease, now=at),
        heartbeat_at=around.seen_at if row.state is State.RUNNING else None,
        late_after=late_after,
        heartbeat_every=heartbeat_every,
        step_of=step_of(connection, task_id),
        events=waits_of(connection, [task_id], now=at).get(task_id, ()),
    )
    facts = _with_surroundings(facts, around)
    if facts.due is None:
        return facts
    facts = _with_gates(connection, facts, row)
    if row.locks is not None:
        rooms = lock_rooms(connection, [Waiting(row.id, (), row.locks)], now=at)
        locked = ((room.resource, room.obstacle(row.id)) for room in rooms.values())
        facts = replace(facts, locked=tuple((name, why) for name, why in locked if why))
    facts = replace(facts, connections=tuple(connection_limits(connection)))
    if row.scan_at is None or row.scan_at > at:
        return facts
    return replace(facts, line=_line(connection, row, at))


def _with_surroundings(facts: TaskFacts, around: Any) -> TaskFacts:
    """Add the last attempt, the pause, the denied lock, the scan, and the progress."""
    last = stop = denial = scan = progress = None
    if around.event is not None:
        error = around.kind, around.message
        last = model.LastAttempt(around.attempt, around.event, *error, around.ended_at)
    if around.stopped is not None:
        stop = Pause(around.stopped, around.since, around.reason, around.resume_at)
    if around.denied_at is not None:
        lock = around.resource, around.blocked_by, around.times
        denial = model.LockDenial(*lock, around.asked_at, around.denied_at, around.held)
    if around.holder is not None:
        refused = around.refused_since, around.refused_because
        more = {"held_until": around.held_until, "messages": around.messages}
        scan = model.Scan(around.holder, around.done_at, *refused, **more)
    if around.said is not None:
        said = json.loads(around.said)
        killed_at = None
        if (limit := said.get("hard_timeout")) is not None:
            killed_at = around.seen_at + timedelta(seconds=limit - said["seconds"])
        told = said.get("fraction"), said.get("note")
        progress = model.ReportedProgress(around.node, *told, killed_at)
    return replace(facts, last=last, stop=stop, denial=denial, scan=scan, progress=progress)


def _with_gates(connection: Connection, facts: TaskFacts, row: StoredRow) -> TaskFacts:
    """Add its turn among tasks of its order key, and the limits that are reached."""
    limits = order_and_limits.read_limits(connection)
    keys = row.order_key, row.limit_key, row.more_limit_keys
    before = limits.gates_of(row.queue, row.name, *keys)
    if not before:
        return facts
    rooms = capacities_of(connection, before, limits, now=facts.now)
    shut = [
        model.ReachedLimit(limit, gate.key, room.running)
        for gate, room in rooms.items()
        if room.open < 1 and (limit := limits.of(gate)) is not None
    ]
    turn = None
    if row.order_key is not None:
        query = text(f"""
            SELECT (SELECT p.id FROM {t.PENDING} p
                    WHERE p.order_key = :key AND p.state = '{State.RUNNING}' AND p.id <> :id
                    LIMIT 1),
                (SELECT e.id FROM {t.ERROR} e
                 WHERE e.order_key = :key AND e.id < :id AND e.order_skips IS NOT TRUE
                 ORDER BY e.id LIMIT 1)
        """)
        head = rooms[before[0]].head
        running, failed = connection.execute(query, {"key": row.order_key, "id": row.id}).one()
        turn = model.OrderHolder(running, None if head == row.id else head, failed)
    return replace(facts, turn=turn, shut=tuple(shut))


def _line(connection: Connection, row: StoredRow, now: datetime) -> model.Line:
    """Return the tasks before it, and what ended in the whole minutes since the first came due."""
    ahead = _ahead(connection, row, now)
    first, until = min(ahead.first, row.scan_at or now), now - COUNTS_TAKE
    until = until.replace(second=0, microsecond=0)
    wanted = Wanted(Grain.MINUTE, WITHIN + MINUTE, queue=row.queue, outcomes=_RUNS)
    live = [] if ahead.standby else minutes_not_rolled_up(connection, wanted)
    points = [*live, *history(connection, wanted, now=now)]
    # A minute that is rolled up between the two reads is in both, not in neither.
    latest = {(point.at, point.outcome): point for point in points}
    ended: Counter[datetime] = Counter()
    for point in latest.values():
        ended[point.at] += point.number
    number = (until - max(until - WITHIN, first)) // MINUTE
    minutes = [until - MINUTE * ago for ago in range(number, 0, -1)]
    done = [latest[at, DONE] for at in minutes[-LEAST_MINUTES:] if (at, DONE) in latest]
    stood_ms = sum((each.at + MINUTE / 2 - first) / MS * each.number for each in done)
    return model.Line(
        ahead.number,
        ended=tuple(ended[at] for at in minutes),
        waited=sum(each.wait_ms for each in done) / stood_ms if done else None,
        is_shared=ahead.is_shared,
    )


def _ahead(connection: Connection, row: StoredRow, now: datetime) -> Any:
    values = {name: getattr(row, name) for name in ("queue", "priority", "scan_at", "id")}
    values["now"] = now
    # Within its priority, tasks before its own place; within better ones, tasks that are due now. A
    # bulk of tasks may have the same scan_at. Their order makes the planner take the index.
    query = text(f"""
        SELECT count(*) AS number, coalesce(min(before.scan_at), {t.NOW}) AS first,
            EXISTS (SELECT FROM {t.FAIR} f WHERE f.queue = :queue) AS is_shared,
            pg_is_in_recovery() AS standby
        FROM (
            SELECT p.scan_at FROM generate_series(0, CAST(:priority AS int)) AS r(priority)
            CROSS JOIN LATERAL (
                SELECT p.scan_at FROM {t.PENDING} p
                WHERE p.queue = :queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
                  AND (p.scan_at, p.id) < (
                    CASE WHEN r.priority < :priority THEN {t.NOW}
                         ELSE CAST(:scan_at AS timestamptz) END,
                    CASE WHEN r.priority < :priority THEN 9223372036854775807
                         ELSE CAST(:id AS bigint) END)
                ORDER BY p.scan_at, p.id LIMIT {model.MOST_AHEAD + 1}) AS p
            LIMIT {model.MOST_AHEAD + 1}) AS before
    """)
    return connection.execute(query, values).one()


_OF_PENDING = {"scan_at", "at_most_once", "outages", "outage_since"}
_STORED = {
    **{name: f"p.{name}" for name in _OF_PENDING},
    "own_date": own_date("t"),
    "held": is_held("t"),
    "waits_for": OPEN_NEEDS,
}
_COLUMNS = ", ".join(f"{_STORED.get(f.name, f't.{f.name}')} AS {f.name}" for f in fields(StoredRow))
_LIVES = f"w.seen_at > {t.NOW} - CAST(:lease AS interval)"
AROUND = text(f"""
    SELECT a.attempt, a.event, a.kind, a.message, a.ended_at,
        z.queue AS stopped, z.since, z.reason, z.resume_at,
        s.holder, s.done_at, s.held_until, w.*,
        (SELECT max(any_.seen_at) FROM {t.WORKER} any_) AS any_heard_at,
        (SELECT count(*) FROM {t.WORKER} w WHERE {_LIVES} AND {OF_WORK}) AS scanning,
        r.node, r.seen_at, r.said,
        CAST(s.notes ->> '{t.REFUSED}' AS timestamptz) AS refused_since,
        coalesce(s.notes ->> '{t.BECAUSE}', '') AS refused_because,
        coalesce(CAST(s.notes -> '{t.DEPTHS}' ->> :queue AS int), 0) AS messages,
        l.resource, l.blocked_by, l.times, l.asked_at, l.ended_at AS denied_at, l.held
    FROM (SELECT) AS one
    LEFT JOIN LATERAL (
        SELECT * FROM {t.ATTEMPT} a WHERE a.task_id = :id
        ORDER BY a.attempt DESC, a.ended_at DESC LIMIT 1) AS a ON true
    LEFT JOIN LATERAL (
        SELECT * FROM {t.PAUSE} z WHERE z.queue IN (:queue, '{t.EVERY_QUEUE}') AND {STOPS}
        ORDER BY z.queue = :queue LIMIT 1) AS z ON true
    LEFT JOIN LATERAL (
        SELECT l.*, EXISTS (
            SELECT FROM {t.LOCKS} h WHERE h.resource = l.resource AND h.state = 'held') AS held
        FROM {t.LOCK_WAIT} l
        WHERE l.task_id = :id AND l.outcome IN ('denied', 'timed_out')
          AND l.ended_at >= CAST(:started_at AS timestamptz)
        ORDER BY l.ended_at DESC LIMIT 1) AS l ON true
    LEFT JOIN {t.LEASE} s ON s.name = 'scan'
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE w.lives) AS children,
            count(*) FILTER (WHERE w.lives AND w.knows) AS knowing,
            count(*) FILTER (WHERE w.lives AND w.running <> '[]') AS busy,
            max(w.seen_at) AS last_seen
        FROM (SELECT w.seen_at, w.running, {_LIVES} AS lives, :name = ANY(w.handlers) AS knows
              FROM {t.WORKER} w WHERE :queue = ANY(w.queues)) AS w) AS w
    LEFT JOIN LATERAL (
        SELECT w.node, w.seen_at,
            (SELECT CAST(r AS text) FROM jsonb_array_elements(w.running) AS r
             WHERE r ->> 'id' = CAST(:id AS text) LIMIT 1) AS said
        FROM {t.WORKER} w WHERE w.owner = :owner) AS r ON true
""")
NAMES = text(f"""
    SELECT ARRAY(
        SELECT DISTINCT h FROM {t.WORKER} w, unnest(w.handlers) AS h
        WHERE {_LIVES} AND :queue = ANY(w.queues) ORDER BY h LIMIT 1000) AS names,
    ARRAY(
        SELECT DISTINCT q FROM {t.WORKER} w, unnest(w.queues) AS q
        WHERE {_LIVES} AND :name = ANY(w.handlers) AND q <> :queue
        ORDER BY q LIMIT 1000) AS elsewhere
""")


def connection_limits(connection: Connection) -> list[model.ConnectionLimit]:
    """Return the limits of connections; superusers have none."""
    query = text(f"""
        SELECT 'role ' || r.rolname AS of, r.rolconnlimit AS most,
            (SELECT count(*) FROM pg_stat_activity a WHERE a.usesysid = r.oid) AS used
        FROM pg_roles r
        WHERE r.rolconnlimit >= 0 AND r.rolcanlogin AND NOT r.rolsuper
          AND has_table_privilege(r.oid, to_regclass('{t.PENDING}'), 'UPDATE')
        UNION ALL
        SELECT 'database ' || d.datname, d.datconnlimit,
            (SELECT count(*) FROM pg_stat_activity a WHERE a.datid = d.oid)
        FROM pg_database d WHERE d.datname = current_database() AND d.datconnlimit >= 0
        ORDER BY 1
    """)
    return [model.ConnectionLimit(*row) for row in connection.execute(query)]
