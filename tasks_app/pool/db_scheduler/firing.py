"""How pg_cron fires: a job for each schedule, at its own cron expression, that calls one function.

Nothing here reads an expression: pg_cron does, and Python gives the numbers that it names. They
say which instant a run is for that starts late, and which one follows.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from tasks_app.domain.schedules.cron import NUMBERED, numbers_of
from tasks_app.domain.schedules.misfire import ON_TIME, MisfirePolicy
from tasks_app.domain.schedules.overlap import Fired, Overlap
from tasks_app.domain.schedules.pg_cron import MISSED, OPTIONS, OVERLAPS, offset_of
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.domain.schedules.timing import TimingKind
from tasks_app.pool.connection.planner import IN_FUNCTION
from tasks_app.pool.db_scheduler.upkeep import literal
from tasks_app.pool.schedules.fire import NEWEST
from tasks_app.pool.tables import FIRE, PENDING, SCHEDULE, table

FIRED, NEAR = table("task_fire_schedule"), table("task_instants_near")
_OWN = FIRED.rpartition(".")[2]
"""What its parameters are named by, beside columns."""
_NAMED = "".join(f", {each} integer[] DEFAULT NULL" for each in NUMBERED)
_GIVEN = ", ".join((*NUMBERED, "either", "ahead"))


def command_of(schedule: Schedule, name: str, now: datetime) -> str:
    """Return the command that fires it; ``name``: of the function, with its schema."""
    named, either = numbers_of(schedule.expression)
    given = [literal(each) for each in (schedule.name, schedule.expression, schedule.zone)]
    for field, numbers in named.items():
        given.append(f"{field} => '{{{','.join(map(str, numbers))}}}'")
    if either:
        given.append("either => true")
    if ahead := offset_of(schedule.zone, now):
        given.append(f"ahead => '{ahead // timedelta(minutes=1)} min'")
    return f"SELECT {name}({', '.join(given)})"


FIRING = {
    f"""{NEAR}(clock timestamptz{_NAMED}, either boolean DEFAULT false,
    ahead interval DEFAULT '0', OUT latest timestamptz, OUT following timestamptz)""": """
LANGUAGE plpgsql STABLE AS $$
-- The newest instant since yesterday, and the next one; what is not named is not asked for.
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
{IN_FUNCTION} AS $$
-- Fires the newest instant and returns what became of it. NULL: nothing, since somebody else has
-- fired it, or the schedule is not what it was when its job was entered.
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
            order_skips, fair_key, biz_key, unique_key, order_key, limit_key, more_limit_keys)
        VALUES (s.task, s.payload, s.queue, s.priority, clock, due, due,
            coalesce(s.options -> 'headers', '{{}}') || jsonb_build_object('schedule', s.name,
                'fire_at', to_char(instant, 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"')),
            s.id, coalesce((s.options ->> 'retry_level')::smallint, 0),
            (s.options ->> 'max_attempts')::smallint, s.options ->> 'retry',
            (s.options ->> 'timeout_ms')::integer, (s.options ->> 'hard_timeout_ms')::integer,
            (s.options ->> 'order_skips')::boolean, s.options ->> 'fair_key',
            s.options ->> 'biz_key', s.options ->> 'unique_key', s.options ->> 'order_key',
            s.options ->> 'limit_key', (s.options ->> 'more_limit_keys')::text[])
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
"""Signatures, each with its definition."""
