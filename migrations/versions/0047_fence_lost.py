"""How a settle fails whose run has lost its claim: by an error that the server's log explains."""

from __future__ import annotations

from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"


def upgrade() -> None:
    op.execute("""
    CREATE FUNCTION task_fence_lost(id bigint) RETURNS text LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'task %: another attempt owns it, nothing of this one is kept', id
            USING ERRCODE = 'TA002';
    END $$
    """)


def downgrade() -> None:
    op.execute("DROP FUNCTION task_fence_lost(bigint)")
