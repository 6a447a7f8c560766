"""The database as scheduler: its functions, pg_cron's jobs, and the tasks that it can run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import rough_span
from tasks_app.domain.errors import SchemaError, TasksError
from tasks_app.domain.handlers.outcomes import DEFAULT_RULE
from tasks_app.domain.handlers.spec import HandlerSpec, SqlStatement
from tasks_app.domain.schedules.pg_cron import why_pg_cron_cannot_fire
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.domain.tasks.masks import masks_of
from tasks_app.domain.tasks.retry_policy import Exponential, Fixed, Levels
from tasks_app.pool import scheduling
from tasks_app.pool.db_scheduler import functions, jobs
from tasks_app.pool.db_scheduler.functions import Installed
from tasks_app.pool.db_scheduler.jobs import EVERY_MINUTE, CronCall, CronJob
from tasks_app.pool.db_scheduler.running import SqlTask, UnfitStatementError
from tasks_app.pool.retention import owns_partitions
from tasks_app.pool.schema import check_version
from tasks_app.pool.tables import database_now
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.handlers.registry import Registry

INSTALL = "tasks-app db-scheduler install"
PATIENCE = timedelta(minutes=3)  # a job of each minute that ran longer ago does not run
MOST_NAMED = 5
_PRIVILEGE = "42501"  # SQLSTATE: insufficient privilege


@dataclass(frozen=True, slots=True)
class DbSchedulerState:
    """What is installed, and how it does."""

    functions: Installed
    wanted: list[CronCall]  # what to call, and when
    pg_cron: str | None  # its version; None: it is not in the database that was checked
    jobs: list[CronJob]
    not_fired: dict[str, str]  # enabled schedules left to beat or a worker, with the reasons
    not_carried_out: dict[str, str]  # tasks in SQL left to workers, with the reasons
    trouble: list[str]  # what is wrong, each with what to do


class DbScheduler:
    """Installs, checks and removes it. ``cron_database``: where pg_cron is, if not here."""

    def __init__(
        self, settings: Settings, database: Database, cron_database: str | None = None
    ) -> None:
        self._settings = settings
        self._database = database
        url = make_url(settings.database)
        self._name = url.database or url.username or ""
        self._cron_name = cron_database or self._name

    def install(
        self, *, with_jobs: bool = True, leave: bool = False, tasks: Sequence[SqlTask] | None = None
    ) -> list[CronCall]:
        """Make the functions, then the jobs; return what is called, and when.

        ``tasks``: those in SQL that the database carries out.
        ``leave``: beat or workers fire the schedules that the database cannot.
        Raises SchemaError: this role does not own the tables; TasksError: a schedule cannot be
        fired, or there is no pg_cron.
        """
        if tasks is not None and not tasks:
            raise TasksError(
                "There are no tasks in SQL that the database can carry out. Name the modules that "
                "declare them in TASKS_APP_IMPORTS."
            )
        zone = None
        if with_jobs:
            with self._cron() as cron:
                if jobs.version(cron) is None:
                    raise TasksError(
                        f"pg_cron is not installed in the database {self._cron_name}. Install it "
                        "there, or name the database that has it by --cron-database, or let "
                        "another scheduler call the functions: --functions-only."
                    )
                zone = jobs.cron_zone(cron)
        with self._database.begin() as connection:
            check_version(connection)
            if not owns_partitions(connection):
                raise SchemaError(
                    "Only the owner of the tables can install this: it makes and drops "
                    "partitions. Connect as the owner."
                )
            try:
                functions.create(connection, self._settings, tasks)
            except UnfitStatementError as error:
                raise TasksError(
                    f"PostgreSQL cannot read the statement of {error}. Correct it, or cast where a "
                    "type is unknown."
                ) from None
            functions.create_day_partition(connection)
            now = database_now(connection)
            fit, unfit = _fit(scheduling.find(connection), now, zone)
            if unfit and not leave:
                those = "; ".join(f"{name}: {why}" for name, why in unfit.items())
                raise TasksError(
                    f"pg_cron cannot fire {those}. Change or disable them, or leave them to beat "
                    "or a worker by --leave-unfit."
                )
            home = functions.home_of(connection)
        wanted = functions.jobs_of(home, fit, now, runs=tasks is not None)
        if with_jobs:
            with self._cron() as cron:
                jobs.enter_jobs(cron, jobs.prefix_of(home), self._name, wanted)
        return wanted

    def status(
        self, tasks: Sequence[SqlTask] | None = (), unfit: Mapping[str, str] | None = None
    ) -> DbSchedulerState:
        """Check functions, jobs and their last runs; nothing is written.

        ``tasks``, ``unfit``: those in SQL that the database would carry out here, and would not.
        ``tasks`` None: they are unknown here.
        """
        with self._database.begin() as connection:
            standing = functions.installed(connection, self._settings, tasks)
            runs = functions.runs_sql_tasks(connection)
            home = functions.home_of(connection)
            rows = [] if standing is Installed.NO else scheduling.find(connection)
        not_carried_out = dict(unfit or {}) if runs else {}
        with self._cron() as cron:
            version = jobs.version(cron)
            found = jobs.find(cron, jobs.prefix_of(home), self._name) if version else []
            now = database_now(cron)
            fit, left = _fit(rows, now, jobs.cron_zone(cron) if version else None)
            wanted = functions.jobs_of(home, fit, now, runs=runs)
            again = {
                "--sql-tasks": runs,
                "--functions-only": not found,
                "--leave-unfit": bool(left or not_carried_out),
                f"--cron-database {self._cron_name}": found and self._cron_name != self._name,
            }
            command = " ".join((INSTALL, *(option for option, given in again.items() if given)))
            trouble = list(_trouble(standing, wanted, found, now, command))
        if runs and tasks is not None and not tasks:
            trouble.insert(
                0,
                "No task in SQL is known here, but the database carries some out. "
                "Set TASKS_APP_IMPORTS as where it was installed.",
            )
        return DbSchedulerState(standing, wanted, version, found, left, not_carried_out, trouble)

    def remove(self) -> tuple[int, int]:
        """Remove the jobs, then the functions; return how many of each."""
        with self._database.begin() as connection:
            home = functions.home_of(connection)
        with self._cron() as cron:
            gone = 0
            if jobs.version(cron):
                gone = jobs.remove(cron, jobs.prefix_of(home), self._name)
        with self._database.begin() as connection:
            return gone, functions.drop(connection)

    @contextmanager
    def _cron(self) -> Iterator[Connection]:
        if self._cron_name == self._name:
            with self._database.begin() as connection, _explained():
                yield connection
            return
        url = make_url(self._settings.database).set(database=self._cron_name)
        there = Database(url.render_as_string(hide_password=False), prepare=False)
        try:
            with _explained(), there.begin() as connection:
                yield connection
        except OperationalError as error:
            if f'database "{self._cron_name}" does not exist' in str(error.orig):
                raise TasksError(
                    f"The server has no database {self._cron_name}. Correct --cron-database."
                ) from None
            raise
        finally:
            there.dispose()


def _fit(
    rows: Iterable[Schedule], now: datetime, zone: str | None
) -> tuple[list[Schedule], dict[str, str]]:
    """Return what pg_cron can fire, enabled or not; and what it cannot, with the reasons."""
    fit, unfit = [], {}
    for row in rows:
        if (why := why_pg_cron_cannot_fire(row, now, zone)) is None:
            fit.append(row)
        elif row.enabled:
            unfit[row.name] = why
    return fit, unfit


def _listed(duties: list[str]) -> str:
    more = len(duties) - MOST_NAMED
    return ", ".join(duties[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _PRIVILEGE:
            raise
        raise TasksError(
            "This role may not enter jobs of pg_cron. A superuser grants it USAGE ON SCHEMA cron "
            "and, where pg_cron is in another database, EXECUTE ON FUNCTION "
            "cron.schedule_in_database."
        ) from None


def _trouble(
    standing: Installed, wanted: list[CronCall], found: list[CronJob], now: datetime, command: str
) -> Iterator[str]:
    if standing is Installed.OTHERWISE:
        yield f"The functions are of other code or settings. Run again: {command}"
    if standing is Installed.NO and found:
        yield f"The jobs call functions that are gone. Run again: {command}"
    elif found:
        there = {job.duty for job in found}
        missing = [job.duty for job in wanted if job.duty not in there]
        if missing:
            yield f"These jobs are missing: {_listed(missing)}. Run again: {command}"
        other = [job.duty for job in found if job.call not in wanted]
        if other:
            yield f"These jobs are out of date: {_listed(other)}. Run again: {command}"
    for job in found:
        if not job.active:
            yield f"The job {job.duty} is switched off. Run again: {command}"
        elif job.status == "failed":
            yield (
                f"The job {job.duty} failed: {job.message or 'no message'}. If it could not "
                f"connect, let pg_hba.conf or a .pgpass of the server admit {job.role}."
            )
        elif job.when == EVERY_MINUTE and job.last_at and now - job.last_at > PATIENCE:
            yield (
                f"The job {job.duty} last ran {rough_span(now - job.last_at)} ago. "
                "Look for 'pg_cron' in the server's log."
            )


def sql_tasks_of(registry: Registry, settings: Settings, *, leave: bool) -> list[SqlTask]:
    """Return what the database carries out; ``leave``: workers carry out the others."""
    unfit = unfit_sql_tasks(registry, settings)
    if unfit and not leave:
        those = "; ".join(f"{name}: {why}" for name, why in unfit.items())
        raise TasksError(
            f"The database cannot carry out {those}. Change them, or leave them to workers by "
            "--leave-unfit."
        )
    return [
        _task(spec, spec.statement)
        for spec in sorted(registry, key=lambda spec: spec.name)
        if spec.statement is not None and spec.name not in unfit
    ]


def unfit_sql_tasks(registry: Registry, settings: Settings) -> dict[str, str]:
    """Return the tasks in SQL that are left to workers, each with the reason."""
    return {
        spec.name: why
        for spec in sorted(registry, key=lambda spec: spec.name)
        if spec.statement is not None and (why := _why_not(spec, settings))
    }


def _why_not(spec: HandlerSpec, settings: Settings) -> str | None:
    if spec.timeout is not None or spec.hard_timeout is not None:
        return "it has a timeout, which no function can set for a statement in it"
    if spec.encrypted or settings.encrypted:
        return "values are encrypted, and the database has no key"
    if masks_of(settings.masked_paths).covers(spec.name):
        return "values are masked in texts of errors, which the database does not do"
    if spec.on_error or spec.outage != DEFAULT_RULE or spec.depends_on is not None:
        return "it judges errors by rules in Python"
    return None


def _task(spec: HandlerSpec, statement: SqlStatement) -> SqlTask:
    waits, least, most = _waits(spec)
    return SqlTask(
        spec.name,
        spec.queue,
        statement,
        max_attempts=spec.max_attempts,
        at_most_once=spec.at_most_once,
        waits=waits,
        least=least,
        most=most,
        history=spec.history,
    )


def _waits(spec: HandlerSpec) -> tuple[tuple[float, ...], float, float]:
    match spec.retry:
        case Levels(waits=waits, jitter=jitter):
            return tuple(w.total_seconds() for w in waits), 1, 1 + jitter / 100
        case Fixed(every=every, jitter=jitter):
            return (every.total_seconds(),), 1, 1 + jitter / 100
        case Exponential(base=base, factor=factor, cap=cap):
            longest = cap.total_seconds()
            each = (base.total_seconds() * factor**n for n in range(64))  # later waits have the cap
            return tuple(min(wait, longest) for wait in each), 0, 1
        case _:
            pass
    raise TypeError(f"{spec.name}: {type(spec.retry).__name__} isn't a retry policy")
