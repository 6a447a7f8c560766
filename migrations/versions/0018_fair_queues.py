"""Fair queues: those whose tasks go by shares of their keys, and the key of a task."""

from __future__ import annotations

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

POOLS = ("task_pending", "task_completed", "task_error")


def upgrade() -> None:
    for pool in POOLS:
        op.execute(f"ALTER TABLE {pool} ADD COLUMN fair_key text")
    op.execute("""
    ALTER TABLE task_pending ADD CONSTRAINT fair_key_has_1_to_255_characters
        CHECK (length(fair_key) BETWEEN 1 AND 255) NOT VALID
    """)
    op.execute("""
    CREATE TABLE task_queue_fair (
        queue      text        PRIMARY KEY,
        weights    jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(weights) = 'object'),
        changed_by text        NOT NULL DEFAULT current_user,
        changed_at timestamptz NOT NULL DEFAULT statement_timestamp()
    )
    """)


def downgrade() -> None:
    op.execute("DROP TABLE task_queue_fair")
    op.execute("ALTER TABLE task_pending DROP CONSTRAINT fair_key_has_1_to_255_characters")
    for pool in POOLS:
        op.execute(f"ALTER TABLE {pool} DROP COLUMN fair_key")
