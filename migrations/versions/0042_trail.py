"""The whole trail: who did what to a task and why, when it was changed last, and its sub-status.

Code of 0.1.0 writes none of it: where such a worker ends a run, the sub-status is not kept.
"""

from __future__ import annotations

from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

POOLS = ("task_pending", "task_completed", "task_error")
CHANGED = ("task_pending", "task_error")
VIEW = (
    *("id", "pool", "state", "name", "queue", "priority", "biz_key", "unique_key", "payload"),
    *("headers", "enabled", "attempt", "failures", "crashes", "retry_level", "max_attempts"),
    *("due_at", "created_at", "started_at", "finished_at", "expires_at", "cancel_requested_at"),
    *("idempotency_key", "owner", "lease_until", "parked", "result", "error", "run_ms"),
    *("order_key", "limit_key", "parked_kind", "parked_for", "held_due_at"),
)
OF_PENDING = {
    **dict.fromkeys(("lease_until", "held_due_at"), "timestamptz"),
    **dict.fromkeys(("parked", "parked_kind", "parked_for"), "text"),
}
OF_OVER = {"finished_at": "timestamptz", "result": "jsonb", "error": "text", "run_ms": "integer"}
ABSENT = {"task_pending": OF_OVER, "task_completed": OF_PENDING, "task_error": OF_PENDING}
UPDATED = {
    "task_pending": "greatest(created_at, started_at, cancel_requested_at, changed_at)",
    "task_completed": "finished_at",
    "task_error": "greatest(finished_at, changed_at)",
}
MOMENTS = """due_at, scan_at, created_at, expires_at, started_at, lease_until,
    cancel_requested_at, outage_since, held_due_at"""
COMMENTS = {
    **{
        f"COLUMN {pool}.sub_status": "What its handler said of its state, in the user's words."
        for pool in (*POOLS, "task_all")
    },
    **{
        f"COLUMN {pool}.changed_at": """When it last came back, or an operator changed it, as far as
            no other date tells: see updated_at of task_all."""
        for pool in CHANGED
    },
    "COLUMN task_all.updated_at": """When the task was last created, claimed, returned, ended,
        changed by an operator or asked to stop.""",
    "COLUMN task_transition.who": """Who did it, if no child did: an operator, or what made the
        task.""",
    "COLUMN task_transition.why": "The reason that the operator gave.",
    "COLUMN task_transition.event": """What happened, as in docs/lifecycle.md; or create; or what an
        operator did.""",
    "COLUMN task_transition.from_state": "The state that it left. Null: it was created.",
}


def upgrade() -> None:
    for pool in POOLS:
        op.execute(f"ALTER TABLE {pool} ADD COLUMN sub_status text")
    for pool in CHANGED:
        op.execute(f"ALTER TABLE {pool} ADD COLUMN changed_at timestamptz")
    _moments(f"{MOMENTS}, changed_at")
    op.execute("""
    ALTER TABLE task_transition
        ADD COLUMN who text, ADD COLUMN why text, ALTER COLUMN from_state DROP NOT NULL
    """)
    _view("CREATE OR REPLACE VIEW", *VIEW, "sub_status", "updated_at")
    for what, comment in COMMENTS.items():
        words = " ".join(comment.split()).replace("'", "''")
        op.execute(f"COMMENT ON {what} IS '{words}'")
    # Who may amend the date of a task by its unique key says when that was.
    op.execute("""
    DO $$
    DECLARE given record;
    BEGIN
        FOR given IN
            SELECT CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE CAST(CAST(g.grantee AS regrole) AS text)
                END AS whom
            FROM pg_attribute a CROSS JOIN LATERAL aclexplode(a.attacl) AS g
            WHERE a.attrelid = CAST('task_pending' AS regclass) AND a.attname = 'due_at'
              AND g.privilege_type = 'UPDATE'
        LOOP
            EXECUTE 'GRANT UPDATE (changed_at) ON task_pending TO ' || given.whom;
        END LOOP;
    END $$
    """)


def downgrade() -> None:
    op.execute("DROP VIEW task_all")
    op.execute("DELETE FROM task_transition WHERE from_state IS NULL")
    op.execute("""
    ALTER TABLE task_transition
        DROP COLUMN who, DROP COLUMN why, ALTER COLUMN from_state SET NOT NULL
    """)
    _moments(MOMENTS)
    for pool in CHANGED:
        op.execute(f"ALTER TABLE {pool} DROP COLUMN changed_at")
    for pool in POOLS:
        op.execute(f"ALTER TABLE {pool} DROP COLUMN sub_status")
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
        f"SELECT {', '.join(_shown(column, pool) for column in columns)} FROM {pool}"
        for pool in POOLS
    )
    op.execute(f"{create} task_all AS {pools}")


def _shown(column: str, pool: str) -> str:
    if column == "pool":
        return f"'{pool.removeprefix('task_')}' AS pool"
    if column == "updated_at":
        return f"{UPDATED[pool]} AS updated_at"
    absent = ABSENT[pool].get(column)
    return f"NULL::{absent} AS {column}" if absent else column
