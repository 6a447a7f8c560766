"""Totals: what was counted of each name, queue and outcome since counting began.

Prometheus needs totals that never fall, and the days of ``task_count`` are dropped one day. A row
here holds the days that are over; those since ``until`` are added when they are read.
"""

from __future__ import annotations

from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

OUTCOME = """Number of the outcome: 1 done, 2 skipped, 3 cancelled, 4 expired, 5 failed, 6 retried,
    7 released, 8 rescued, 9 snoozed; 11 a write that was refused as its lease was lost, 12 an id of
    a message that could not be claimed."""
COMMENTS = {
    "TABLE task_total": """What was counted since counting began, for metrics. Deleting a row begins
        its total anew, nothing else.""",
    "COLUMN task_total.id": "In the order in which they were seen first: the first keep a row.",
    "COLUMN task_total.name": "The name of the tasks; (other) are those beyond 1,000 rows.",
    "COLUMN task_total.queue": "The queue of the tasks.",
    "COLUMN task_total.outcome": OUTCOME,
    "COLUMN task_total.until": "Days before this are in the sums; all rows say the same.",
    "COLUMN task_total.number": "How many ended so.",
    "COLUMN task_total.wait_ms": "Sum of the milliseconds that those in waits waited.",
    "COLUMN task_total.run_ms": "Sum of the milliseconds that those in runs ran.",
    "COLUMN task_total.waits": "How many waited how long, in the buckets of task_count.",
    "COLUMN task_total.runs": "How many ran for how long, in the same buckets.",
    "COLUMN task_count.outcome": OUTCOME,
    "COLUMN task_count_part.outcome": OUTCOME,
}


def upgrade() -> None:
    op.execute("""
    CREATE TABLE task_total (
        id      bigint      GENERATED ALWAYS AS IDENTITY,
        name    text        NOT NULL,
        queue   text        NOT NULL,
        outcome smallint    NOT NULL,
        until   timestamptz NOT NULL,
        number  bigint      NOT NULL DEFAULT 0,
        wait_ms bigint      NOT NULL DEFAULT 0,
        run_ms  bigint      NOT NULL DEFAULT 0,
        waits   bigint[]    NOT NULL DEFAULT '{}',
        runs    bigint[]    NOT NULL DEFAULT '{}',
        CONSTRAINT task_total_pkey PRIMARY KEY (name, queue, outcome))
    """)
    for what, comment in COMMENTS.items():
        words = " ".join(comment.split()).replace("'", "''")
        op.execute(f"COMMENT ON {what} IS '{words}'")
    # Whoever may count may keep the totals; whoever reads may see how many ids were given.
    op.execute("""
    DO $$
    DECLARE given record;
    BEGIN
        FOR given IN
            SELECT g.privilege_type AS what,
                CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE CAST(CAST(g.grantee AS regrole) AS text)
                END AS whom
            FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS g
            WHERE c.oid = CAST('task_count' AS regclass) AND g.grantee <> c.relowner
              AND g.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
        LOOP
            EXECUTE 'GRANT ' || given.what || ' ON task_total TO ' || given.whom;
            IF given.what = 'SELECT' THEN
                EXECUTE 'GRANT SELECT ON SEQUENCE task_pending_id_seq TO ' || given.whom;
            END IF;
        END LOOP;
    END $$
    """)


def downgrade() -> None:
    op.execute("DROP TABLE task_total")
