"""Batch jobs: instances, their steps, and the rows that were skipped.

An instance is a job with its parameters: there is one that goes on or is complete. One that was
abandoned makes room for another.
"""

from __future__ import annotations

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

CHURN = "autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1"


def upgrade() -> None:
    op.execute(f"""
    CREATE TABLE task_batch (
        id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        job        text        NOT NULL CHECK (length(job) BETWEEN 1 AND 100),
        identity   text        NOT NULL,
        params     jsonb       NOT NULL DEFAULT '{{}}' CHECK (jsonb_typeof(params) = 'object'),
        status     text        NOT NULL DEFAULT 'RUNNING' CHECK (status IN
            ('RUNNING', 'STOPPING', 'STOPPED', 'FAILED', 'COMPLETED', 'ABANDONED')),
        run        integer     NOT NULL DEFAULT 1 CHECK (run >= 1),
        created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
        started_at timestamptz NOT NULL DEFAULT statement_timestamp(),
        ended_at   timestamptz,
        error      text,
        CONSTRAINT ended_or_not CHECK (
            (ended_at IS NULL) = (status IN ('RUNNING', 'STOPPING')))
    ) WITH (fillfactor = 70, {CHURN})
    """)
    op.execute("""
    CREATE UNIQUE INDEX task_batch_instance ON task_batch (job, identity)
        WHERE status <> 'ABANDONED'
    """)
    op.execute(f"""
    CREATE TABLE task_batch_step (
        batch_id   bigint      NOT NULL REFERENCES task_batch ON DELETE CASCADE,
        step       text        NOT NULL,
        status     text        NOT NULL DEFAULT 'WAITING' CHECK (status IN
            ('WAITING', 'PLANNING', 'RUNNING', 'COMPENSATING', 'REDUCING',
             'COMPLETED', 'FAILED', 'STOPPED')),
        run        integer     NOT NULL DEFAULT 1,
        round      integer     NOT NULL DEFAULT 0,
        plan       jsonb,
        result     jsonb,
        started_at timestamptz,
        ended_at   timestamptz,
        error      text,
        PRIMARY KEY (batch_id, step)
    ) WITH (fillfactor = 70, {CHURN})
    """)
    op.execute("""
    CREATE TABLE task_batch_skip (
        id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        batch_id     bigint      NOT NULL REFERENCES task_batch ON DELETE CASCADE,
        step         text        NOT NULL,
        partition_no integer     NOT NULL,
        key          text        NOT NULL CHECK (length(key) <= 255),
        reason       text        NOT NULL,
        at           timestamptz NOT NULL DEFAULT statement_timestamp()
    )
    """)
    op.execute("CREATE INDEX task_batch_skip_step ON task_batch_skip (batch_id, step, id)")


def downgrade() -> None:
    for table in ("task_batch_skip", "task_batch_step", "task_batch"):
        op.execute(f"DROP TABLE {table}")
