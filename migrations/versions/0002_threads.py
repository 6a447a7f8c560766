"""A child that is a pool of threads says how many: the scan sends it as many messages."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One small table, and a default that PostgreSQL does not write into its rows."""
    op.execute("ALTER TABLE task_worker ADD COLUMN threads integer NOT NULL DEFAULT 1")


def downgrade() -> None:
    op.execute("ALTER TABLE task_worker DROP COLUMN threads")
