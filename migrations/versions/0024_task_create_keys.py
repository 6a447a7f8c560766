"""task_create() for SQL knows order keys, limit keys and fair keys."""

from __future__ import annotations

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_OLD = """
        name text, payload jsonb DEFAULT '{}', queue text DEFAULT 'default',
        priority integer DEFAULT 5, run_at timestamptz DEFAULT NULL, delay interval DEFAULT '0',
        biz_key text DEFAULT NULL, unique_key text DEFAULT NULL, max_attempts integer DEFAULT NULL,
        retry text DEFAULT NULL, expires_at timestamptz DEFAULT NULL, enabled boolean DEFAULT true,
        headers jsonb DEFAULT NULL"""
_NEW = f"""{_OLD},
        order_key text DEFAULT NULL, limit_key text DEFAULT NULL, fair_key text DEFAULT NULL"""


# By its name alone it is ambiguous where a schema further on in the path has a pool, too.
_OLD_TYPES = """
    text, jsonb, text, integer, timestamptz, interval, text, text, integer, text, timestamptz,
    boolean, jsonb"""
_NEW_TYPES = f"{_OLD_TYPES}, text, text, text"


def upgrade() -> None:
    op.execute(f"DROP FUNCTION task_create({_OLD_TYPES})")  # or the new one would be a second
    _create(_NEW, ", order_key, limit_key, fair_key")


def downgrade() -> None:
    op.execute(f"DROP FUNCTION task_create({_NEW_TYPES})")
    _create(_OLD, "")


def _create(arguments: str, columns: str) -> None:
    values = columns.replace(", ", ", task_create.")
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
                unique_key, max_attempts, retry, expires_at, enabled, headers{columns})
            VALUES (task_create.name, coalesce(task_create.payload, '{{}}'), task_create.queue,
                task_create.priority, due, due, task_create.biz_key, task_create.unique_key,
                most, task_create.retry, task_create.expires_at,
                task_create.enabled, task_create.headers{values})
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
