"""Held tasks: the date that a task had before an operator held it.

A held task is due so late that neither claim nor scan finds it, so they need no condition, and code
of 0.1.0 leaves it alone, too. What that code makes due again is not held any more, whatever this
column still says.
"""

from __future__ import annotations

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

VIEW = (
    *("id", "pool", "state", "name", "queue", "priority", "biz_key", "unique_key", "payload"),
    *("headers", "enabled", "attempt", "failures", "crashes", "retry_level", "max_attempts"),
    *("due_at", "created_at", "started_at", "finished_at", "expires_at", "cancel_requested_at"),
    *("idempotency_key", "owner", "lease_until", "parked", "result", "error", "run_ms"),
    *("order_key", "limit_key", "parked_kind", "parked_for"),
)
OF_PENDING = {
    **dict.fromkeys(("lease_until", "held_due_at"), "timestamptz"),
    **dict.fromkeys(("parked", "parked_kind", "parked_for"), "text"),
}
OF_OVER = {"finished_at": "timestamptz", "result": "jsonb", "error": "text", "run_ms": "integer"}
POOLS = {"pending": OF_OVER, "completed": OF_PENDING, "error": OF_PENDING}
"""Each with what it has not."""
MOMENTS = """due_at, scan_at, created_at, expires_at, started_at, lease_until,
    cancel_requested_at, outage_since"""
COMMENTS = {
    "COLUMN task_pending.held_due_at": """The date that a held task had, and gets back when it is
        released. It is held while due_at lies behind the year 9500, or not before expires_at.""",
    "COLUMN task_all.held_due_at": "As in task_pending.",
}


def upgrade() -> None:
    op.execute("ALTER TABLE task_pending ADD COLUMN held_due_at timestamptz")
    _moments(f"{MOMENTS}, held_due_at")
    _view("CREATE OR REPLACE VIEW", *VIEW, "held_due_at")
    for what, comment in COMMENTS.items():
        words = " ".join(comment.split()).replace("'", "''")
        op.execute(f"COMMENT ON {what} IS '{words}'")
    # Who may see or write dates, column by column, may do so with that of a held task.
    op.execute("""
    DO $$
    DECLARE given record;
    BEGIN
        FOR given IN
            SELECT g.privilege_type AS what,
                CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE CAST(CAST(g.grantee AS regrole) AS text)
                END AS whom
            FROM pg_attribute a CROSS JOIN LATERAL aclexplode(a.attacl) AS g
            WHERE a.attrelid = CAST('task_pending' AS regclass) AND a.attname = 'due_at'
        LOOP
            EXECUTE 'GRANT ' || given.what || ' (held_due_at) ON task_pending TO ' || given.whom;
        END LOOP;
    END $$
    """)


def downgrade() -> None:
    """What is held gets its date back, and runs."""
    op.execute("""
    UPDATE task_pending SET due_at = held_due_at, scan_at = held_due_at
    WHERE held_due_at IS NOT NULL AND state = 'PENDING' AND due_at > '9500-01-01'
    """)
    op.execute("DROP VIEW task_all")
    _moments(MOMENTS)
    op.execute("ALTER TABLE task_pending DROP COLUMN held_due_at")
    _view("CREATE VIEW", *VIEW)


def _moments(columns: str) -> None:
    """All rows satisfy either form alike, so none is looked at: the lock is held for a moment."""
    op.execute(f"""
    ALTER TABLE task_pending DROP CONSTRAINT moments_are_readable,
        ADD CONSTRAINT moments_are_readable CHECK (
            scan_at >= due_at
            AND tstzrange '[1900-01-01Z, 9900-01-01Z)' @> ALL (ARRAY[{columns}])) NOT VALID
    """)


def _view(create: str, *columns: str) -> None:
    pools = " UNION ALL ".join(
        f"SELECT {', '.join(_shown(column, pool) for column in columns)} FROM task_{pool}"
        for pool in POOLS
    )
    op.execute(f"{create} task_all AS {pools}")


def _shown(column: str, pool: str) -> str:
    if column == "pool":
        return f"'{pool}' AS pool"
    absent = POOLS[pool].get(column)
    return f"NULL::{absent} AS {column}" if absent else column
