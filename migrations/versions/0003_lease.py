"""Who leads: one row for each duty that one process at a time does for all."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
    CREATE TABLE task_lease (
        name       text        PRIMARY KEY,
        holder     text        NOT NULL,
        token      uuid        NOT NULL,
        rank       smallint    NOT NULL,
        held_since timestamptz NOT NULL DEFAULT statement_timestamp(),
        held_until timestamptz,
        done_at    timestamptz,
        notes      jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(notes) = 'object')
    ) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100, vacuum_truncate = off)
    """)


def downgrade() -> None:
    op.execute("DROP TABLE task_lease")
