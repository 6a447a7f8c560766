"""Outages that charge nothing, and breakers that hold back what would meet one.

A task that meets no outage never has these columns written.
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
    ALTER TABLE task_pending
        ADD COLUMN outages smallint,
        ADD COLUMN outage_since timestamptz,
        ADD CONSTRAINT task_pending_outages_check CHECK (outages > 0) NOT VALID,
        ADD CONSTRAINT task_pending_outage_since_check
            CHECK (outage_since BETWEEN '1900-01-01Z' AND '9900-01-01Z') NOT VALID
    """)
    op.execute("""
    CREATE TABLE task_breaker (
        dependency  text        PRIMARY KEY CHECK (dependency ~ '^[A-Za-z_][A-Za-z0-9_.-]{0,99}$'),
        names       text[]      NOT NULL,
        ratio       float8      NOT NULL CHECK (ratio > 0 AND ratio <= 1),
        least       integer     NOT NULL CHECK (least > 0),
        "window"    interval    NOT NULL CHECK ("window" BETWEEN '1 s' AND '1 day'),
        open_for    interval    NOT NULL CHECK (open_for BETWEEN '1 s' AND '1 day'),
        probes      integer     NOT NULL CHECK (probes BETWEEN 1 AND 1000),
        state       text        NOT NULL DEFAULT 'closed'
            CHECK (state IN ('closed', 'open', 'probing', 'ramping')),
        mode        text        NOT NULL DEFAULT 'auto' CHECK (mode IN ('auto', 'open', 'closed')),
        since       timestamptz NOT NULL DEFAULT statement_timestamp(),
        look_at     timestamptz,
        let_through integer     NOT NULL DEFAULT 0,
        let_at      timestamptz,
        reason      text        NOT NULL DEFAULT ''
    )
    """)
    op.execute("""
    CREATE TABLE task_breaker_count (
        dependency text        NOT NULL REFERENCES task_breaker ON DELETE CASCADE,
        at         timestamptz NOT NULL,
        good       integer     NOT NULL,
        bad        integer     NOT NULL,
        PRIMARY KEY (dependency, at)
    )
    """)
    # Beside the pool, so that plain tasks have no index more.
    op.execute("""
    CREATE TABLE task_breaker_held (
        dependency text     NOT NULL REFERENCES task_breaker ON DELETE CASCADE,
        let        boolean  NOT NULL DEFAULT false,
        priority   smallint NOT NULL,
        task_id    bigint   NOT NULL,
        PRIMARY KEY (dependency, let, priority, task_id)
    )
    """)


def downgrade() -> None:
    op.execute("DROP TABLE task_breaker_held")
    op.execute("DROP TABLE task_breaker_count")
    op.execute("DROP TABLE task_breaker")
    op.execute("ALTER TABLE task_pending DROP COLUMN outages, DROP COLUMN outage_since")
