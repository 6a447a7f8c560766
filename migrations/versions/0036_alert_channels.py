"""Alerts: which channels took a message, so that one that did not gets it alone later.

Code of 0.1.0 neither reads nor writes the table.
"""

from __future__ import annotations

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

COMMENTS = {
    "opened_to": "Which channels took the message that it began: log, webhook, mail.",
    "closed_to": "Which channels took the message that it is over.",
    "tries": """How often its message was reserved. Each refusal doubles the wait, up to ten
        minutes.""",
}


def upgrade() -> None:
    op.execute("""
    ALTER TABLE task_alert
        ADD COLUMN opened_to text[] NOT NULL DEFAULT '{}',
        ADD COLUMN closed_to text[] NOT NULL DEFAULT '{}',
        ADD COLUMN tries smallint NOT NULL DEFAULT 0
    """)
    for column, comment in COMMENTS.items():
        words = " ".join(comment.split()).replace("'", "''")
        op.execute(f"COMMENT ON COLUMN task_alert.{column} IS '{words}'")


def downgrade() -> None:
    op.execute("ALTER TABLE task_alert DROP COLUMN opened_to, DROP closed_to, DROP tries")
