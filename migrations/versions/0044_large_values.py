"""Large values: payloads and results above the limit, kept beside the pools.

Code of 0.1.0 does not know the table: it hands a reference to handlers, so upgrade workers before
TASKS_APP_LARGE_VALUES is set.
"""

from __future__ import annotations

from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

COMMENTS = {
    "TABLE task_large_value": """Payloads and results that are kept outside of their rows. A row
        refers to its value as {"$large": {"id": ...}}. A value is never changed.""",
    "COLUMN task_large_value.id": "As the reference has it; in an object store, without hyphens.",
    "COLUMN task_large_value.created_at": "When it was written.",
    "COLUMN task_large_value.task_id": """The task whose row refers to it, in any pool. The value is
        removed with the task.""",
    "COLUMN task_large_value.kind": "payload or result.",
    "COLUMN task_large_value.bytes": "Of the JSON text, as UTF-8; of an encrypted one, encrypted.",
    "COLUMN task_large_value.content": "The JSON text. NULL: an object store has it under this id.",
}


def upgrade() -> None:
    op.execute("""
    CREATE TABLE task_large_value (
        id         uuid        PRIMARY KEY,
        task_id    bigint      NOT NULL,
        kind       text        NOT NULL,
        bytes      integer     NOT NULL,
        content    text,
        created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
        CONSTRAINT task_large_value_kind CHECK (kind IN ('payload', 'result')))
    """)
    op.execute("CREATE INDEX task_large_value_task ON task_large_value (task_id)")
    for what, comment in COMMENTS.items():
        words = " ".join(comment.split()).replace("'", "''")
        op.execute(f"COMMENT ON {what} IS '{words}'")
    # Who may write the history may do the same here; who may create tasks may add their payloads.
    op.execute("""
    DO $$
    DECLARE given record;
    BEGIN
        FOR given IN
            SELECT DISTINCT g.privilege_type AS what,
                CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE CAST(CAST(g.grantee AS regrole) AS text)
                END AS whom
            FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS g
            WHERE g.grantee <> c.relowner
              AND (c.oid = CAST('task_attempt' AS regclass)
                   AND g.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
                   OR c.oid = CAST('task_pending' AS regclass) AND g.privilege_type = 'INSERT')
        LOOP
            EXECUTE 'GRANT ' || given.what || ' ON task_large_value TO ' || given.whom;
        END LOOP;
    END $$
    """)


def downgrade() -> None:
    """Refused while there are values: tasks that wait would have lost their payloads."""
    op.execute("""
    LOCK TABLE task_large_value IN ACCESS EXCLUSIVE MODE;
    DO $$
    BEGIN
        IF EXISTS (SELECT FROM task_large_value) THEN
            RAISE EXCEPTION 'task_large_value holds payloads or results, which would be lost.'
                USING HINT = 'Prune or erase their tasks, or empty the table yourself.';
        END IF;
    END $$
    """)
    op.execute("DROP TABLE task_large_value")
