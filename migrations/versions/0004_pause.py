"""Queues that an operator has paused."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
    CREATE TABLE task_queue_pause (
        queue  text        PRIMARY KEY,
        since  timestamptz NOT NULL DEFAULT statement_timestamp(),
        reason text        NOT NULL DEFAULT ''
    )
    """)


def downgrade() -> None:
    op.execute("DROP TABLE task_queue_pause")
