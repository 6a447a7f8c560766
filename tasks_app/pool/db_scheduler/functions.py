"""The functions of the database as scheduler: created, compared with this code, dropped."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.schedules.cron import NUMBERED, numbers_of
from tasks_app.domain.schedules.misfire import ON_TIME, Fired, MisfirePolicy, Overlap
from tasks_app.domain.schedules.pg_cron import (
    MISSED,
    OPTIONS,
    OVERLAPS,
    offset_of,
    written_for_pg_cron,
)
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.domain.schedules.timing import TimingKind
from tasks_app.pool.connection.sessions import PLANNER_SETTINGS_OF_FUNCTION
from tasks_app.pool.db_scheduler.jobs import EVERY_MINUTE, LONGEST, CronCall, prefix_of
from tasks_app.pool.db_scheduler.running import RUN, SqlTask, UnfitStatementError, at_home, running
from tasks_app.pool.db_scheduler.upkeep import MAINTAIN, RESCUE, SWEEP, literal, upkeep
from tasks_app.pool.scheduling import NEWEST
from tasks_app.pool.tables import FIRE, PENDING, SCHEDULE, table

# The functions that are called once a minute, by the duty.
CALLED = {"rescue": RESCUE, "sweep": SWEEP, "partitions": MAINTAIN}
FIRE_JOB_PREFIX = "schedule "  # of the duty of a job that fires a schedule
_MARK = "tasks_app "


class Installed(StrEnum):
    NO = "not installed"
    YES = "installed"
    OTHERWISE = "installed by other code, or with other settings"


def create(
    connection: Connection, settings: Settings, tasks: Sequence[SqlTask] | None = None
) -> None:
    """Create the functions that are missing or differ; only their owner may call them.

    Those that do not differ stay, since a job that runs meanwhile would miss them. ``tasks``: the
    SQL tasks that the database runs.
    """
    query = text("SELECT pg_advisory_xact_lock(hashtextextended('tasks_app db-scheduler', 0))")
    connection.execute(query)
    wanted = {_mark(*each): each for each in _all(connection, settings, tasks).items()}
    standing = set()
    for row in _standing(connection):
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
    found = _standing(connection)
    for row in found:
        connection.exec_driver_sql(f"DROP ROUTINE {row.signature}")
    return len(found)


def create_day_partition(connection: Connection) -> None:
    """Create the next missing day partition; a sweep before would fill the default one."""
    connection.execute(text(f"SELECT {MAINTAIN}()"))


def installed(
    connection: Connection, settings: Settings, tasks: Sequence[SqlTask] | None = ()
) -> Installed:
    """Compare the functions with those that this code, settings and ``tasks`` would create.

    ``tasks`` None: they are not known here, and the functions that run them do not count.
    """
    rows = _standing(connection)
    found = {row.mark for row in rows}
    if not found:
        return Installed.NO
    expected = tasks if _runs(rows) else None
    try:
        wanted = {_mark(*each) for each in _all(connection, settings, expected).items()}
    except UnfitStatementError:
        return Installed.OTHERWISE
    same = found >= wanted if tasks is None else found == wanted
    return Installed.YES if same else Installed.OTHERWISE


def runs_sql_tasks(connection: Connection) -> bool:
    return _runs(_standing(connection))


def home_of(connection: Connection) -> str:
    query = text("""
        SELECT CAST(CAST(c.relnamespace AS regnamespace) AS text) FROM pg_class c
        WHERE c.oid = CAST(:pending AS regclass)
    """)
    return str(connection.execute(query, {"pending": PENDING}).scalar_one())


def jobs_of(
    home: str, schedules: Sequence[Schedule], now: datetime, *, runs: bool = False
) -> list[CronCall]:
    """Return the calls, for any search path; ``runs``: also of SQL tasks."""
    found = {duty: f"SELECT {at_home(home, name)}()" for duty, name in CALLED.items()}
    found |= {"run": f"CALL {at_home(home, RUN)}()"} if runs else {}
    jobs = [CronCall(duty, EVERY_MINUTE, command) for duty, command in found.items()]
    fire, room = at_home(home, FIRED), LONGEST - len(prefix_of(home))
    for each in schedules:
        duty = f"{FIRE_JOB_PREFIX}{each.id} {each.name}"[:room]
        when = written_for_pg_cron(each.expression)
        jobs.append(CronCall(duty, when, command_of(each, fire, now)))
    return jobs


def _standing(connection: Connection) -> Sequence[Any]:
    query = text(rf"""
        SELECT p.oid\:\:regprocedure\:\:text AS signature, p.proname AS name,
            obj_description(p.oid, 'pg_proc') AS mark
        FROM pg_proc p
        WHERE p.pronamespace = (
            SELECT relnamespace FROM pg_class WHERE oid = CAST(:pending AS regclass))
          AND obj_description(p.oid, 'pg_proc') LIKE '{_MARK}%'
        ORDER BY p.oid
    """)
    return connection.execute(query, {"pending": PENDING}).all()


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


FIRED, NEAR = table("task_fire_schedule"), table("task_instants_near")
_OWN = FIRED.rpartition(".")[2]  # qualifies its parameters, beside columns
_NAMED = "".join(f", {each} integer[] DEFAULT NULL" for each in NUMBERED)
_GIVEN = ", ".join((*NUMBERED, "either", "ahead"))


def command_of(schedule: Schedule, name: str, now: datetime) -> str:
    named, either = numbers_of(schedule.expression)
    given = [literal(each) for each in (schedule.name, schedule.expression, schedule.zone)]
    for field, numbers in named.items():
        given.append(f"{field} => '{{{','.join(map(str, numbers))}}}'")
    if either:
        given.append("either => true")
    if ahead := offset_of(schedule.zone, now):
        given.append(f"ahead => '{ahead // timedelta(minutes=1)} min'")
    return f"SELECT {name}({', '.join(given)})"


# Signatures, each with its definition.
FIRING = {
    f"""{NEAR}(clock timestamptz{_NAMED}, either boolean DEFAULT false,
    ahead interval DEFAULT '0', OUT latest timestamptz, OUT following timestamptz)""": """
