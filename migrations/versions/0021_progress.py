"""Progress: what a run keeps for the next attempt, and how far it is, committed with its effects.

Beside the pools: most tasks have none, and what a running task writes must not touch their rows.
"""

from __future__ import annotations

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
    CREATE TABLE task_progress (
        task_id    bigint      PRIMARY KEY,
        checkpoint jsonb       CHECK (jsonb_typeof(checkpoint) = 'object'),
        fraction   real        CHECK (fraction BETWEEN 0 AND 1),
        note       text,
        at         timestamptz NOT NULL DEFAULT statement_timestamp()
    ) WITH (
        fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05,
        vacuum_truncate = off
    )
    """)


def downgrade() -> None:
    op.execute("DROP TABLE task_progress")
