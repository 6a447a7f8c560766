"""The statements of explain: each of bounded cost, none locks a row."""

from __future__ import annotations

from dataclasses import fields

from sqlalchemy import text

from tasks_app.domain.explain.facts import MOST_AHEAD, StoredRow
from tasks_app.domain.tasks.states import State
from tasks_app.pool.fragments.conditions import STOPS
from tasks_app.pool.fragments.held import is_held, own_date
from tasks_app.pool.runs.heartbeats import OF_WORK
from tasks_app.pool.tables import (
    ALL,
    ATTEMPT,
    BECAUSE,
    DEPTHS,
    ERROR,
    EVERY_QUEUE,
    LEASE,
    LOCK_WAIT,
    LOCKS,
    NOW,
    PAUSE,
    PENDING,
    REFUSED,
    WORKER,
)

MOST_NAMES = 1_000
_OF_PENDING = {"scan_at", "at_most_once", "outages", "outage_since"}
_STORED = {
    **{name: f"p.{name}" for name in _OF_PENDING},
    "own_date": own_date("t"),
    "held": is_held("t"),
}
_COLUMNS = ", ".join(f"{_STORED.get(f.name, f't.{f.name}')} AS {f.name}" for f in fields(StoredRow))
ROW = text(f"""
    SELECT n.now, {_COLUMNS} FROM (SELECT {NOW} AS now) AS n
    LEFT JOIN {ALL} t ON t.id = :id
    LEFT JOIN LATERAL (
        SELECT {", ".join(sorted(_OF_PENDING))} FROM {PENDING} WHERE id = :id) AS p ON true
""")
_LIVES = f"w.seen_at > {NOW} - CAST(:lease AS interval)"
AROUND = text(f"""
    SELECT a.attempt, a.event, a.kind, a.message, a.ended_at,
        z.queue AS stopped, z.since, z.reason, z.resume_at,
        s.holder, s.done_at, s.held_until, w.*,
        (SELECT max(any_.seen_at) FROM {WORKER} any_) AS any_heard_at,
        (SELECT count(*) FROM {WORKER} w WHERE {_LIVES} AND {OF_WORK}) AS scanning,
        r.node, r.seen_at, r.said,
        CAST(s.notes ->> '{REFUSED}' AS timestamptz) AS refused_since,
        coalesce(s.notes ->> '{BECAUSE}', '') AS refused_because,
        coalesce(CAST(s.notes -> '{DEPTHS}' ->> :queue AS int), 0) AS messages,
        l.resource, l.blocked_by, l.times, l.asked_at, l.ended_at AS denied_at, l.held
    FROM (SELECT) AS one
    LEFT JOIN LATERAL (
        SELECT * FROM {ATTEMPT} a WHERE a.task_id = :id
        ORDER BY a.attempt DESC, a.ended_at DESC LIMIT 1) AS a ON true
    LEFT JOIN LATERAL (
        SELECT * FROM {PAUSE} z WHERE z.queue IN (:queue, '{EVERY_QUEUE}') AND {STOPS}
        ORDER BY z.queue = :queue LIMIT 1) AS z ON true
    LEFT JOIN LATERAL (
        SELECT l.*, EXISTS (
            SELECT FROM {LOCKS} h WHERE h.resource = l.resource AND h.state = 'held') AS held
        FROM {LOCK_WAIT} l
        WHERE l.task_id = :id AND l.outcome IN ('denied', 'timed_out')
          AND l.ended_at >= CAST(:started_at AS timestamptz)
        ORDER BY l.ended_at DESC LIMIT 1) AS l ON true
    LEFT JOIN {LEASE} s ON s.name = 'scan'
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE w.lives) AS children,
            count(*) FILTER (WHERE w.lives AND w.knows) AS knowing,
            count(*) FILTER (WHERE w.lives AND w.running <> '[]') AS busy,
            max(w.seen_at) AS last_seen
        FROM (SELECT w.seen_at, w.running, {_LIVES} AS lives, :name = ANY(w.handlers) AS knows
              FROM {WORKER} w WHERE :queue = ANY(w.queues)) AS w) AS w
    LEFT JOIN LATERAL (
        SELECT w.node, w.seen_at,
            (SELECT CAST(r AS text) FROM jsonb_array_elements(w.running) AS r
             WHERE r ->> 'id' = CAST(:id AS text) LIMIT 1) AS said
        FROM {WORKER} w WHERE w.owner = :owner) AS r ON true
""")
NAMES = text(f"""
    SELECT ARRAY(
        SELECT DISTINCT h FROM {WORKER} w, unnest(w.handlers) AS h
        WHERE {_LIVES} AND :queue = ANY(w.queues) ORDER BY h LIMIT {MOST_NAMES}) AS names,
    ARRAY(
        SELECT DISTINCT q FROM {WORKER} w, unnest(w.queues) AS q
        WHERE {_LIVES} AND :name = ANY(w.handlers) AND q <> :queue
        ORDER BY q LIMIT {MOST_NAMES}) AS elsewhere
""")
# Bounded from above by its own place within its priority, and by now within the better ones; a bulk
# of tasks may have one and the same scan_at.
AHEAD = text(f"""
    SELECT count(*) FROM (
        SELECT FROM generate_series(0, CAST(:priority AS int)) AS r(priority)
        CROSS JOIN LATERAL (
            SELECT FROM {PENDING} p
            WHERE p.queue = :queue AND p.priority = r.priority AND p.state = '{State.PENDING}'
              AND (p.scan_at, p.id) < (
                CASE WHEN r.priority < :priority THEN {NOW}
                     ELSE CAST(:scan_at AS timestamptz) END,
                CASE WHEN r.priority < :priority THEN 9223372036854775807
                     ELSE CAST(:id AS bigint) END)
            LIMIT {MOST_AHEAD + 1}) AS p
        LIMIT {MOST_AHEAD + 1}) AS before
""")
TURN = text(f"""
    SELECT (SELECT p.id FROM {PENDING} p
            WHERE p.order_key = :key AND p.state = '{State.RUNNING}' AND p.id <> :id LIMIT 1),
        (SELECT e.id FROM {ERROR} e
         WHERE e.order_key = :key AND e.id < :id AND e.order_skips IS NOT TRUE
         ORDER BY e.id LIMIT 1)
""")
