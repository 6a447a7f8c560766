-- Calendars, schedules, and what became of each instant.

CREATE TABLE task_calendar (  -- Days on which windows do not open.
    name text   PRIMARY KEY CHECK (name ~ '^[A-Za-z_][A-Za-z0-9_.-]{0,99}$'),  -- The name that windows use.
    days date[] NOT NULL,  -- The days.
    CONSTRAINT days_are_readable CHECK ((('0001-01-01'::date <= ALL (days)) AND ('9999-12-31'::date >= ALL (days))) IS TRUE AND
        COALESCE(array_ndims(days), 1) = 1)
);

CREATE TABLE task_schedule (  -- One row for each schedule. Change it with tasks-app schedules or from Python: next_run_at and look_at must be
        -- computed anew from what they depend on.
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- Stands in schedule_id of its tasks.
    name            text        NOT NULL UNIQUE,  -- The unique name of the schedule.
    task            text        NOT NULL,  -- The name of its tasks.
    queue           text        NOT NULL DEFAULT 'default',  -- The queue of its tasks.
    priority        smallint    NOT NULL DEFAULT 5,  -- The priority of its tasks.
    payload         jsonb       NOT NULL DEFAULT '{}',  -- The payload of its tasks.
    options         jsonb       NOT NULL DEFAULT '{}',  -- What else its tasks have: keys, retry policy, limits, headers.
    kind            text        NOT NULL,  -- cron, every or once.
    expression      text        NOT NULL,  -- A cron expression, a duration or an instant.
    zone            text        NOT NULL DEFAULT 'UTC',  -- The time zone in which a cron expression is read.
    missed          text        NOT NULL DEFAULT 'fire_once',  -- What becomes of instants that were missed: skip, fire_once or fire_all(100, 1d).
    overlap         text        NOT NULL DEFAULT 'allow',  -- What happens while the task before still waits or runs: allow, skip, queue or replace.
    jitter          interval    NOT NULL DEFAULT '00:00:00',  -- Its tasks become due up to so much after the instant.
    starts_at       timestamptz,  -- There is no instant before this one.
    ends_at         timestamptz,  -- There is no instant after this one.
    enabled         boolean     NOT NULL DEFAULT true,  -- False: the schedule does not fire.
    next_run_at     timestamptz,  -- The next instant. Null: there is none, or the schedule is disabled.
    look_at         timestamptz,  -- When the scan looks at the row next. Earlier than next_run_at while an instant is queued.
    queued_at       timestamptz,  -- The instant whose task is made when the task before is over.
    last_run_at     timestamptz,  -- The newest instant that made a task.
    last_task_id    bigint,  -- The task of that instant.
    last_outcome    text,  -- Of the newest instant: made, queued, skipped, replaced, missed or broken.
    remark          text,  -- Why the schedule is broken.
    forgotten_until timestamptz,  -- The fires up to this instant are pruned; a backfill does not go back before it.
    declared        jsonb,  -- What the code declared last. Null: an operator made the schedule.
    declared_in     text,  -- The module that declares it.
    retired         boolean     NOT NULL DEFAULT false,  -- True: that module declares it no longer.
    changed_by      text        NOT NULL DEFAULT CURRENT_USER,  -- The database role that changed it last.
    changed_at      timestamptz NOT NULL DEFAULT statement_timestamp(),  -- When it was changed last.
    created_at      timestamptz NOT NULL DEFAULT statement_timestamp(),  -- When it was made.
    CONSTRAINT moments_are_readable CHECK (LEAST(created_at, changed_at, starts_at, ends_at, next_run_at, look_at, last_run_at, queued_at,
        forgotten_until) >= '1900-01-01 00:00:00+00' AND GREATEST(created_at, changed_at, starts_at, ends_at, next_run_at, look_at, last_run_at,
        queued_at, forgotten_until) < '9900-01-01 00:00:00+00'),
    CONSTRAINT names_are_valid CHECK (octet_length(name) <= 255 AND name ~ '^[A-Za-z_][A-Za-z0-9_.:-]*$' AND octet_length(task) <= 255 AND task ~
        '^[A-Za-z_][A-Za-z0-9_.:-]*$' AND octet_length(queue) <= 100 AND queue ~ '^[A-Za-z_][A-Za-z0-9_.-]*$'),
    CONSTRAINT payload_and_options_are_objects CHECK (jsonb_typeof(payload) = 'object' AND pg_column_size(payload) <= 8388608 AND
        jsonb_typeof(options) = 'object'),
    CONSTRAINT policies_are_known CHECK ((kind IN ('cron', 'every', 'once')) AND length(expression) <= 255 AND ((missed IN ('skip', 'fire_once')) OR
        missed ~~ 'fire\_all%') AND (overlap IN ('allow', 'skip', 'queue', 'replace')) AND jitter BETWEEN '00:00:00' AND '1 day' AND starts_at <=
        ends_at),
    CONSTRAINT priority_is_0_to_9 CHECK (priority BETWEEN 0 AND 9)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100, vacuum_truncate = off);
CREATE INDEX task_schedule_look ON task_schedule (look_at) WHERE enabled;

CREATE TABLE task_schedule_fire (  -- What became of each instant of a schedule, for 30 days. The primary key makes at most one task of an instant. Do
        -- not delete rows by hand: a backfill would make their tasks again.
    schedule_id bigint      NOT NULL REFERENCES task_schedule(id) ON DELETE CASCADE,  -- The schedule. Its rows here go with it.
    fire_at     timestamptz NOT NULL,  -- The instant.
    outcome     text        NOT NULL,  -- made, queued, skipped or replaced.
    task_id     bigint,  -- The task that was made.
    fired_at    timestamptz NOT NULL DEFAULT statement_timestamp(),  -- When this row was written.
    PRIMARY KEY (schedule_id, fire_at),
    CONSTRAINT only_what_was_made_has_a_task CHECK (task_id IS NULL OR outcome = 'made')
);
CREATE INDEX task_schedule_fire_fired ON task_schedule_fire (fired_at);
CREATE UNIQUE INDEX task_schedule_fire_task ON task_schedule_fire (schedule_id, task_id) WHERE task_id IS NOT NULL;

CREATE VIEW task_schedules AS  -- The schedules, in a view for people.
SELECT name, task, queue, kind, expression, zone, enabled,
    next_run_at,  -- The next instant.
    last_run_at,
    last_outcome,  -- What became of the newest instant.
    last_task_id,  -- The task of the newest instant that made one.
    missed,  -- What becomes of instants that were missed.
    overlap,
    remark, declared_in, changed_by, changed_at
FROM task_schedule;
