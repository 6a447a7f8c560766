"""Groups: the error pool by fingerprint, and the tasks of one. Never locks, never writes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from tasks_app.pool.connection.clock import instant
from tasks_app.pool.tables import ERROR, FINGERPRINT

HOURS = 24
MOST_WITHOUT = 10_000
"""Rows without a fingerprint are counted up to one more than this."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """The tasks in the error pool whose errors have one fingerprint."""

    fingerprint: str
    """16 hexadecimal digits."""
    number: int
    first_at: datetime
    """The oldest end among these tasks, or the first that was ever entered."""
    last_at: datetime
    names: list[str]
    queues: list[str]
    sample_id: int
    """The newest of these tasks."""
    error: str
    """Class and message of the sample."""
    known_by: str | None
    """Who marked it as known; None: nobody, or the mark has ended."""
    known_until: datetime | None
    note: str | None
    hours: list[int]
    """How many failed in each of the last 24 hours, the newest last."""


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task of a group."""

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
    ORDER BY c.number DESC, c.last_at DESC, c.fingerprint
""")
_HOURS = text(f"""
    SELECT encode(e.fingerprint, 'hex') AS fingerprint, count(*) AS number,
        CAST(floor(EXTRACT(EPOCH FROM CAST(:now AS timestamptz) - e.finished_at) / 3600) AS integer)
            AS ago
    FROM {ERROR} e
    WHERE e.fingerprint = ANY(ARRAY(
            SELECT decode(t.hex, 'hex') FROM unnest(CAST(:fingerprints AS text[])) AS t(hex)))
      AND e.finished_at > CAST(:now AS timestamptz) - CAST(:span AS interval)
      AND e.finished_at <= :now
    GROUP BY 1, 3
""")
_TASKS = text(f"""
    SELECT e.id, e.name, e.queue, e.biz_key, e.attempt, e.failures, e.finished_at, e.error
    FROM {ERROR} e
    WHERE e.fingerprint = decode(:fingerprint, 'hex')
      AND e.finished_at <= coalesce(CAST(:before AS timestamptz), 'infinity')
      AND (e.finished_at, e.id) < (coalesce(CAST(:before AS timestamptz), 'infinity'), :before_id)
    ORDER BY e.fingerprint, e.finished_at DESC, e.id DESC LIMIT :most
""")
_WITHOUT = text(f"""
    SELECT count(*) FROM (SELECT FROM {ERROR} WHERE fingerprint IS NULL LIMIT :most) AS found
""")


def groups(
    connection: Connection,
    *,
    fingerprint: str | None = None,
    name: str | None = None,
    queue: str | None = None,
    since: datetime | None = None,
    most: int = 50,
    now: datetime | None = None,
) -> list[ErrorGroup]:
    """Return the groups with most tasks; the numbers are of the tasks that the filters mean."""
    now = now or instant(connection)
    filters = {"fingerprint": fingerprint, "name": name, "queue": queue, "since": since}
    rows = connection.execute(_GROUPS, {**filters, "most": most, "now": now}).all()
    hours = _hours(connection, [row.fingerprint for row in rows], now) if rows else {}
    return [ErrorGroup(**row._mapping, hours=hours[row.fingerprint]) for row in rows]  # noqa: SLF001  SQLAlchemy's public name


def tasks_of(
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


def without_fingerprint(connection: Connection) -> int:
    """Count the rows that no group holds, up to ``MOST_WITHOUT`` and one more."""
    return int(connection.execute(_WITHOUT, {"most": MOST_WITHOUT + 1}).scalar_one())


def _hours(connection: Connection, fingerprints: list[str], now: datetime) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(lambda: [0] * HOURS)
    values = {"fingerprints": fingerprints, "now": now, "span": timedelta(hours=HOURS)}
    for row in connection.execute(_HOURS, values):
        found[row.fingerprint][HOURS - 1 - row.ago] = row.number
    return found
