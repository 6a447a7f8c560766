"""Alerts: one row for each that is open or was lately, so that many watchers send one message.

Code of 0.1.0 neither reads nor writes it.
"""

from __future__ import annotations

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

COMMENTS = {
    "TABLE task_alert": """One row for each alert that is open or was. Deleting the row of an open
        one sends it again, nothing else.""",
    "COLUMN task_alert.id": "Given by the database.",
    "COLUMN task_alert.key": "What it is about: at most one open row of each.",
    "COLUMN task_alert.fact": "What was seen when it was opened; never a payload.",
    "COLUMN task_alert.advice": "What to do.",
    "COLUMN task_alert.event": "Whether it happened once and so has no end.",
    "COLUMN task_alert.opened_at": "When it was seen first.",
    "COLUMN task_alert.closed_at": "When it was seen to be over. Null: it is open.",
    "COLUMN task_alert.opened_sent_at": "When the message that it began was taken.",
    "COLUMN task_alert.closed_sent_at": "When the message that it is over was taken.",
    "COLUMN task_alert.sending_until": """Until when one watcher alone may send; then another
        may, as that one has died or was refused.""",
}


def upgrade() -> None:
    op.execute("""
    CREATE TABLE task_alert (
        id             bigint      GENERATED ALWAYS AS IDENTITY,
        key            text        NOT NULL,
        fact           text        NOT NULL,
        advice         text        NOT NULL,
        event          boolean     NOT NULL DEFAULT false,
        opened_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
        closed_at      timestamptz,
        opened_sent_at timestamptz,
        closed_sent_at timestamptz,
        sending_until  timestamptz NOT NULL DEFAULT '-infinity',
        CONSTRAINT task_alert_pkey PRIMARY KEY (id))
    """)
    op.execute("CREATE UNIQUE INDEX task_alert_open ON task_alert (key) WHERE closed_at IS NULL")
    for what, comment in COMMENTS.items():
        words = " ".join(comment.split()).replace("'", "''")
        op.execute(f"COMMENT ON {what} IS '{words}'")


def downgrade() -> None:
    op.execute("DROP TABLE task_alert")
