"""Logical locks on groups of named resources.

``task_lock`` has a row per resource, which whoever decides about it locks. A group is one row of
``task_lock_holder``, held or waiting, and a row of ``task_lock_part`` for each of its resources.
"""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

RESOURCE = 'resource    text COLLATE "C"'
CHURN = (
    "autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.1, vacuum_truncate = off"
)


def upgrade() -> None:
    op.execute(f"""
    CREATE TABLE task_lock (
        {RESOURCE} PRIMARY KEY CHECK (length(resource) BETWEEN 1 AND 255),
        most        integer     CHECK (most >= 0),
        grants      bigint      NOT NULL DEFAULT 0,
        denials     bigint      NOT NULL DEFAULT 0,
        used_at     timestamptz NOT NULL DEFAULT statement_timestamp()
    ) WITH (fillfactor = 50, {CHURN})
    """)
    op.execute("CREATE SEQUENCE task_lock_fence")
    op.execute(f"""
    CREATE TABLE task_lock_holder (
        id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        token       uuid        NOT NULL UNIQUE,
        who         text        NOT NULL CHECK (length(who) <= 300),
        task_id     bigint,
        attempt     integer,
        lease_token uuid,
        asked_at    timestamptz NOT NULL DEFAULT statement_timestamp(),
        granted_at  timestamptz,
        fence       bigint,
        lease_until timestamptz NOT NULL,
        CONSTRAINT held_with_a_fence CHECK ((fence IS NULL) = (granted_at IS NULL)),
        CONSTRAINT a_run_has_all_of_its_fence CHECK (
            num_nulls(task_id, attempt, lease_token) IN (0, 3))
    ) WITH (fillfactor = 70, {CHURN})
    """)
    op.execute(f"""
    CREATE TABLE task_lock_part (
        {RESOURCE} NOT NULL,
        holder_id   bigint      NOT NULL REFERENCES task_lock_holder ON DELETE CASCADE,
        mode        text        NOT NULL CHECK (mode IN ('exclusive', 'shared', 'counted')),
        most        integer     CHECK (most >= 1),
        blocked_by  text,
        PRIMARY KEY (resource, holder_id),
        CONSTRAINT only_what_is_counted_has_a_number CHECK ((mode = 'counted') = (most IS NOT NULL))
    ) WITH ({CHURN})
    """)
    op.execute("CREATE INDEX task_lock_part_holder ON task_lock_part (holder_id)")
    op.execute(f"""
    CREATE TABLE task_lock_wait (
        {RESOURCE} NOT NULL,
        mode        text        NOT NULL,
        outcome     text        NOT NULL CHECK (
            outcome IN ('granted', 'timed_out', 'denied', 'vanished', 'taken_over')),
        who         text        NOT NULL,
        task_id     bigint,
        blocked_by  text,
        times       integer     NOT NULL DEFAULT 1,
        asked_at    timestamptz NOT NULL,
        ended_at    timestamptz NOT NULL
    )
    """)
    op.execute("""
    CREATE UNIQUE INDEX task_lock_wait_denied ON task_lock_wait (task_id, resource)
        WHERE outcome = 'denied'
    """)
    op.execute("""
    CREATE INDEX task_lock_wait_task ON task_lock_wait (task_id, ended_at)
        WHERE task_id IS NOT NULL
    """)
    op.execute("CREATE INDEX task_lock_wait_ended ON task_lock_wait (ended_at)")
    op.execute("ALTER TABLE task_lock_wait REPLICA IDENTITY FULL")
    op.execute("""
    CREATE VIEW task_locks AS
    SELECT p.resource, p.mode, CASE WHEN h.fence IS NULL THEN 'waiting' ELSE 'held' END AS state,
        h.who, h.task_id, h.asked_at, h.granted_at, h.lease_until, h.fence, h.token,
        CASE WHEN h.fence IS NULL THEN p.blocked_by END AS blocked_by
    FROM task_lock_part p JOIN task_lock_holder h ON h.id = p.holder_id
    """)
    op.execute("""
    CREATE VIEW task_lock_report AS
    SELECT r.resource, r.most, r.grants, r.denials, coalesce(w.waits, 0) AS waits,
        coalesce(w.timed_out, 0) AS timed_out, coalesce(w.vanished, 0) AS vanished,
        coalesce(w.taken_over, 0) AS taken_over,
        coalesce(w.waited, interval '0') AS waited, w.waited_95, w.waited_most,
        coalesce(n.held, 0) AS held_now, coalesce(n.waiting, 0) AS waiting_now, r.used_at
    FROM task_lock r
    LEFT JOIN (
        SELECT w.resource, count(*) FILTER (WHERE w.waited IS NOT NULL) AS waits,
            count(*) FILTER (WHERE w.outcome = 'timed_out') AS timed_out,
            count(*) FILTER (WHERE w.outcome = 'vanished') AS vanished,
            count(*) FILTER (WHERE w.outcome = 'taken_over') AS taken_over,
            sum(w.waited) AS waited, max(w.waited) AS waited_most,
            percentile_cont(0.95) WITHIN GROUP (ORDER BY w.waited) AS waited_95
        FROM (SELECT *, CASE WHEN outcome IN ('granted', 'timed_out') THEN ended_at - asked_at END
                  AS waited FROM task_lock_wait) AS w
        GROUP BY w.resource) AS w USING (resource)
    LEFT JOIN (
        SELECT p.resource, count(h.fence) AS held, count(*) - count(h.fence) AS waiting
        FROM task_lock_part p JOIN task_lock_holder h ON h.id = p.holder_id
        GROUP BY p.resource) AS n USING (resource)
    """)


def downgrade() -> None:
    for view in ("task_lock_report", "task_locks"):
        op.execute(f"DROP VIEW {view}")
    for table in ("task_lock_wait", "task_lock_part", "task_lock_holder", "task_lock"):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP SEQUENCE task_lock_fence")
