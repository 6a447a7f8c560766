"""Encrypted tasks: the token of an attempt's message, and why a task waits for a key.

Payloads and results are encrypted where they stand, as JSON. Code of 0.1.0 writes neither; what it
finds encrypted it hands to handlers as it is, so encrypt when all workers are new.
"""

from __future__ import annotations

from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

KINDS = "'order', 'queue', 'name', 'key', 'breaker', 'let_through', 'handler'"
COMMENTS = {
    "task_attempt.encrypted_message": """The message, where task and error are encrypted: as
        v1.<key id>.<base64>. The column message then says that it is.""",
}


def upgrade() -> None:
    op.execute("ALTER TABLE task_attempt ADD COLUMN encrypted_message text")
    _kinds(f"{KINDS}, 'encryption'")
    for column, comment in COMMENTS.items():
        words = " ".join(comment.split()).replace("'", "''")
        op.execute(f"COMMENT ON COLUMN {column} IS '{words}'")


def downgrade() -> None:
    """What waits for a key is looked at again; the texts of encrypted errors are lost."""
    op.execute("""
    UPDATE task_pending SET parked = NULL, parked_kind = NULL, parked_for = NULL
    WHERE state = 'PENDING' AND parked_kind = 'encryption'
    """)
    _kinds(KINDS)
    op.execute("ALTER TABLE task_attempt DROP COLUMN encrypted_message")


def _kinds(kinds: str) -> None:
    """No row is looked at: all satisfy the new form, and the lock is held for a moment."""
    op.execute(f"""
    ALTER TABLE task_pending DROP CONSTRAINT IF EXISTS parked_kind_is_known,
        ADD CONSTRAINT parked_kind_is_known CHECK (parked_kind IN ({kinds})) NOT VALID
    """)
