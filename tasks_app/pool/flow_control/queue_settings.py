"""Settings of queues: rules, windows, calendars, pauses and load gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.queues import Pause, Queue, Window
from tasks_app.domain.tasks.error_text import storable_text
from tasks_app.domain.tasks.options import check_queue
from tasks_app.domain.tasks.states import State
from tasks_app.pool.fragments.conditions import HAS_GATE, OPEN, STOPS, WAITS, queue_runs
from tasks_app.pool.tables import CALENDAR, EVERY_QUEUE, NOW, PAUSE, PENDING, QUEUE, WINDOW, Clock

_RULES = {
    "running_below": "integer",
    "waiting_below": "interval",
    "only_while": "text",
    "retry": "text",
    "max_attempts": "smallint",
    "timeout_ms": "integer",
    "hard_timeout_ms": "integer",
}
_GATE = ("running_below", "waiting_below", "only_while")
_LOCK = text(f"""
    INSERT INTO {QUEUE} (queue) VALUES (:queue)
    ON CONFLICT (queue) DO UPDATE SET queue = EXCLUDED.queue RETURNING *""")
_WRITE = text(f"""
    UPDATE {QUEUE} SET shut = CASE WHEN CAST(:gate AS boolean) THEN shut END,
        {", ".join(f"{name} = CAST(:{name} AS {kind})" for name, kind in _RULES.items())}
    WHERE queue = :queue""")
_CLEAN = text(f"""
    DELETE FROM {QUEUE} WHERE queue = :queue AND num_nonnulls({", ".join(_RULES)}) = 0""")
_WINDOW = text(f"""
    INSERT INTO {WINDOW} (queue, days, opens, closes, zone, calendar)
    VALUES (:queue, CAST(:days AS smallint[]), CAST(:opens AS time), CAST(:closes AS time), :zone,
        :calendar)""")
_FIND = text(f"""
    SELECT n.queue, {NOW} AS at, z.since AS paused_since, z.reason, z.resume_at,
        {", ".join(f"g.{name}" for name in _RULES)}, g.shut, coalesce(o.is_open, true) AS is_open
    FROM (SELECT z.queue FROM {PAUSE} z WHERE {STOPS}
          UNION SELECT g.queue FROM {QUEUE} g UNION SELECT w.queue FROM {WINDOW} w) AS n
    LEFT JOIN {PAUSE} z ON z.queue = n.queue AND {STOPS}
    LEFT JOIN {QUEUE} g ON g.queue = n.queue
    LEFT JOIN (SELECT w.queue, bool_or({OPEN}) AS is_open FROM {WINDOW} w GROUP BY w.queue) AS o
        ON o.queue = n.queue
    ORDER BY n.queue""")
_WINDOWS = text(f"""
    SELECT queue, days, CAST(opens AS text) AS opens, CAST(closes AS text) AS closes, zone, calendar
    FROM {WINDOW} ORDER BY queue, zone, opens, closes, days""")
_CALENDARS = text(f"SELECT name, days FROM {CALENDAR} ORDER BY name")
_SET_CALENDAR = text(f"""
    INSERT INTO {CALENDAR} (name, days) VALUES (:name, CAST(:days AS date[]))
    ON CONFLICT (name) DO UPDATE SET days = EXCLUDED.days""")
_USED = text(f"SELECT DISTINCT queue FROM {WINDOW} WHERE calendar = :name ORDER BY queue")
_REMOVE_CALENDAR = text(f"DELETE FROM {CALENDAR} WHERE name = :name RETURNING name")


def change_queue(connection: Connection, queue: str, changes: Mapping[str, Any]) -> None:
    """Change checked settings of a queue; other settings stay. Concurrent changes wait."""
    current = connection.execute(_LOCK, {"queue": queue}).one()._mapping  # noqa: SLF001
    rules = {name: changes.get(name, current[name]) for name in _RULES}
    gate = any(rules[name] is not None for name in _GATE)
    connection.execute(_WRITE, {**rules, "queue": queue, "gate": gate})
    if "windows" in changes:
        connection.execute(text(f"DELETE FROM {WINDOW} WHERE queue = :queue"), {"queue": queue})
        for window in changes["windows"]:
            opens, closes = window.times
            values = {"queue": queue, "days": list(window.days), "opens": opens, "closes": closes}
            values |= {"zone": window.zone, "calendar": window.calendar}
            connection.execute(_WINDOW, values)
    connection.execute(_CLEAN, {"queue": queue})


def find_queues(connection: Connection, *, now: Clock = None) -> list[Queue]:
    """Return the queues that have settings, by name."""
    windows: dict[str, list[Window]] = {}
    for row in connection.execute(_WINDOWS):
        opens, closes = (int(t[:2]) * 60 + int(t[3:5]) for t in (row.opens, row.closes))
        window = Window(tuple(row.days), opens, closes, row.zone, row.calendar)
        windows.setdefault(row.queue, []).append(window)
    holidays = {name: frozenset(days) for name, days in calendars(connection).items()}
    return [
        Queue(**row, windows=tuple(windows.get(row["queue"], ())), holidays=holidays)
        for row in connection.execute(_FIND, {"now": now}).mappings()
    ]


def calendars(connection: Connection) -> dict[str, list[date]]:
    return {row.name: row.days for row in connection.execute(_CALENDARS)}


def set_calendar(connection: Connection, name: str, days: Sequence[date]) -> None:
    connection.execute(_SET_CALENDAR, {"name": name, "days": list(days)})


def queues_of_calendar(connection: Connection, calendar: str) -> list[str]:
    return list(connection.execute(_USED, {"name": calendar}).scalars())


def remove_calendar(connection: Connection, name: str) -> bool:
    """Delete a calendar that no window uses; False: no such calendar."""
    return connection.execute(_REMOVE_CALENDAR, {"name": name}).first() is not None


LONGEST_REASON = 300
_PAUSE = text(f"""
    INSERT INTO {PAUSE} (queue, since, reason, resume_at)
    VALUES (:queue, {NOW}, :reason,
        coalesce(CAST(:until AS timestamptz), {NOW} + CAST(:wait AS interval)))
    ON CONFLICT (queue) DO NOTHING RETURNING queue""")
_FORGET = text(f"DELETE FROM {PAUSE} z WHERE z.queue = :queue AND NOT {STOPS}")
_RESUME = text(f"""
    DELETE FROM {PAUSE} z WHERE z.queue = :queue OR :queue = '{EVERY_QUEUE}'
    RETURNING z.queue, {STOPS} AS stopped""")
_PAUSED = text(f"""
    SELECT z.queue, z.since, z.reason, z.resume_at FROM {PAUSE} z WHERE {STOPS} ORDER BY z.queue""")


def checked_queue(queue: str) -> str:
    """Return the name; raise InvalidTaskError unless it is a queue's, or ``*``."""
    return queue if queue == EVERY_QUEUE else check_queue(queue)


