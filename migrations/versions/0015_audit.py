"""What operators did: who, when, to what, to how many.

Lines are only ever added. Roles may give neither ``at`` nor ``role``: the defaults are the truth.
"""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
    CREATE TABLE task_audit (
        id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        at       timestamptz NOT NULL DEFAULT statement_timestamp(),
        role     text        NOT NULL DEFAULT current_user,
        who      text        NOT NULL DEFAULT '' CHECK (length(who) <= 200),
        action   text        NOT NULL CHECK (length(action) BETWEEN 1 AND 100),
        what     jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(what) = 'object'),
        patch    jsonb       CHECK (jsonb_typeof(patch) = 'object'),
        bulk     bigint,
        until    bigint,
        after    bigint,
        number   bigint      NOT NULL DEFAULT 0 CHECK (number >= 0),
        ids      bigint[]    NOT NULL DEFAULT '{}' CHECK (cardinality(ids) <= 500),
        answers  jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(answers) = 'object'),
        left_out jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(left_out) = 'object')
    )
    """)
    op.execute("CREATE INDEX task_audit_bulk ON task_audit (bulk, id) WHERE bulk IS NOT NULL")


def downgrade() -> None:
    op.execute("DROP TABLE task_audit")
