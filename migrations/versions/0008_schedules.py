"""Schedules: what is to be made when, and which instants were fired.

The primary key of ``task_schedule_fire`` is what makes one task at most of one instant, whoever
fires: beats, workers, operators who fill up the past.
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

MOMENTS = (
    "created_at, changed_at, starts_at, ends_at, next_run_at, look_at, last_run_at, queued_at,"
    " forgotten_until"
)


def upgrade() -> None:
    op.execute(f"""
    CREATE TABLE task_schedule (
        id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name            text        NOT NULL UNIQUE,
        task            text        NOT NULL,
        queue           text        NOT NULL DEFAULT 'default',
        priority        smallint    NOT NULL DEFAULT 5,
        payload         jsonb       NOT NULL DEFAULT '{{}}',
        options         jsonb       NOT NULL DEFAULT '{{}}',
        kind            text        NOT NULL,
        expression      text        NOT NULL,
        zone            text        NOT NULL DEFAULT 'UTC',
        missed          text        NOT NULL DEFAULT 'fire_once',
        overlap         text        NOT NULL DEFAULT 'allow',
        jitter          interval    NOT NULL DEFAULT '0',
        starts_at       timestamptz,
        ends_at         timestamptz,
        enabled         boolean     NOT NULL DEFAULT true,
        next_run_at     timestamptz,
        look_at         timestamptz,
        queued_at       timestamptz,
        last_run_at     timestamptz,
        last_task_id    bigint,
        last_outcome    text,
        remark          text,
        forgotten_until timestamptz,
        declared        jsonb,
        declared_in     text,
        retired         boolean     NOT NULL DEFAULT false,
        changed_by      text        NOT NULL DEFAULT current_user,
        changed_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
        created_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
        CONSTRAINT names_are_valid CHECK (
            octet_length(name) <= 255 AND name ~ '^[A-Za-z_][A-Za-z0-9_.:-]*$'
            AND octet_length(task) <= 255 AND task ~ '^[A-Za-z_][A-Za-z0-9_.:-]*$'
            AND octet_length(queue) <= 100 AND queue ~ '^[A-Za-z_][A-Za-z0-9_.-]*$'),
        CONSTRAINT priority_is_0_to_9 CHECK (priority BETWEEN 0 AND 9),
        CONSTRAINT payload_and_options_are_objects CHECK (
            jsonb_typeof(payload) = 'object' AND pg_column_size(payload) <= 8388608
            AND jsonb_typeof(options) = 'object'),
        CONSTRAINT policies_are_known CHECK (
            kind IN ('cron', 'every', 'once') AND length(expression) <= 255
            AND (missed IN ('skip', 'fire_once') OR missed LIKE 'fire\\_all%')
            AND overlap IN ('allow', 'skip', 'queue', 'replace')
            AND jitter BETWEEN '0' AND '1 day' AND starts_at <= ends_at),
        CONSTRAINT moments_are_readable CHECK (
            least({MOMENTS}) >= '1900-01-01Z' AND greatest({MOMENTS}) < '9900-01-01Z')
    ) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100, vacuum_truncate = off)
    """)
    op.execute("CREATE INDEX task_schedule_look ON task_schedule (look_at) WHERE enabled")
    op.execute("""
    CREATE TABLE task_schedule_fire (
        schedule_id bigint      NOT NULL REFERENCES task_schedule ON DELETE CASCADE,
        fire_at     timestamptz NOT NULL,
        outcome     text        NOT NULL,
        task_id     bigint,
        fired_at    timestamptz NOT NULL DEFAULT statement_timestamp(),
        PRIMARY KEY (schedule_id, fire_at),
        CONSTRAINT only_what_was_made_has_a_task CHECK (task_id IS NULL OR outcome = 'made')
    )
    """)
    op.execute("""
    CREATE UNIQUE INDEX task_schedule_fire_task ON task_schedule_fire (schedule_id, task_id)
        WHERE task_id IS NOT NULL
    """)
    op.execute("CREATE INDEX task_schedule_fire_fired ON task_schedule_fire (fired_at)")
    op.execute("""
    CREATE VIEW task_schedules AS
    SELECT name, task, queue, kind, expression, zone, enabled, next_run_at, last_run_at,
        last_outcome, last_task_id, missed, overlap, remark, declared_in, changed_by, changed_at
    FROM task_schedule
    """)


def downgrade() -> None:
    op.execute("DROP VIEW task_schedules")
    op.execute("DROP TABLE task_schedule_fire")
    op.execute("DROP TABLE task_schedule")
