"""Jobs of pg_cron: entered, looked up and removed in the database that has the extension."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, text

EVERY_MINUTE = "* * * * *"
_ADD = text("SELECT cron.schedule_in_database(:job, :when, :command, :database)")
_ADD_HERE = text("SELECT cron.schedule(:job, :when, :command)")
_REMOVE = text("SELECT cron.unschedule(u.id) FROM unnest(CAST(:ids AS bigint[])) AS u(id)")
_ROLE = text("SELECT current_user")
LONGEST = 63  # of a job's name: up to version 1.4 more is cut off


class CronCall(NamedTuple):
    """What is called when."""

    duty: str
    when: str
    command: str


@dataclass(frozen=True, slots=True)
class CronJob:
    """One job as it stands, and how its last run ended."""

    id: int
    duty: str
    when: str
    command: str
    active: bool
    role: str
    last_at: datetime | None
    status: str | None
    message: str | None

    @property
    def call(self) -> CronCall:
        return CronCall(self.duty, self.when, self.command)


def usual_database(connection: Connection) -> str:
    """Return the database that pg_cron is in if it is not in this: as the server says, if it does.

    It tells superusers and roles that may read all settings.
    """
    query = text("SELECT setting FROM pg_settings WHERE name = 'cron.database_name'")
    return connection.execute(query).scalar() or "postgres"


def zone(connection: Connection) -> str:
    """Return the zone in which it reads expressions; GMT also where this role is not told."""
    query = text("SELECT setting FROM pg_settings WHERE name = 'cron.timezone'")
    return connection.execute(query).scalar() or "GMT"


def version(connection: Connection) -> str | None:
    """Return pg_cron's version in this database; None: it is not installed here."""
    query = text("SELECT extversion FROM pg_extension WHERE extname = 'pg_cron'")
    return connection.execute(query).scalar()


def prefix_of(home: str) -> str:
    """Return how the names of the jobs of one schema begin."""
    return f"tasks_app {home}: "


def enter(connection: Connection, prefix: str, database: str, wanted: Iterable[CronCall]) -> None:
    """Enter the jobs that are wanted, and remove all others. The caller's role runs them.

    One that stands as it is wanted stays: to remove it would cancel its run.
    """
    role = connection.execute(_ROLE).scalar_one()
    standing = find(connection, prefix, database)
    kept = {each.call for each in standing if each.active and each.role == role} & set(wanted)
    _remove(connection, [each for each in standing if each.call not in kept or each.role != role])
    query = text("SELECT current_database()")
    here = connection.execute(query).scalar() == database
    for duty, when, command in wanted:
        if (duty, when, command) in kept:
            continue
        values = {"job": prefix + duty, "when": when, "command": command}
        if here:
            connection.execute(_ADD_HERE, values)
        else:
            connection.execute(_ADD, {**values, "database": database})


def remove(connection: Connection, prefix: str, database: str) -> int:
    """Remove the jobs and what is written of their runs; return how many jobs there were."""
    standing = find(connection, prefix, database)
    _remove(connection, standing)
    return len(standing)


def find(connection: Connection, prefix: str, database: str) -> list[CronJob]:
    """Return the jobs in the order in which they were entered."""
    query = text("""
        SELECT j.jobid AS id, substr(j.jobname, length(:prefix) + 1) AS duty, j.schedule AS when,
            j.command, j.active, j.username AS role,
            d.start_time AS last_at, d.status, d.return_message AS message
        FROM cron.job j
        LEFT JOIN (
            SELECT DISTINCT ON (r.jobid) r.* FROM cron.job_run_details r
            WHERE r.status IN ('succeeded', 'failed') ORDER BY r.jobid, r.runid DESC
        ) AS d ON d.jobid = j.jobid
        WHERE j.database = :database AND starts_with(j.jobname, :prefix) ORDER BY j.jobid
    """)
    rows = connection.execute(query, {"prefix": prefix, "database": database})
    return [CronJob(**row._mapping) for row in rows]  # noqa: SLF001  its public name


def _remove(connection: Connection, jobs: Iterable[CronJob]) -> None:
    ids = [each.id for each in jobs]
    query = text("DELETE FROM cron.job_run_details WHERE jobid = ANY(CAST(:ids AS bigint[]))")
    connection.execute(query, {"ids": ids})
    connection.execute(_REMOVE, {"ids": ids})
