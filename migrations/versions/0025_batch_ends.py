"""The index by which instances of batch jobs are found that are over for long, or not over."""

from __future__ import annotations

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("CREATE INDEX IF NOT EXISTS task_batch_ended ON task_batch (ended_at)")


def downgrade() -> None:
    op.execute("DROP INDEX task_batch_ended")
