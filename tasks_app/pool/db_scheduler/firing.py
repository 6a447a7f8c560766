"""How schedules fire, in PL/pgSQL: what ``runtime/schedules/scheduler`` does, by the same key.

A schedule that the database cannot fire as Python does is left to beat or a worker: see UNFIT.
"""

from __future__ import annotations

from tasks_app.domain.schedules.overlap import Fired
from tasks_app.pool.connection.planner import IN_FUNCTION
from tasks_app.pool.db_scheduler.timing import NEXT
from tasks_app.pool.schedules.fire import NEWEST
from tasks_app.pool.tables import FIRE, PENDING, SCHEDULE, table

UNFIT, DUE = table("task_why_not_fired"), table("task_due_instants")
FIRED = table("task_fire_schedules")
_KNOWN = (
    *("retry_level", "max_attempts", "retry", "timeout_ms", "hard_timeout_ms", "order_skips"),
    *("fair_key", "biz_key", "unique_key", "order_key", "limit_key", "delay_s", "headers"),
    "more_limit_keys",
)
_ENTER = f"""
                INSERT INTO {FIRE} AS f (schedule_id, fire_at, outcome, fired_at)
                VALUES (s.id, instant, what, clock)
                ON CONFLICT (schedule_id, fire_at) DO UPDATE
                SET outcome = EXCLUDED.outcome, fired_at = EXCLUDED.fired_at
                WHERE f.outcome = '{Fired.QUEUED}' AND EXCLUDED.outcome <> '{Fired.QUEUED}'"""

