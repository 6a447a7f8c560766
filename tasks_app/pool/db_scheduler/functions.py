"""The functions by which the database schedules: made, compared with what this code says, dropped.

No migration holds them: their statements are those of this code, with its settings written in. Who
upgrades installs anew; until then the old ones run, as code of the release before does.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.schedules.pg_cron import written_for_pg_cron
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.pool.db_scheduler.firing import FIRED, FIRING, command_of
from tasks_app.pool.db_scheduler.jobs import EVERY_MINUTE, LONGEST, CronCall, prefix_of
from tasks_app.pool.db_scheduler.running import RUN, at_home, running
from tasks_app.pool.db_scheduler.statements import SqlTask, UnfitStatementError
from tasks_app.pool.db_scheduler.upkeep import MAINTAIN, RESCUE, SWEEP, upkeep
from tasks_app.pool.tables import PENDING

CALLED = {"rescue": RESCUE, "sweep": SWEEP, "partitions": MAINTAIN}
"""What is called once a minute, by the duty."""
FIRE = "schedule "
"""How the duty of a job begins that fires one."""
_MARK = "tasks_app "
_STANDING = text(rf"""
    SELECT p.oid\:\:regprocedure\:\:text AS signature, p.proname AS name,
        obj_description(p.oid, 'pg_proc') AS mark
    FROM pg_proc p
    WHERE p.pronamespace = (
        SELECT relnamespace FROM pg_class WHERE oid = CAST(:pending AS regclass))
      AND obj_description(p.oid, 'pg_proc') LIKE '{_MARK}%'
    ORDER BY p.oid
""")
_ALONE = text("SELECT pg_advisory_xact_lock(hashtextextended('tasks_app db-scheduler', 0))")
_HOME = text("""
    SELECT CAST(CAST(c.relnamespace AS regnamespace) AS text) FROM pg_class c
    WHERE c.oid = CAST(:pending AS regclass)
""")


class Installed(StrEnum):
    """How the functions stand."""

    NO = "not installed"
    YES = "installed"
    OTHERWISE = "installed by other code, or with other settings"


def create(
    connection: Connection, settings: Settings, tasks: Sequence[SqlTask] | None = None
) -> None:
    """Make those that are not as they should be; nobody but who makes them may call them.

    A job that runs meanwhile would miss one that is dropped, so those that stand stay.
    ``tasks``: those in SQL that the database carries out.
    """
    connection.execute(_ALONE)
    wanted = {_mark(*each): each for each in _all(connection, settings, tasks).items()}
    standing = set()
    for row in connection.execute(_STANDING, {"pending": PENDING}).all():
        if row.mark in wanted:
            standing.add(row.mark)
        else:
            connection.exec_driver_sql(f"DROP ROUTINE {row.signature}")
    for mark, (signature, definition) in wanted.items():
        if mark in standing:
            continue
        kind = "PROCEDURE" if signature.startswith(f"{RUN}(") else "FUNCTION"
        name = signature.partition("(")[0]
        connection.exec_driver_sql(f"CREATE {kind} {signature} {definition}".replace("%", "%%"))
        connection.exec_driver_sql(f"REVOKE EXECUTE ON ROUTINE {name} FROM PUBLIC")
        connection.exec_driver_sql(f"COMMENT ON ROUTINE {name} IS '{mark}'")


def drop(connection: Connection) -> int:
    """Drop what create() has made, by whatever release; return how many."""
    found = connection.execute(_STANDING, {"pending": PENDING}).all()
    for row in found:
        connection.exec_driver_sql(f"DROP ROUTINE {row.signature}")
    return len(found)


def make_day(connection: Connection) -> None:
    """Make the next missing day of the completed pool: of a new database, today.

    A sweep before it would move rows to where that day then cannot be made.
    """
    connection.execute(text(f"SELECT {MAINTAIN}()"))


def installed(
    connection: Connection, settings: Settings, tasks: Sequence[SqlTask] | None = ()
) -> Installed:
    """Compare what stands with what this code, settings and ``tasks`` would make.

    ``tasks`` None: they are not known here, and what carries them out is left out.
    """
    rows = connection.execute(_STANDING, {"pending": PENDING}).all()
    found = {row.mark for row in rows}
    runs = _runs(rows)
    if not found:
        return Installed.NO
    carried_out = tasks if runs else None
    try:
        wanted = {_mark(*each) for each in _all(connection, settings, carried_out).items()}
    except UnfitStatementError:
        return Installed.OTHERWISE
    same = found >= wanted if tasks is None else found == wanted
    return Installed.YES if same else Installed.OTHERWISE


def carries_out(connection: Connection) -> bool:
    """Whether tasks in SQL are carried out, too."""
    return _runs(connection.execute(_STANDING, {"pending": PENDING}).all())


def home_of(connection: Connection) -> str:
    """Return the schema of the tables."""
    return str(connection.execute(_HOME, {"pending": PENDING}).scalar_one())


def jobs_of(
    home: str, schedules: Sequence[Schedule], now: datetime, *, runs: bool = False
) -> list[CronCall]:
    """Return what is to be called when, whatever the search path; ``runs``: also tasks in SQL."""
    found = {duty: f"SELECT {at_home(home, name)}()" for duty, name in CALLED.items()}
    found |= {"run": f"CALL {at_home(home, RUN)}()"} if runs else {}
    jobs = [CronCall(duty, EVERY_MINUTE, command) for duty, command in found.items()]
    fire, room = at_home(home, FIRED), LONGEST - len(prefix_of(home))
    for each in schedules:
        duty = f"{FIRE}{each.id} {each.name}"[:room]
        jobs.append(
            CronCall(duty, written_for_pg_cron(each.expression), command_of(each, fire, now))
        )
    return jobs


def _runs(standing: Sequence[Any]) -> bool:
    return RUN.rpartition(".")[2] in {row.name for row in standing}


def _all(
    connection: Connection, settings: Settings, tasks: Sequence[SqlTask] | None
) -> dict[str, str]:
    found = {**FIRING, **upkeep(settings)}
    if tasks is not None:
        found |= running(connection, settings, tasks, home_of(connection))
    return found


def _mark(signature: str, definition: str) -> str:
    return _MARK + sha256(f"{signature}{definition}".encode()).hexdigest()[:16]