LANGUAGE plpgsql STABLE AS $$
-- The newest instant since yesterday, and the next one; a field that is NULL fits always.
DECLARE
    hands timestamp := (clock AT TIME ZONE 'UTC') + ahead;
    day date := hands::date - 1;
    this_day boolean; this_weekday boolean;
    newest timestamp; coming timestamp;
BEGIN
    WHILE following IS NULL AND day < hands::date + 366 * 50 LOOP
        this_day := coalesce(EXTRACT(DAY FROM day)::integer = ANY (days), true);
        this_weekday := coalesce(EXTRACT(DOW FROM day)::integer = ANY (weekdays), true);
        IF coalesce(EXTRACT(MONTH FROM day)::integer = ANY (months), true)
            AND (this_day AND this_weekday OR either AND (this_day OR this_weekday))
        THEN
            SELECT max(t.at) FILTER (WHERE t.at <= hands), min(t.at) FILTER (WHERE t.at > hands)
            INTO newest, coming
            FROM (
                SELECT day + make_interval(hours => h.n, mins => m.n) AS at
                FROM unnest(coalesce(hours, ARRAY(SELECT generate_series(0, 23)))) AS h(n),
                    unnest(coalesce(minutes, ARRAY(SELECT generate_series(0, 59)))) AS m(n)) AS t;
            latest := coalesce((newest - ahead) AT TIME ZONE 'UTC', latest);
            following := (coming - ahead) AT TIME ZONE 'UTC';
        END IF;
        day := day + 1;
    END LOOP;
END $$""",
    f"""{FIRED}(schedule text, expression text, zone text{_NAMED},
    either boolean DEFAULT false, ahead interval DEFAULT '0', at timestamptz DEFAULT NULL)""": f"""
RETURNS text LANGUAGE plpgsql SET search_path FROM CURRENT SET timezone TO 'UTC'
{PLANNER_SETTINGS_OF_FUNCTION} AS $$
-- Fires the newest instant and returns its outcome. NULL: it was fired already, or the schedule has
-- changed since its job was entered.
DECLARE
    clock timestamptz := coalesce(at, statement_timestamp());
    s {SCHEDULE}; instant timestamptz; following timestamptz;
    what text; made bigint; due timestamptz; said text;