def pause(
    connection: Connection,
    queue: str,
    reason: str = "",
    *,
    resume_at: datetime | None = None,
    resume_in: timedelta | None = None,
    now: Clock = None,
) -> bool:
    """Stop a queue, or all with ``*``; False: it is paused already, and that pause stays.

    It runs again at ``resume_at``, or after ``resume_in``.

    Raises:
        InvalidTaskError: not a queue's name.
    """
    values: dict[str, Any] = {
        "queue": checked_queue(queue),
        "reason": storable_text(reason, LONGEST_REASON),
    }
    values |= {"until": resume_at, "wait": resume_in, "now": now}
    connection.execute(_FORGET, {"queue": queue, "now": now})
    return connection.execute(_PAUSE, values).first() is not None


def resume(connection: Connection, queue: str, *, now: Clock = None) -> Sequence[str]:
    """Resume a queue, or all with ``*``; return those that were paused.

    Raises:
        InvalidTaskError: not a queue's name.
    """
    rows = connection.execute(_RESUME, {"queue": checked_queue(queue), "now": now})
    return [row.queue for row in rows if row.stopped]


def find_pauses(connection: Connection, *, now: Clock = None) -> list[Pause]:
    return [Pause(*row) for row in connection.execute(_PAUSED, {"now": now})]


_IN_USE = text(f"SELECT DISTINCT only_while FROM {QUEUE} WHERE only_while IS NOT NULL ORDER BY 1")
# Stopped queues do not count as waiting: otherwise two gates could keep each other shut. No more
# running rows are read than shut the gate.
_UPDATE_GATES = text(f"""
    WITH RECURSIVE {WAITS},
    oldest AS MATERIALIZED (
        SELECT waits.queue, min(waits.scan_at) AS since FROM waits
        WHERE {queue_runs("waits.queue")} GROUP BY waits.queue),
    judged AS MATERIALIZED (
        SELECT g.queue, CASE
            WHEN CASE WHEN g.running_below IS NOT NULL THEN g.running_below <= (
                SELECT count(*) FROM (
                    SELECT FROM {PENDING} p
                    WHERE p.state = '{State.RUNNING}' AND p.queue <> g.queue
                    LIMIT g.running_below) AS busy) END THEN 'running'
            WHEN CASE WHEN g.waiting_below IS NOT NULL THEN g.waiting_below <= {NOW} - (
                SELECT min(o.since) FROM oldest o WHERE o.queue <> g.queue) END THEN 'waiting'
            WHEN g.only_while IS NOT NULL AND NOT g.only_while = ANY(CAST(:open AS text[]))
                THEN 'load'
            END AS shut
        FROM {QUEUE} g WHERE {HAS_GATE})
    UPDATE {QUEUE} g SET shut = j.shut FROM judged j
    WHERE g.queue = j.queue AND g.shut IS DISTINCT FROM j.shut AND {HAS_GATE}
    RETURNING g.queue, g.shut""")


def load_gates_in_use(connection: Connection) -> list[str]:
    return list(connection.execute(_IN_USE).scalars())


def update_load_gates(
    connection: Connection, open_gates: Sequence[str] = (), *, now: Clock = None
) -> dict[str, str | None]:
    """Open and shut gates; return, for each that changed, why it is shut; None: it is open.

    ``open_gates``: the names of load gates that say yes; all others say no.
    """
    values = {"open": list(open_gates), "now": now}
    return {row.queue: row.shut for row in connection.execute(_UPDATE_GATES, values)}
