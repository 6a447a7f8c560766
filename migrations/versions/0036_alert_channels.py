"""Alerts: who took a message, so that who did not gets it alone later; and who looks just now.

Code of 0.1.0 neither reads nor writes these tables.
"""

from __future__ import annotations

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

COMMENTS = {
    "TABLE task_alert_look": """One row: who looks for alerts just now, and when somebody last
        did. Deleting it lets the next one look at once.""",
    "COLUMN task_alert_look.one": "True: there is one row at most.",
    "COLUMN task_alert_look.holder": "Who looks, or looked last.",
    "COLUMN task_alert_look.token": "Of this look: an older one is not written down.",
    "COLUMN task_alert_look.held_until": "Until when nobody else looks. Null: nobody looks.",
    "COLUMN task_alert_look.done_at": "When what somebody saw was last written down.",
    "COLUMN task_alert.opened_to": """Which channels took the message that it began: log,
        webhook, mail.""",
    "COLUMN task_alert.closed_to": "Which channels took the message that it is over.",
    "COLUMN task_alert.tries": """How often its message was reserved. Each refusal doubles the
        wait, up to ten minutes.""",
}


def upgrade() -> None:
    op.execute("""
    ALTER TABLE task_alert
        ADD COLUMN opened_to text[] NOT NULL DEFAULT '{}',
        ADD COLUMN closed_to text[] NOT NULL DEFAULT '{}',
        ADD COLUMN tries smallint NOT NULL DEFAULT 0
    """)
    op.execute("""
    CREATE TABLE task_alert_look (
        one        boolean     NOT NULL DEFAULT true,
        holder     text        NOT NULL,
        token      uuid        NOT NULL,
        held_until timestamptz,
        done_at    timestamptz,
        CONSTRAINT task_alert_look_pkey PRIMARY KEY (one),
        CONSTRAINT one_row CHECK (one))
    """)
    for what, comment in COMMENTS.items():
        words = " ".join(comment.split()).replace("'", "''")
        op.execute(f"COMMENT ON {what} IS '{words}'")


def downgrade() -> None:
    op.execute("DROP TABLE task_alert_look")
    op.execute("ALTER TABLE task_alert DROP COLUMN opened_to, DROP closed_to, DROP tries")