FIRING = {
    f"""{UNFIT}(kind text, expression text, zone text, missed text, overlap text,
    options jsonb)""": f"""
RETURNS text LANGUAGE plpgsql STABLE AS $$
-- Why the database does not fire this schedule as Python does; NULL: it does.
DECLARE
    other text;
BEGIN
    IF options ->> 'calendar' IS NOT NULL THEN
        RETURN 'it has days off';
    ELSIF overlap = 'replace' THEN
        RETURN 'overlap=replace cancels tasks';
    ELSIF kind = 'cron' AND expression NOT LIKE '@%'
        AND cardinality(string_to_array(expression, ' ')) <> 5 THEN
        RETURN 'it has seconds, and the database looks once a minute';
    ELSIF kind = 'cron' AND (split_part(expression, ' ', 3) ~* 'L'
        OR split_part(expression, ' ', 5) ~* '[0-9]L|#') THEN
        RETURN 'L and # in a cron expression';
    ELSIF kind = 'every' AND expression::interval < interval '1 minute' THEN
        RETURN 'its interval is below a minute, and the database looks once a minute';
    ELSIF missed ~ '^fire_all[(][0-9]{{4}}' AND missed !~ '^fire_all[(]1000[,)]' THEN
        RETURN 'fire_all of more than 1000';
    END IF;
    SELECT k INTO other FROM jsonb_object_keys(options) AS k
    WHERE k <> ALL (ARRAY['{"', '".join(_KNOWN)}']) LIMIT 1;
    IF other IS NOT NULL THEN
        RETURN 'its option ' || other;
    ELSIF upper(zone) NOT IN ('UTC', 'GMT')
        AND upper(zone) IN (SELECT z.abbrev FROM pg_timezone_abbrevs z) THEN
        RETURN 'its zone ' || zone || ' means something else to PostgreSQL';
    END IF;
    PERFORM now() AT TIME ZONE zone;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RETURN 'it cannot be read: ' || SQLERRM;
END $$""",
    f"""{DUE}(kind text, expression text, zone text, anchor timestamptz,
    missed text, since timestamptz, until timestamptz, clock timestamptz, on_time interval,
    OUT instants timestamptz[], OUT next_at timestamptz)""": f"""
LANGUAGE plpgsql STABLE AS $$
-- What fires now by the misfire policy, and when to look next. 500 at a time.
DECLARE
    tick interval := interval '1 microsecond';
    last timestamptz := least(clock, until);
    first timestamptz := greatest(since, clock - on_time);
    missed_from timestamptz := since;
    missed_to timestamptz := least(first, last + tick);
    policy text[] := regexp_match(missed, '^fire_all(?:[(]([0-9]+)(?:, ?([^)]+))?[)])?$');
    most integer := CASE WHEN policy IS NOT NULL THEN coalesce(policy[1], '100')::integer
        WHEN missed = 'fire_once' THEN 1 ELSE 0 END;
    span interval := on_time;
    chosen timestamptz[] := '{{}}';
    at timestamptz; start timestamptz;
BEGIN
    instants := '{{}}';
    IF policy[2] IS NOT NULL THEN
        missed_from := greatest(missed_from, clock - policy[2]::interval);
    END IF;
    WHILE most > 0 AND missed_from < missed_to LOOP
        start := greatest(missed_from, missed_to - span);
        chosen := '{{}}';
        at := {NEXT}(kind, expression, zone, anchor, start - tick);
        WHILE at < missed_to LOOP
            chosen := chosen || at;
            at := {NEXT}(kind, expression, zone, anchor, at);
        END LOOP;
        EXIT WHEN cardinality(chosen) >= most OR start = missed_from;
        span := span * 4;
    END LOOP;
    chosen := chosen[greatest(1, cardinality(chosen) - most + 1):];
    at := {NEXT}(kind, expression, zone, anchor, first - tick);
    WHILE at <= last LOOP
        instants := instants || at;
        at := {NEXT}(kind, expression, zone, anchor, at);
    END LOOP;
    IF missed <> 'fire_once' OR cardinality(instants) = 0 THEN
        instants := chosen || instants;
    END IF;
    IF cardinality(instants) > 500 THEN
        next_at := instants[501];
        instants := instants[:500];
    ELSE
        next_at := {NEXT}(kind, expression, zone, anchor, clock);
        IF next_at > until THEN
            next_at := NULL;
        END IF;
    END IF;
END $$""",
    f"{FIRED}(at timestamptz DEFAULT NULL, on_time interval DEFAULT interval '2 minutes')": f"""
RETURNS integer LANGUAGE plpgsql SET search_path FROM CURRENT SET timezone TO 'UTC'
{IN_FUNCTION} AS $$
-- Makes the tasks of schedules whose instants have come; returns how many. An instant is on time
-- for as long as beat says, and a minute more: between two looks of the database lies one.
DECLARE
    clock timestamptz := coalesce(at, statement_timestamp());
    s {SCHEDULE};
    instants timestamptz[]; following timestamptz; instant timestamptz; what text; due timestamptz;
    busy boolean; number integer := 0; task bigint; entered boolean;
    queued timestamptz; last_at timestamptz; last_task bigint; last_what text; said text;
BEGIN
    FOR pass IN 1 .. 20 LOOP
        FOR s IN SELECT * FROM {SCHEDULE} x
            WHERE x.enabled AND x.look_at <= clock AND {UNFIT}(
                x.kind, x.expression, x.zone, x.missed, x.overlap, x.options) IS NULL
            ORDER BY x.look_at LIMIT 500 FOR NO KEY UPDATE SKIP LOCKED
        LOOP
            BEGIN
                instants := '{{}}';
                following := s.next_run_at;
                IF s.next_run_at <= clock THEN
                    SELECT d.instants, d.next_at INTO instants, following
                    FROM {DUE}(s.kind, s.expression, s.zone,
                        coalesce(s.starts_at, s.created_at), s.missed, s.next_run_at, s.ends_at,
                        clock, on_time) AS d;
                END IF;
                IF s.queued_at IS NOT NULL THEN
                    instants := s.queued_at || instants;
                END IF;
                busy := s.overlap <> 'allow' AND EXISTS (
                    SELECT FROM (
                        SELECT f.task_id FROM {FIRE} f
                        WHERE f.schedule_id = s.id AND f.task_id IS NOT NULL
                        ORDER BY f.task_id DESC LIMIT {NEWEST}) AS f
                    JOIN {PENDING} p ON p.id = f.task_id);
                queued := NULL; last_at := NULL; last_task := NULL; last_what := NULL;
                FOREACH instant IN ARRAY instants LOOP
                    what := CASE WHEN NOT busy THEN '{Fired.MADE}'
                        WHEN s.overlap = 'queue' AND queued IS NULL THEN '{Fired.QUEUED}'
                        ELSE '{Fired.SKIPPED}' END;
                    busy := s.overlap <> 'allow';
                    IF what = '{Fired.QUEUED}' THEN
                        queued := instant;
                    END IF;
                    {_ENTER.strip()};
                    entered := FOUND;
                    IF what = '{Fired.MADE}' AND entered THEN
                        due := clock + make_interval(
                            secs => coalesce((s.options ->> 'delay_s')::double precision, 0))
                            + s.jitter * random();
                        task := NULL;
                        INSERT INTO {PENDING} AS p (name, payload, queue, priority, created_at,
                            due_at, scan_at, headers, schedule_id, retry_level, max_attempts, retry,
                            timeout_ms, hard_timeout_ms, order_skips, fair_key, biz_key, unique_key,
                            order_key, limit_key, more_limit_keys)
                        VALUES (s.task, s.payload, s.queue, s.priority, clock, due, due,
                            coalesce(s.options -> 'headers', '{{}}') || jsonb_build_object(
                                'schedule', s.name, 'fire_at', to_char(instant,
                                    'YYYY-MM-DD"T"HH24:MI:SS') || CASE
                                    WHEN date_trunc('second', instant) = instant THEN ''
                                    ELSE to_char(instant, '.US') END || '+00:00'),
                            s.id, coalesce((s.options ->> 'retry_level')::smallint, 0),
                            (s.options ->> 'max_attempts')::smallint, s.options ->> 'retry',
                            (s.options ->> 'timeout_ms')::integer,
                            (s.options ->> 'hard_timeout_ms')::integer,
                            (s.options ->> 'order_skips')::boolean, s.options ->> 'fair_key',
                            s.options ->> 'biz_key', s.options ->> 'unique_key',
                            s.options ->> 'order_key', s.options ->> 'limit_key',
                            (s.options ->> 'more_limit_keys')::text[])
                        ON CONFLICT (name, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
                        RETURNING p.id INTO task;
                        IF task IS NULL THEN
                            what := '{Fired.SKIPPED}';
                        ELSE
                            number := number + 1; last_at := instant; last_task := task;
                        END IF;
                        UPDATE {FIRE} f SET task_id = task, outcome = what
                        WHERE f.schedule_id = s.id AND f.fire_at = instant;
                    END IF;
                    IF entered OR what <> '{Fired.MADE}' THEN
                        last_what := what;
                    END IF;
                END LOOP;
                IF cardinality(instants) = 0 THEN
                    last_what := '{Fired.MISSED}';
                END IF;
                UPDATE {SCHEDULE} x SET next_run_at = following, queued_at = queued, remark = NULL,
                    look_at = CASE WHEN queued IS NULL THEN following
                        ELSE least(clock + interval '1 second', following) END,
                    last_run_at = greatest(x.last_run_at, last_at),
                    last_task_id = coalesce(last_task, x.last_task_id),
                    last_outcome = coalesce(last_what, x.last_outcome)
                WHERE x.id = s.id;
            EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
                GET STACKED DIAGNOSTICS said = RETURNED_SQLSTATE;
                UPDATE {SCHEDULE} x SET next_run_at = NULL, look_at = NULL,
                    last_outcome = '{Fired.BROKEN}',
                    remark = 'its task cannot be written (SQLSTATE ' || said || ')'
                WHERE x.id = s.id;
            END;
        END LOOP;
        EXIT WHEN NOT FOUND;
    END LOOP;
    RETURN number;
END $$""",
}
"""Signatures, each with its definition."""
