"""The error pool by fingerprint: groups, known causes, and results of requeued tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, text

from tasks_app.domain.tasks.error_text import fingerprint_of, traits_of
from tasks_app.domain.tasks.run import Cause
from tasks_app.pool.tables import ATTEMPT, ERROR, FINGERPRINT, PENDING, Clock, database_now

HOURS = 24
MOST_WITHOUT = 10_000  # rows without a fingerprint are counted up to one more than this


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    fingerprint: str  # 16 hexadecimal digits
    number: int
    first_at: datetime  # the oldest end among these tasks, or the first ever recorded
    last_at: datetime
    names: list[str]
    queues: list[str]
    sample_id: int  # the newest of these tasks
    error: str  # class and message of the sample
    known_by: str | None  # who marked it as known; None: no mark, or it has expired
    known_until: datetime | None
    note: str | None
    hours: list[int]  # how many failed in each of the last 24 hours, the newest last


@dataclass(frozen=True, slots=True)
class FailedTask:
    id: int
    name: str
    queue: str
    biz_key: str | None
    attempt: int
    failures: int
    finished_at: datetime
    error: str | None


_GROUPS = text(f"""
    WITH counted AS MATERIALIZED (
        SELECT e.fingerprint, count(*) AS number, min(e.finished_at) AS first_at,
            max(e.finished_at) AS last_at, max(e.id) AS sample_id
        FROM {ERROR} e
        WHERE e.fingerprint IS NOT NULL
          AND (CAST(:fingerprint AS text) IS NULL OR e.fingerprint = decode(:fingerprint, 'hex'))
          AND (CAST(:name AS text) IS NULL OR e.name = :name)
          AND (CAST(:queue AS text) IS NULL OR e.queue = :queue)
          AND (CAST(:since AS timestamptz) IS NULL OR e.finished_at >= :since)
        GROUP BY e.fingerprint
        ORDER BY number DESC, last_at DESC, e.fingerprint LIMIT :most)
    SELECT encode(c.fingerprint, 'hex') AS fingerprint, c.number,
        least(c.first_at, f.first_at) AS first_at, c.last_at, w.names, w.queues, c.sample_id,
        coalesce(s.error, '') AS error,
        CASE WHEN f.known_until > :now IS NOT FALSE THEN f.known_by END AS known_by,
        CASE WHEN f.known_until > :now THEN f.known_until END AS known_until,
        CASE WHEN f.known_until > :now IS NOT FALSE THEN f.note END AS note
    FROM counted c
    CROSS JOIN LATERAL (
        SELECT array_agg(DISTINCT e.name) AS names, array_agg(DISTINCT e.queue) AS queues
        FROM {ERROR} e WHERE e.fingerprint = c.fingerprint) AS w
    CROSS JOIN LATERAL (SELECT e.error FROM {ERROR} e WHERE e.id = c.sample_id) AS s
    LEFT JOIN {FINGERPRINT} f ON f.fingerprint = c.fingerprint
    ORDER BY c.number DESC, c.last_at DESC, c.fingerprint""")
_HOURS = text(f"""
    SELECT encode(e.fingerprint, 'hex') AS fingerprint, count(*) AS number,
        CAST(floor(EXTRACT(EPOCH FROM CAST(:now AS timestamptz) - e.finished_at) / 3600) AS integer)
            AS ago
    FROM {ERROR} e
    WHERE e.fingerprint = ANY(ARRAY(
            SELECT decode(t.hex, 'hex') FROM unnest(CAST(:fingerprints AS text[])) AS t(hex)))
      AND e.finished_at > CAST(:now AS timestamptz) - CAST(:span AS interval)
      AND e.finished_at <= :now
    GROUP BY 1, 3""")
_TASKS = text(f"""
    SELECT e.id, e.name, e.queue, e.biz_key, e.attempt, e.failures, e.finished_at, e.error
    FROM {ERROR} e
    WHERE e.fingerprint = decode(:fingerprint, 'hex')
      AND e.finished_at <= coalesce(CAST(:before AS timestamptz), 'infinity')
      AND (e.finished_at, e.id) < (coalesce(CAST(:before AS timestamptz), 'infinity'), :before_id)
    ORDER BY e.fingerprint, e.finished_at DESC, e.id DESC LIMIT :most""")
_WITHOUT = text(f"""
    SELECT count(*) FROM (SELECT FROM {ERROR} WHERE fingerprint IS NULL LIMIT :most) AS found""")


def find_error_groups(
    connection: Connection,
    *,
    fingerprint: str | None = None,
    name: str | None = None,
    queue: str | None = None,
    since: datetime | None = None,
    most: int = 50,
    now: Clock = None,
) -> list[ErrorGroup]:
    """Return the groups with most tasks; the numbers count the tasks that match the filters."""
    now = now or database_now(connection)
    filters = {"fingerprint": fingerprint, "name": name, "queue": queue, "since": since}
    rows = connection.execute(_GROUPS, {**filters, "most": most, "now": now}).all()
    hours = _hours(connection, [row.fingerprint for row in rows], now) if rows else {}
    return [ErrorGroup(**row._mapping, hours=hours[row.fingerprint]) for row in rows]  # noqa: SLF001  SQLAlchemy's public name


def tasks_of_error_group(
    connection: Connection,
    fingerprint: str,
    *,
    before: tuple[datetime, int] | None = None,
    most: int = 50,
) -> list[FailedTask]:
    """Return tasks of a group, newest end first; ``before``: end and id to go on below."""
    at, task_id = before or (None, 0)
    values = {"fingerprint": fingerprint, "before": at, "before_id": task_id, "most": most}
    return [FailedTask(*row) for row in connection.execute(_TASKS, values)]


def count_without_fingerprint(connection: Connection) -> int:
    return int(connection.execute(_WITHOUT, {"most": MOST_WITHOUT + 1}).scalar_one())


def _hours(connection: Connection, fingerprints: list[str], now: datetime) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(lambda: [0] * HOURS)
    values = {"fingerprints": fingerprints, "now": now, "span": timedelta(hours=HOURS)}
    for row in connection.execute(_HOURS, values):
        found[row.fingerprint][HOURS - 1 - row.ago] = row.number
    return found


MOST_LOOKED_AT = 100  # tasks of a new cause, for its names and queues
MOST_NEW = 1_000  # causes that are recorded at once


# One probe for each cause: this runs every few seconds, with an error pool of any size.
_CAUSES = f"""
    WITH RECURSIVE cause AS (
        (SELECT e.fingerprint FROM {ERROR} e
         WHERE e.fingerprint IS NOT NULL ORDER BY e.fingerprint LIMIT 1)
        UNION ALL
        SELECT (SELECT e.fingerprint FROM {ERROR} e WHERE e.fingerprint > c.fingerprint
                ORDER BY e.fingerprint LIMIT 1)
        FROM cause c WHERE c.fingerprint IS NOT NULL)"""
_ONE = "WITH cause AS (SELECT decode(:fingerprint, 'hex') AS fingerprint)"
_NEW = {
    one: text(f"""
    {_ONE if one else _CAUSES}
    SELECT encode(n.fingerprint, 'hex') AS hex, f.first_at, e.error, a.kind, a.message, a.traceback
    FROM (
        SELECT c.fingerprint FROM cause c WHERE c.fingerprint IS NOT NULL
          AND NOT EXISTS (SELECT FROM {FINGERPRINT} f WHERE f.fingerprint = c.fingerprint)
        ORDER BY c.fingerprint LIMIT {MOST_NEW}) AS n
    CROSS JOIN LATERAL (
        SELECT e.finished_at AS first_at FROM {ERROR} e WHERE e.fingerprint = n.fingerprint
        ORDER BY e.fingerprint DESC, e.finished_at LIMIT 1) AS f
    CROSS JOIN LATERAL (
        SELECT e.id, e.error FROM {ERROR} e WHERE e.fingerprint = n.fingerprint
        ORDER BY e.fingerprint, e.finished_at DESC LIMIT 1) AS e
    LEFT JOIN LATERAL (
        SELECT a.kind, a.message, a.traceback FROM {ATTEMPT} a
        WHERE a.task_id = e.id ORDER BY a.attempt DESC, a.ended_at DESC LIMIT 1) AS a ON true""")
    for one in (True, False)
}
_ENTER = text(f"""
    INSERT INTO {FINGERPRINT} (fingerprint, kind, message, frames, first_at)
    VALUES (decode(:hex, 'hex'), :kind, :message, :frames, :first_at)
    ON CONFLICT DO NOTHING""")
_LATE = text(f"""
    SELECT encode(f.fingerprint, 'hex') AS fingerprint, f.kind, w.names, w.queues
    FROM {FINGERPRINT} f
    CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(DISTINCT e.name), '{{}}') AS names,
            coalesce(array_agg(DISTINCT e.queue), '{{}}') AS queues
        FROM (SELECT name, queue FROM {ERROR} WHERE fingerprint = f.fingerprint
              ORDER BY fingerprint, finished_at DESC LIMIT {MOST_LOOKED_AT}) AS e) AS w
    WHERE encode(f.fingerprint, 'hex') = ANY(CAST(:fingerprints AS text[]))
      AND f.first_at > statement_timestamp() - CAST(:within AS interval)
    ORDER BY f.first_at, 1""")
_MARK = text(f"""
    UPDATE {FINGERPRINT} SET known_by = :by, known_until = :until, note = :note
    WHERE fingerprint = decode(:hex, 'hex')""")
_UNMARK = text(f"""
    UPDATE {FINGERPRINT} SET known_by = NULL, known_until = NULL, note = NULL
    WHERE fingerprint = decode(:hex, 'hex') AND known_by IS NOT NULL""")


def record_new_causes(connection: Connection, fingerprint: str | None = None) -> list[str]:
    """Record causes that failed for the first time, with their traits; return the fingerprints."""
    values = {} if fingerprint is None else {"fingerprint": fingerprint}
    rows = connection.execute(_NEW[fingerprint is not None], values).all()
    for row in rows:
        kind, _, message = (row.error or "").partition(": ")
        traits = traits_of(Cause(row.kind or kind, row.message or message, row.traceback))
        entry = {"kind": traits.kind, "message": traits.message, "frames": list(traits.frames)}
        connection.execute(_ENTER, {"hex": row.hex, "first_at": row.first_at, **entry})
    return [row.hex for row in rows]


def new_causes(
    connection: Connection, fingerprints: list[str], within: timedelta
) -> Sequence[Row[Any]]:
    """Return those that were first seen within this time, oldest first."""
    values = {"fingerprints": fingerprints, "within": within}
    return connection.execute(_LATE, values).all()


def mark_cause(
    connection: Connection, fingerprint: str, by: str, until: datetime | None, note: str
) -> bool:
    record_new_causes(connection, fingerprint)
    values = {"hex": fingerprint, "by": by, "until": until, "note": note or None}
    return connection.execute(_MARK, values).rowcount > 0


def unmark_cause(connection: Connection, fingerprint: str) -> bool:
    return connection.execute(_UNMARK, {"hex": fingerprint}).rowcount > 0


_COUNT_REQUEUED = text(f"""
    SELECT count(*) FILTER (WHERE t.again) AS again,
        count(*) FILTER (WHERE t.going AND NOT t.again) AS going
    FROM (
        SELECT EXISTS (
                SELECT FROM {ATTEMPT} a WHERE a.task_id = i.id AND a.ended_at >= :since
                  AND a.fingerprint = decode(:fingerprint, 'hex')) AS again,
            EXISTS (SELECT FROM {PENDING} p WHERE p.id = i.id) AS going
        FROM unnest(CAST(:ids AS bigint[])) AS i(id)) AS t""")


class RequeueResult(NamedTuple):
    again: int  # an attempt failed for the same cause, even if a retry follows
    going: int  # they wait or run, and have not failed for it


def count_requeued(
    connection: Connection, fingerprint: str, ids: Sequence[int], since: datetime
) -> RequeueResult:
    values = {"fingerprint": fingerprint, "ids": list(ids), "since": since}
    return RequeueResult(*connection.execute(_COUNT_REQUEUED, values).one())


_FIND = text(f"""
    SELECT e.id, e.error, a.attempt, a.kind, a.message, a.traceback FROM {ERROR} e
    LEFT JOIN LATERAL (
        SELECT a.attempt, a.kind, a.message, a.traceback FROM {ATTEMPT} a
        WHERE a.task_id = e.id ORDER BY a.attempt DESC, a.ended_at DESC LIMIT 1) AS a ON true
    WHERE e.fingerprint IS NULL
    ORDER BY e.finished_at DESC LIMIT :most FOR NO KEY UPDATE OF e SKIP LOCKED""")
_GIVEN = """
    unnest(CAST(:ids AS bigint[]), CAST(:attempts AS integer[]), CAST(:fingerprints AS text[]))
        AS g(id, attempt, hex)
"""
_ERRORS = text(f"""
    UPDATE {ERROR} e SET fingerprint = decode(g.hex, 'hex') FROM {_GIVEN} WHERE e.id = g.id""")
_ATTEMPTS = text(f"""
    UPDATE {ATTEMPT} a SET fingerprint = decode(g.hex, 'hex') FROM {_GIVEN}
    WHERE a.task_id = g.id AND a.attempt = g.attempt AND a.fingerprint IS NULL""")


def add_missing_fingerprints(connection: Connection, most: int = 1_000) -> int:
    """Add fingerprints to up to ``most`` rows of the error pool; return how many."""
    rows = connection.execute(_FIND, {"most": most}).all()
    causes = []
    for row in rows:
        kind, _, message = (row.error or "").partition(": ")  # if its history was pruned
        if row.kind is not None:
            kind, message = row.kind, row.message or ""
        causes.append(Cause(kind, message, row.traceback))
    values = {
        "ids": [row.id for row in rows],
        "attempts": [row.attempt for row in rows],
        "fingerprints": [fingerprint_of(cause).hex() for cause in causes],
    }
    if rows:
        connection.execute(_ERRORS, values)
        connection.execute(_ATTEMPTS, values)
    return len(rows)
