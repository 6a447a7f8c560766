"""Jobs of pg_cron: entered, read and removed in the database that has the extension."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, text

EVERY_MINUTE = "* * * * *"
LONGEST = 63  # of a job's name: version 1.4 and older cut it off


class CronCall(NamedTuple):
    duty: str
    when: str
    command: str


@dataclass(frozen=True, slots=True)
class CronJob:
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
    """Return the database of pg_cron as far as this role may read the setting; else the default."""
    query = text("SELECT setting FROM pg_settings WHERE name = 'cron.database_name'")
    return connection.execute(query).scalar() or "postgres"


def cron_zone(connection: Connection) -> str:
    """Return the zone of expressions as far as this role may read the setting; else GMT."""
    query = text("SELECT setting FROM pg_settings WHERE name = 'cron.timezone'")
    return connection.execute(query).scalar() or "GMT"


def version(connection: Connection) -> str | None:
    query = text("SELECT extversion FROM pg_extension WHERE extname = 'pg_cron'")
    return connection.execute(query).scalar()


def prefix_of(home: str) -> str:
    return f"tasks_app {home}: "


def enter_jobs(
    connection: Connection, prefix: str, database: str, wanted: Iterable[CronCall]
) -> None:
    """Enter the jobs that are wanted, and remove all others. The caller's role runs them.

    A job that is already as wanted stays: removing it would cancel its run.
    """
    query = text("SELECT current_user, current_database()")
    role, current = connection.execute(query).one()
    standing = find(connection, prefix, database)
    kept = {each.call for each in standing if each.active and each.role == role} & set(wanted)
    _remove(connection, [each for each in standing if each.call not in kept or each.role != role])
    add = "cron.schedule_in_database(:job, :when, :command, :database)"
    if current == database:
        add = "cron.schedule(:job, :when, :command)"
    for call in wanted:
        if call not in kept:
            values = {"job": prefix + call.duty, "when": call.when, "command": call.command}
            more = {} if current == database else {"database": database}
            connection.execute(text(f"SELECT {add}"), {**values, **more})


def remove(connection: Connection, prefix: str, database: str) -> int:
    standing = find(connection, prefix, database)
    _remove(connection, standing)
    return len(standing)


def find(connection: Connection, prefix: str, database: str) -> list[CronJob]:
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
    ids = {"ids": [each.id for each in jobs]}
    forget = "DELETE FROM cron.job_run_details WHERE jobid = ANY(CAST(:ids AS bigint[]))"
    connection.execute(text(forget), ids)
    unschedule = "SELECT cron.unschedule(u.id) FROM unnest(CAST(:ids AS bigint[])) AS u(id)"
    connection.execute(text(unschedule), ids)
