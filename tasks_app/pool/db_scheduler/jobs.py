"""Jobs of pg_cron: entered, looked up and removed in the database that has the extension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

EVERY_MINUTE = "* * * * *"
_HAS = text("SELECT extversion FROM pg_extension WHERE extname = 'pg_cron'")
_DATABASE = text("SELECT setting FROM pg_settings WHERE name = 'cron.database_name'")
_HERE = text("SELECT current_database()")
_ADD = text("SELECT cron.schedule_in_database(:job, :when, :command, :database)")
_ADD_HERE = text("SELECT cron.schedule(:job, :when, :command)")
_REMOVE = text("""
    SELECT cron.unschedule(j.jobid) FROM cron.job j
    WHERE j.database = :database AND starts_with(j.jobname, :prefix)
""")
_FIND = text("""
    SELECT substr(j.jobname, length(:prefix) + 1) AS duty, j.active, j.username AS role,
        d.start_time AS last_at, d.status, d.return_message AS message
    FROM cron.job j
    LEFT JOIN LATERAL (
        SELECT r.start_time, r.status, r.return_message FROM cron.job_run_details r
        WHERE r.jobid = j.jobid AND r.status IN ('succeeded', 'failed')
        ORDER BY r.runid DESC LIMIT 1) AS d ON true
    WHERE j.database = :database AND starts_with(j.jobname, :prefix) ORDER BY j.jobid
""")
_FORGET = text("""
    DELETE FROM cron.job_run_details r USING cron.job j
    WHERE j.jobid = r.jobid AND j.database = :database AND starts_with(j.jobname, :prefix)
""")


@dataclass(frozen=True, slots=True)
class CronJob:
    """One job, and how its last run ended."""

    duty: str
    active: bool
    role: str
    last_at: datetime | None
    status: str | None
    message: str | None


def usual_database(connection: Connection) -> str:
    """Return the database that pg_cron is in if it is not in this: as the server says, if it does.

    It tells superusers and roles that may read all settings.
    """
    return connection.execute(_DATABASE).scalar() or "postgres"


def version(connection: Connection) -> str | None:
    """Return pg_cron's version in this database; None: it is not installed here."""
    return connection.execute(_HAS).scalar()


def prefix_of(home: str) -> str:
    """Return how the names of the jobs of one schema begin."""
    return f"tasks_app {home}: "


def add(connection: Connection, prefix: str, database: str, commands: Mapping[str, str]) -> None:
    """Enter a job for each duty, in place of earlier ones; the caller's role runs them."""
    remove(connection, prefix, database)
    here = connection.execute(_HERE).scalar() == database
    for duty, command in commands.items():
        values = {"job": prefix + duty, "when": EVERY_MINUTE, "command": command}
        if here:
            connection.execute(_ADD_HERE, values)
        else:
            connection.execute(_ADD, {**values, "database": database})


def remove(connection: Connection, prefix: str, database: str) -> int:
    """Remove the jobs and what is written of their runs; return how many jobs there were."""
    values = {"prefix": prefix, "database": database}
    connection.execute(_FORGET, values)
    return len(connection.execute(_REMOVE, values).all())


def find(connection: Connection, prefix: str, database: str) -> list[CronJob]:
    """Return the jobs in the order in which they were entered."""
    rows = connection.execute(_FIND, {"prefix": prefix, "database": database})
    return [CronJob(**row._mapping) for row in rows]  # noqa: SLF001  its public name
