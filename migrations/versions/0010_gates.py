"""Order keys and limits: what a task must pass before it may run.

A task names its gates by its columns; what is allowed stands in ``task_limit``. A claim locks the
rows of ``task_gate`` and counts who runs: nothing is counted up or down, so nothing can be lost.
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

POOLS = ("task_pending", "task_completed", "task_error")
KEYS = """
    greatest(length(biz_key), length(unique_key), length(order_key), length(limit_key)) <= 255
    AND least(length(biz_key), length(unique_key), length(order_key), length(limit_key)) >= 1"""
BEFORE = """
    length(biz_key) BETWEEN 1 AND 255 AND length(unique_key) BETWEEN 1 AND 255
    AND order_key IS NULL"""
VIEW = """
    id, pool, state, name, queue, priority, biz_key, unique_key, payload, headers, enabled,
    attempt, failures, crashes, retry_level, max_attempts, due_at, created_at, started_at,
    finished_at, expires_at, cancel_requested_at, idempotency_key, owner, lease_until, parked,
    result, error, run_ms
"""


def upgrade() -> None:
    for pool in POOLS:
        op.execute(f"ALTER TABLE {pool} ADD COLUMN order_skips boolean, ADD COLUMN limit_key text")
    _check(KEYS)
    op.execute("""
    CREATE TABLE task_limit (
        kind       text        NOT NULL CHECK (kind IN ('queue', 'name', 'key')),
        target     text        NOT NULL CHECK (length(target) BETWEEN 1 AND 255),
        most       integer     CHECK (most >= 0),
        rate       integer     CHECK (rate > 0),
        period     interval    CHECK (period BETWEEN '1 ms' AND '366 days'),
        burst      integer     CHECK (burst > 0),
        changed_by text        NOT NULL DEFAULT current_user,
        changed_at timestamptz NOT NULL DEFAULT statement_timestamp(),
        PRIMARY KEY (kind, target),
        CONSTRAINT something_is_limited CHECK (
            num_nonnulls(most, rate) > 0 AND num_nonnulls(rate, period, burst) IN (0, 3))
    )
    """)
    op.execute("""
    CREATE TABLE task_gate (
        gate      text        NOT NULL PRIMARY KEY,
        look_at   timestamptz,
        tokens    float8,
        filled_at timestamptz,
        CONSTRAINT a_bucket_has_its_time CHECK ((tokens IS NULL) = (filled_at IS NULL))
    ) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100, vacuum_truncate = off)
    """)
    op.execute("CREATE INDEX task_gate_look ON task_gate (look_at) WHERE look_at IS NOT NULL")
    _view(f"{VIEW}, order_key, limit_key", "CREATE OR REPLACE VIEW")


def downgrade() -> None:
    op.execute("DROP VIEW task_all")
    op.execute("DROP TABLE task_gate, task_limit")
    op.execute("UPDATE task_pending SET order_key = NULL WHERE order_key IS NOT NULL")
    _check(BEFORE)
    for pool in POOLS:
        op.execute(f"ALTER TABLE {pool} DROP COLUMN order_skips, DROP COLUMN limit_key")
    _view(VIEW, "CREATE VIEW")


def _check(rule: str) -> None:
    """Rows that are there satisfy either form alike: the lock is held for a moment."""
    op.execute(f"""
    ALTER TABLE task_pending DROP CONSTRAINT keys_are_valid,
        ADD CONSTRAINT keys_are_valid CHECK ({rule}) NOT VALID
    """)


def _view(columns: str, create: str) -> None:
    op.execute(f"""
    {create} task_all AS
    SELECT {columns} FROM (
        SELECT p.*, 'pending' AS pool, NULL::timestamptz AS finished_at, NULL::jsonb AS result,
            NULL::text AS error, NULL::integer AS run_ms
        FROM task_pending p) AS pending
    UNION ALL
    SELECT {columns} FROM (
        SELECT c.*, 'completed' AS pool, NULL::timestamptz AS lease_until, NULL::text AS parked
        FROM task_completed c) AS completed
    UNION ALL
    SELECT {columns} FROM (
        SELECT e.*, 'error' AS pool, NULL::timestamptz AS lease_until, NULL::text AS parked
        FROM task_error e) AS error
    """)
