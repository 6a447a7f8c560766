"""Unique keys whose scope is not that of a row: while queued, for a period, for ever.

Only creates with such a key touch the table: claims, settles and moves between pools know nothing
of it. Who holds a key of scope ``queued`` is judged by its row when somebody else wants the key.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
    CREATE TABLE task_key (
        name       text        NOT NULL,
        unique_key text        NOT NULL CHECK (length(unique_key) BETWEEN 1 AND 255),
        task_id    bigint      NOT NULL,
        scope      text        NOT NULL CHECK (scope IN ('queued', 'for_period', 'forever')),
        until      timestamptz CHECK (until BETWEEN '1900-01-01Z' AND '9900-01-01Z'),
        PRIMARY KEY (name, unique_key),
        CONSTRAINT only_a_period_ends CHECK ((scope = 'for_period') = (until IS NOT NULL))
    )
    """)
    op.execute("CREATE INDEX task_key_until ON task_key (until) WHERE until IS NOT NULL")
    op.execute("CREATE INDEX task_key_queued ON task_key (task_id) WHERE scope = 'queued'")


def downgrade() -> None:
    op.execute("DROP TABLE task_key")
