"""Fingerprints of errors: what has one cause has one, so that the error pool can be grouped.

Rows that exist have none; ``tasks-app errors fill`` gives them theirs, some at a time. Code of
0.1.0 goes on writing rows without.
"""

from __future__ import annotations

from alembic import op

from tasks_app.pool.build_index import build_index

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

INDEX = "task_error_fingerprint"
COMMENTS = {
    "COLUMN task_error.fingerprint": """8 bytes: the same for errors of one class, place in the
        user's code and message without its values. Null: it was written by older code.""",
    "COLUMN task_attempt.fingerprint": """As in task_error. Null: it was written by older code.""",
    "TABLE task_fingerprint": """One row for each cause of errors that somebody has entered or
        marked as known. Deleting rows loses marks and first sightings, nothing else.""",
    "COLUMN task_fingerprint.fingerprint": "As in task_error.",
    "COLUMN task_fingerprint.kind": "Class of the exception, or a word of ours.",
    "COLUMN task_fingerprint.message": "The message without its values.",
    "COLUMN task_fingerprint.frames": """Frames of the user's code as module:function, the
        innermost last.""",
    "COLUMN task_fingerprint.first_at": "When the first task of it failed, as far as is known.",
    "COLUMN task_fingerprint.known_by": "Who marked it as known. Null: nobody.",
    "COLUMN task_fingerprint.known_until": "When the mark ends by itself. Null: never.",
    "COLUMN task_fingerprint.note": "What whoever marked it said.",
}


def upgrade() -> None:
    """Again from its beginning, if the building of the index was cut off."""
    op.execute("ALTER TABLE task_error ADD COLUMN IF NOT EXISTS fingerprint bytea")
    op.execute("ALTER TABLE task_attempt ADD COLUMN IF NOT EXISTS fingerprint bytea")
    op.execute("""
    CREATE TABLE IF NOT EXISTS task_fingerprint (
        fingerprint bytea       NOT NULL CHECK (length(fingerprint) = 8),
        kind        text        NOT NULL,
        message     text        NOT NULL,
        frames      text[]      NOT NULL DEFAULT '{}',
        first_at    timestamptz NOT NULL DEFAULT statement_timestamp(),
        known_by    text,
        known_until timestamptz,
        note        text,
        CONSTRAINT task_fingerprint_pkey PRIMARY KEY (fingerprint))
    """)
    for what, comment in COMMENTS.items():
        words = " ".join(comment.split()).replace("'", "''")
        op.execute(f"COMMENT ON {what} IS '{words}'")
    build_index(INDEX, "task_error", "(fingerprint, finished_at DESC)")


def downgrade() -> None:
    op.execute(f"DROP INDEX {INDEX}")
    op.execute("DROP TABLE task_fingerprint")
    op.execute("ALTER TABLE task_error DROP COLUMN fingerprint")
    op.execute("ALTER TABLE task_attempt DROP COLUMN fingerprint")
