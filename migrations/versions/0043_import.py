"""Imports: which tasks of another database were brought in, so that none is twice.

Code of 0.1.0 does not know the table and does not import.
"""

from __future__ import annotations

from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

COMMENTS = {
    "TABLE task_import": """The tasks that were brought in from another database. While a row
        stands, the same task is not brought in again.""",
    "COLUMN task_import.idempotency_key": "Of the task, in both databases.",
    "COLUMN task_import.task_id": "Its id in this database.",
    "COLUMN task_import.imported_at": "When it was brought in. After 90 days the row is pruned.",
}


def upgrade() -> None:
    op.execute("""
    CREATE TABLE task_import (
        idempotency_key uuid        PRIMARY KEY,
        task_id         bigint      NOT NULL,
        imported_at     timestamptz NOT NULL DEFAULT statement_timestamp())
    """)
    op.execute("CREATE INDEX task_import_age ON task_import (imported_at)")
    for what, comment in COMMENTS.items():
        words = " ".join(comment.split()).replace("'", "''")
        op.execute(f"COMMENT ON {what} IS '{words}'")
    # Workers prune it, admins import, readers look: as they do with limits.
    op.execute("""
    DO $$
    DECLARE given record;
    BEGIN
        FOR given IN
            SELECT g.privilege_type AS what,
                CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE CAST(CAST(g.grantee AS regrole) AS text)
                END AS whom
            FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS g
            WHERE c.oid = CAST('task_limit' AS regclass) AND g.grantee <> c.relowner
              AND g.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
        LOOP
            EXECUTE 'GRANT ' || given.what || ' ON task_import TO ' || given.whom;
        END LOOP;
    END $$
    """)


def downgrade() -> None:
    op.execute("DROP TABLE task_import")
