"""The index by which instances of batch jobs are found that are over for long, or not over."""

from __future__ import annotations

from alembic import op

from tasks_app.pool.build_index import build_index

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    build_index("task_batch_ended", "task_batch", "(ended_at)")


def downgrade() -> None:
    op.execute("DROP INDEX task_batch_ended")
