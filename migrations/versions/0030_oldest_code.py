"""Which code may run on the schema: it is read by code that has not the files of this folder.

Each migration from here on says it in its OLDEST_CODE, as the schema that such code was written
for: that of the release before, unless nothing else is possible. Without it, no older code may.
"""

from __future__ import annotations

from alembic import op

revision = "0030"
down_revision = "0028"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"


def upgrade() -> None:
    op.execute("ALTER TABLE tasks_app_version ADD COLUMN IF NOT EXISTS oldest_code text")


def downgrade() -> None:
    op.execute("ALTER TABLE tasks_app_version DROP COLUMN oldest_code")