BEGIN
    SELECT x.* INTO s FROM {SCHEDULE} x
    WHERE x.name = schedule AND x.kind = '{TimingKind.CRON}' AND x.enabled
      AND x.expression = {_OWN}.expression AND x.zone = {_OWN}.zone
      AND x.overlap IN ('{"', '".join(OVERLAPS)}') AND x.missed IN ('{"', '".join(MISSED)}')
      AND x.options - ARRAY['{"', '".join(sorted(OPTIONS))}'] = '{{}}'
    FOR NO KEY UPDATE;
    SELECT n.latest, n.following INTO instant, following
    FROM {NEAR}(least(clock, s.ends_at), {_GIVEN}) AS n;
    IF (s.next_run_at <= instant) IS NOT TRUE THEN
        RETURN NULL;
    END IF;
    IF following > s.ends_at THEN
        following := NULL;
    END IF;
    IF s.missed = '{MisfirePolicy.SKIP}' AND instant < clock - {literal(ON_TIME)} THEN
        what := '{Fired.MISSED}';
    ELSE
        what := CASE WHEN s.overlap = '{Overlap.SKIP}' AND EXISTS (
            SELECT FROM (
                SELECT f.task_id FROM {FIRE} f
                WHERE f.schedule_id = s.id AND f.task_id IS NOT NULL
                ORDER BY f.task_id DESC LIMIT {NEWEST}) AS f
            JOIN {PENDING} p ON p.id = f.task_id) THEN '{Fired.SKIPPED}' ELSE '{Fired.MADE}' END;
        INSERT INTO {FIRE} (schedule_id, fire_at, outcome, fired_at)
        VALUES (s.id, instant, what, clock) ON CONFLICT (schedule_id, fire_at) DO NOTHING;
        IF NOT FOUND THEN
            what := NULL;
        END IF;
    END IF;
    IF what = '{Fired.MADE}' THEN
        due := clock + s.jitter * random() + make_interval(
            secs => coalesce((s.options ->> 'delay_s')::double precision, 0));
        INSERT INTO {PENDING} AS p (name, payload, queue, priority, created_at, due_at, scan_at,
            headers, schedule_id, retry_level, max_attempts, retry, timeout_ms, hard_timeout_ms,
            order_skips, fair_key, biz_key, unique_key, order_key, limit_key, more_limit_keys,
            locks, weight)
        VALUES (s.task, s.payload, s.queue, s.priority, clock, due, due,
            coalesce(s.options -> 'headers', '{{}}') || jsonb_build_object('schedule', s.name,
                'fire_at', to_char(instant, 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"')),
            s.id, coalesce((s.options ->> 'retry_level')::smallint, 0),
            (s.options ->> 'max_attempts')::smallint, s.options ->> 'retry',
            (s.options ->> 'timeout_ms')::integer, (s.options ->> 'hard_timeout_ms')::integer,
            (s.options ->> 'order_skips')::boolean, s.options ->> 'fair_key',
            s.options ->> 'biz_key', s.options ->> 'unique_key', s.options ->> 'order_key',
            s.options ->> 'limit_key', (s.options ->> 'more_limit_keys')::text[],
            (s.options ->> 'locks')::jsonb, (s.options ->> 'weight')::integer)
        ON CONFLICT (name, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
        RETURNING p.id INTO made;
        IF made IS NULL THEN
            what := '{Fired.SKIPPED}';
        END IF;
        UPDATE {FIRE} f SET task_id = made, outcome = what
        WHERE f.schedule_id = s.id AND f.fire_at = instant;
    END IF;
    UPDATE {SCHEDULE} x SET next_run_at = following, remark = NULL,
        look_at = CASE WHEN x.queued_at IS NULL THEN following ELSE x.look_at END,
        last_run_at = CASE WHEN made IS NULL THEN x.last_run_at ELSE instant END,
        last_task_id = coalesce(made, x.last_task_id),
        last_outcome = coalesce(what, x.last_outcome)
    WHERE x.id = s.id;
    RETURN what;
EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
    GET STACKED DIAGNOSTICS said = RETURNED_SQLSTATE;
    UPDATE {SCHEDULE} x SET next_run_at = NULL, look_at = NULL, last_outcome = '{Fired.BROKEN}',
        remark = 'its task cannot be written (SQLSTATE ' || said || ')'
    WHERE x.id = s.id;
    RETURN '{Fired.BROKEN}';
END $$""",
}
