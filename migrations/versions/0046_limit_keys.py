"""Several limit keys on one task: those behind the first, and the index of who runs with them.

Code of 0.1.0 limits such a task by its first key alone. Where it ends a run, the other keys are not
kept, so that a requeue is limited by the first.
"""

from __future__ import annotations

from alembic import op

from tasks_app.pool.build_index import build_index

revision = "0046"
down_revision = "0044"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

POOLS = ("task_pending", "task_completed", "task_error")
VIEW = (
    *("id", "pool", "state", "name", "queue", "priority", "biz_key", "unique_key", "payload"),
    *("headers", "enabled", "attempt", "failures", "crashes", "retry_level", "max_attempts"),
    *("due_at", "created_at", "started_at", "finished_at", "expires_at", "cancel_requested_at"),
    *("idempotency_key", "owner", "lease_until", "parked", "result", "error", "run_ms"),
    *("order_key", "limit_key", "parked_kind", "parked_for", "held_due_at", "sub_status"),
    "updated_at",
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
RULE = """
    more_limit_keys IS NULL OR array_ndims(more_limit_keys) = 1
    AND cardinality(more_limit_keys) BETWEEN 1 AND 7
    AND limit_key IS NOT NULL AND ('' <> ALL (more_limit_keys)) IS TRUE
"""
COMMENT = "Its limit keys behind the first; it runs while there is room under each."
INDEX = "task_pending_more_limit_runs"

_OLD = """
        name text, payload jsonb DEFAULT '{}', queue text DEFAULT 'default',
        priority integer DEFAULT 5, run_at timestamptz DEFAULT NULL, delay interval DEFAULT '0',
        biz_key text DEFAULT NULL, unique_key text DEFAULT NULL, max_attempts integer DEFAULT NULL,
        retry text DEFAULT NULL, expires_at timestamptz DEFAULT NULL, enabled boolean DEFAULT true,
        headers jsonb DEFAULT NULL, order_key text DEFAULT NULL, limit_key text DEFAULT NULL,
        fair_key text DEFAULT NULL"""
_NEW = f"{_OLD}, more_limit_keys text[] DEFAULT NULL"
# By its name alone it is ambiguous where a schema further on in the path has a pool, too.
_OLD_TYPES = """
    text, jsonb, text, integer, timestamptz, interval, text, text, integer, text, timestamptz,
    boolean, jsonb, text, text, text"""
_NEW_TYPES = f"{_OLD_TYPES}, text[]"


def upgrade() -> None:
    """Again from its beginning, if the building of the index was cut off."""
    for pool in POOLS:
        op.execute(f"ALTER TABLE {pool} ADD COLUMN IF NOT EXISTS more_limit_keys varchar(255)[]")
    # No row has any yet: to validate would read the whole table for nothing.
    op.execute(f"""
    ALTER TABLE task_pending DROP CONSTRAINT IF EXISTS more_limit_keys_are_valid,
        ADD CONSTRAINT more_limit_keys_are_valid CHECK ({RULE}) NOT VALID
    """)
    _view("CREATE OR REPLACE VIEW", *VIEW, "more_limit_keys")
    for pool in (*POOLS, "task_all"):
        op.execute(f"COMMENT ON COLUMN {pool}.more_limit_keys IS '{COMMENT}'")
    # Who may see one key of a task, column by column, may see the others.
    op.execute("""
    DO $$
    DECLARE given record;
    BEGIN
        FOR given IN
            SELECT g.privilege_type AS what,
                CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE CAST(CAST(g.grantee AS regrole) AS text)
                END AS whom
            FROM pg_attribute a CROSS JOIN LATERAL aclexplode(a.attacl) AS g
            WHERE a.attrelid = CAST('task_pending' AS regclass) AND a.attname = 'limit_key'
        LOOP
            EXECUTE 'GRANT ' || given.what || ' (more_limit_keys) ON task_pending TO '
                || given.whom;
        END LOOP;
    END $$
    """)
    op.execute(f"DROP FUNCTION IF EXISTS task_create({_OLD_TYPES})")  # or it would be a second one
    op.execute(f"DROP FUNCTION IF EXISTS task_create({_NEW_TYPES})")
    _create(_NEW, ", more_limit_keys")
    build_index(
        INDEX, "task_pending", "(id) WHERE state = 'RUNNING' AND more_limit_keys IS NOT NULL"
    )


def downgrade() -> None:
    op.execute("DROP VIEW task_all")
    op.execute(f"DROP FUNCTION task_create({_NEW_TYPES})")
    op.execute(f"DROP INDEX {INDEX}")
    for pool in POOLS:
        op.execute(f"ALTER TABLE {pool} DROP COLUMN more_limit_keys")
    _view("CREATE VIEW", *VIEW)
    _create(_OLD, "")


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


def _create(arguments: str, column: str) -> None:
    value = column.replace(", ", ", task_create.")
    op.execute(f"""
    CREATE FUNCTION task_create({arguments}
    ) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
    #variable_conflict use_column
    DECLARE
        due timestamptz := coalesce(task_create.run_at, statement_timestamp())
            + coalesce(task_create.delay, '0');
        -- As in Python: a table of levels implies one attempt more than it has, the others three.
        most integer := coalesce(task_create.max_attempts,
            CASE WHEN task_create.retry ~ '^(fixed|exponential) ' THEN 3
                 ELSE cardinality(string_to_array(task_create.retry, ',')) + 1 END);
        task_id bigint;
    BEGIN
        FOR try IN 1 .. 10 LOOP
            INSERT INTO task_pending AS p (name, payload, queue, priority, due_at, scan_at, biz_key,
                unique_key, max_attempts, retry, expires_at, enabled, headers, order_key,
                limit_key, fair_key{column})
            VALUES (task_create.name, coalesce(task_create.payload, '{{}}'), task_create.queue,
                task_create.priority, due, due, task_create.biz_key, task_create.unique_key,
                most, task_create.retry, task_create.expires_at, task_create.enabled,
                task_create.headers, task_create.order_key, task_create.limit_key,
                task_create.fair_key{value})
            ON CONFLICT (name, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
            RETURNING p.id INTO task_id;
            IF task_id IS NULL THEN
                SELECT p.id INTO task_id FROM task_pending p
                WHERE p.name = task_create.name AND p.unique_key = task_create.unique_key;
            END IF;
            IF task_id IS NOT NULL THEN
                RETURN task_id;
            END IF;
        END LOOP;
        RAISE EXCEPTION 'unique_key % of % keeps changing hands; try again',
            task_create.unique_key, task_create.name;
    END $$
    """)
