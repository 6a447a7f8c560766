"""How long tasks of a name take, as the workers learned it, for whoever makes messages."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
    CREATE TABLE task_pace (
        name       text             PRIMARY KEY,
        run_s      double precision NOT NULL CHECK (run_s >= 0),
        updated_at timestamptz      NOT NULL DEFAULT statement_timestamp()
    )
    """)


def downgrade() -> None:
    op.execute("DROP TABLE task_pace")
