"""No ledger of messages: the database decides what runs, and a message only wakes."""

from __future__ import annotations

from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None

OLDEST_CODE = "0048"


def upgrade() -> None:
    op.execute("DROP TABLE task_dispatch")


def downgrade() -> None:
    op.execute("""
    CREATE TABLE task_dispatch (
        id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        queue      text        NOT NULL,
        ids        bigint[]    NOT NULL CHECK (cardinality(ids) BETWEEN 1 AND 500),
        created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
        publishes  integer     NOT NULL DEFAULT 1,
        publish_at timestamptz NOT NULL
    )
    """)
