"""The index of tasks that leave without having run: disabled ones, and those that may expire.

By the instant from which on they may be swept, so that they are found wherever they stand: behind
a gate, in a queue that stands still or that nobody serves, or deep in a backlog.
"""

from __future__ import annotations

from alembic import op

from tasks_app.pool.build_index import build_index

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    build_index(
        "task_pending_barred",
        "task_pending",
        """((CASE WHEN enabled THEN greatest(due_at, expires_at) ELSE due_at END))
        WHERE state = 'PENDING' AND (NOT enabled OR expires_at IS NOT NULL)""",
    )


def downgrade() -> None:
    op.execute("DROP INDEX task_pending_barred")
