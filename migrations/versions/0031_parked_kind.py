"""Why a row is parked, as data: its kind and subject; ``parked`` stays as the text for people.

Code of 0.1.0 writes and compares the text alone. It keeps its index ``task_pending_parked``; rows
of which it wrote the text are in an index of their own, which is empty otherwise. Drop both indexes
in the next release.
"""

from __future__ import annotations

from alembic import op

from tasks_app.pool.build_index import build_index

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

VIEW = (
    *("id", "pool", "state", "name", "queue", "priority", "biz_key", "unique_key", "payload"),
    *("headers", "enabled", "attempt", "failures", "crashes", "retry_level", "max_attempts"),
    *("due_at", "created_at", "started_at", "finished_at", "expires_at", "cancel_requested_at"),
    *("idempotency_key", "owner", "lease_until", "parked", "result", "error", "run_ms"),
    *("order_key", "limit_key"),
)
REASON = ("parked_kind", "parked_for")
OF_PENDING = {"lease_until": "timestamptz", **dict.fromkeys(("parked", *REASON), "text")}
OF_OVER = {"finished_at": "timestamptz", "result": "jsonb", "error": "text", "run_ms": "integer"}
POOLS = {"pending": OF_OVER, "completed": OF_PENDING, "error": OF_PENDING}
"""Each with what it has not."""
KINDS = "'order', 'queue', 'name', 'key', 'breaker', 'let_through', 'handler'"
INDEXES = {
    "task_pending_parked_for": """(parked_kind, parked_for, priority, id)
        WHERE state = 'PENDING' AND parked_kind IS NOT NULL""",
    "task_pending_parked_by_old_code": """(parked)
        WHERE state = 'PENDING' AND parked IS DISTINCT FROM (CASE parked_kind
            WHEN 'order' THEN 'order ' WHEN 'queue' THEN 'limit queue '
            WHEN 'name' THEN 'limit name ' WHEN 'key' THEN 'limit key '
            WHEN 'breaker' THEN 'held by breaker '
            WHEN 'let_through' THEN 'let through by breaker '
            WHEN 'handler' THEN 'no live worker of this queue has a handler named '
            END || parked_for)""",
}


def upgrade() -> None:
    """Again from its beginning, if the building of an index was cut off."""
    op.execute("""
    ALTER TABLE task_pending
        ADD COLUMN IF NOT EXISTS parked_kind text, ADD COLUMN IF NOT EXISTS parked_for text
    """)
    # No row has a kind yet: to validate would read the whole table for nothing.
    op.execute(f"""
    ALTER TABLE task_pending DROP CONSTRAINT IF EXISTS parked_kind_is_known,
        ADD CONSTRAINT parked_kind_is_known CHECK (parked_kind IN ({KINDS})) NOT VALID
    """)
    _view("CREATE OR REPLACE VIEW", *VIEW, *REASON)
    # Who may see or write the text, column by column, may do so with what it says.
    op.execute("""
    DO $$
    DECLARE given record;
    BEGIN
        FOR given IN
            SELECT g.privilege_type AS what,
                CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE CAST(CAST(g.grantee AS regrole) AS text)
                END AS whom
            FROM pg_attribute a CROSS JOIN LATERAL aclexplode(a.attacl) AS g
            WHERE a.attrelid = CAST('task_pending' AS regclass) AND a.attname = 'parked'
        LOOP
            EXECUTE 'GRANT ' || given.what || ' (parked_kind), ' || given.what
                || ' (parked_for) ON task_pending TO ' || given.whom;
        END LOOP;
    END $$
    """)
    for name, index in INDEXES.items():
        build_index(name, "task_pending", index)


def downgrade() -> None:
    op.execute("DROP VIEW task_all")
    for name in INDEXES:
        op.execute(f"DROP INDEX {name}")
    op.execute("ALTER TABLE task_pending DROP COLUMN parked_kind, DROP COLUMN parked_for")
    _view("CREATE VIEW", *VIEW)


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
