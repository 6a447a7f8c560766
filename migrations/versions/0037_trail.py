"""The trail of a task: its moves, and what its handler logged.

Both tables stay empty until a worker is told to fill them. Code of 0.1.0 neither reads nor writes
them.
"""

from __future__ import annotations

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

COMMENTS = {
    "TABLE task_transition": """One row for each move of a task that the settings ask to be logged.
        Deleting rows loses history, nothing else.""",
    "COLUMN task_transition.id": "Given by the database; lines of one moment share no order.",
    "COLUMN task_transition.task_id": "The task, which may be gone by now.",
    "COLUMN task_transition.at": "When the statement of the move began.",
    "COLUMN task_transition.attempt": "The claim that ended; 0: it was never claimed.",
    "COLUMN task_transition.event": "What happened, as in docs/lifecycle.md.",
    "COLUMN task_transition.from_state": "The state that it left.",
    "COLUMN task_transition.to_state": "The state in which it is since.",
    "COLUMN task_transition.owner": "The child that had claimed it.",
    "COLUMN task_transition.started_at": "When it was claimed.",
    "COLUMN task_transition.due_at": "When it is due again. Null: it does not come back.",
    "COLUMN task_transition.detail": """Class of the exception, or a word of ours; never the text
        of an error, never a payload.""",
    "TABLE task_log": """One row for each attempt whose handler wrote log lines, if they are kept.
        Deleting rows loses lines, nothing else.""",
    "COLUMN task_log.task_id": "The task.",
    "COLUMN task_log.attempt": "Which of its claims.",
    "COLUMN task_log.at": "When the lines were stored.",
    "COLUMN task_log.lines": """Array of [instant, level, text], the last ones of the attempt,
        oldest first.""",
    "COLUMN task_log.cut": "How many lines before them were left out.",
}


def upgrade() -> None:
    op.execute("""
    CREATE TABLE task_transition (
        id         bigint      GENERATED ALWAYS AS IDENTITY,
        task_id    bigint      NOT NULL,
        at         timestamptz NOT NULL DEFAULT statement_timestamp(),
        attempt    integer     NOT NULL,
        event      text        NOT NULL,
        from_state text        NOT NULL,
        to_state   text        NOT NULL,
        owner      text,
        started_at timestamptz,
        due_at     timestamptz,
        detail     text,
        CONSTRAINT task_transition_pkey PRIMARY KEY (id))
    """)
    op.execute("CREATE INDEX task_transition_task ON task_transition (task_id)")
    op.execute("""
    CREATE TABLE task_log (
        task_id bigint      NOT NULL,
        attempt integer     NOT NULL,
        at      timestamptz NOT NULL DEFAULT statement_timestamp(),
        lines   jsonb       NOT NULL,
        cut     integer     NOT NULL DEFAULT 0,
        CONSTRAINT task_log_pkey PRIMARY KEY (task_id, attempt))
    """)
    for what, comment in COMMENTS.items():
        words = " ".join(comment.split()).replace("'", "''")
        op.execute(f"COMMENT ON {what} IS '{words}'")


def downgrade() -> None:
    op.execute("DROP TABLE task_log")
    op.execute("DROP TABLE task_transition")
