"""The index of tasks that leave without having run: disabled ones, and those that may expire.

By the instant from which on they may be swept, so that they are found wherever they stand: behind
a gate, in a queue that stands still or that nobody serves, or deep in a backlog.
"""

from __future__ import annotations

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("""
    CREATE INDEX IF NOT EXISTS task_pending_barred
        ON task_pending ((CASE WHEN enabled THEN greatest(due_at, expires_at) ELSE due_at END))
        WHERE state = 'PENDING' AND (NOT enabled OR expires_at IS NOT NULL)
    """)


def downgrade() -> None:
    op.execute("DROP INDEX task_pending_barred")
