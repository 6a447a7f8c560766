"""Counters: how many tasks ended how, in each minute, hour and day, and how long they took.

``task_count_part`` has running totals of the last minutes. Each process writes rows of its own, so
that none waits for another and a repeated write counts nothing twice. It is unlogged: what a crash
of the server takes is counted again from the pools. The leader adds the parts up in ``task_count``.

The plain sums stand in the key's index too: reads of sums need not touch the rows, which are wide
because of the two arrays.
"""

from __future__ import annotations

from alembic import op

from tasks_app.pool.build_index import build_index

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

SUMS = """
    number  bigint NOT NULL,
    wait_ms bigint NOT NULL,
    run_ms  bigint NOT NULL,
    waits   bigint[] NOT NULL,
    runs    bigint[] NOT NULL
"""
KEY = "name text NOT NULL, queue text NOT NULL, outcome smallint NOT NULL"
OUTCOME = """Number of the outcome: 1 done, 2 skipped, 3 cancelled, 4 expired, 5 failed, 6 retried,
    7 released, 8 rescued, 9 snoozed."""
OF_SUMS = {
    "name": "The name of the tasks; (other) are those beyond 500 rows a minute.",
    "queue": "The queue of the tasks.",
    "outcome": OUTCOME,
    "number": "How many ended so.",
    "wait_ms": "Sum of the milliseconds from due_at to the start of the run, of those in waits.",
    "run_ms": "Sum of the milliseconds that handlers ran, of those in runs.",
    "waits": """How many waited how long: 25 buckets, of less than 1 ms, then of 2^(n-1) up to 2^n
        ms; empty ones at the end are left out.""",
    "runs": "How many ran for how long, in the same buckets.",
}
COMMENTS = {
    "task_count_part": {
        "": """Running totals of the last 15 minutes, for the leader to add up. Unlogged: a crash of
            the server empties it.""",
        "at": "The minute, by the database's clock.",
        "slot": "Who counted: one process, or one statement of an operator or the leader.",
        **OF_SUMS,
        "written_at": "When the row was written last.",
    },
    "task_count": {
        "": """How many tasks ended how in each minute, hour and day. Deleting rows does no harm but
            to the history.""",
        "span": "How long the row's time is: 1, 60 or 1440 minutes.",
        "at": "When that time begins, by the database's clock; days are of UTC.",
        **OF_SUMS,
        "exact": "Whether the number was taken from the pools, as it was higher there.",
    },
}


def upgrade() -> None:
    """Again from its beginning, if the building of the index was cut off."""
    op.execute(f"""
    CREATE UNLOGGED TABLE IF NOT EXISTS task_count_part (
        at timestamptz NOT NULL, slot text NOT NULL, {KEY}, {SUMS},
        written_at timestamptz NOT NULL DEFAULT statement_timestamp(),
        PRIMARY KEY (at, slot, name, queue, outcome)
    ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.2)
    """)
    op.execute(f"""
    CREATE TABLE IF NOT EXISTS task_count (
        span smallint NOT NULL CHECK (span IN (1, 60, 1440)),
        at timestamptz NOT NULL, {KEY}, {SUMS}, exact boolean NOT NULL DEFAULT false,
        PRIMARY KEY (span, at, name, queue, outcome) INCLUDE (number, wait_ms, run_ms)
    ) WITH (autovacuum_vacuum_insert_threshold = 2000, autovacuum_vacuum_insert_scale_factor = 0)
    """)
    for table, comments in COMMENTS.items():
        for column, comment in comments.items():
            what = f"COLUMN {table}.{column}" if column else f"TABLE {table}"
            words = " ".join(comment.split()).replace("'", "''")
            op.execute(f"COMMENT ON {what} IS '{words}'")
    # Whoever moves tasks counts them; whoever may read or clear the history may do so here.
    op.execute("""
    DO $$
    DECLARE given record;
    BEGIN
        FOR given IN
            SELECT g.privilege_type AS what,
                CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE CAST(CAST(g.grantee AS regrole) AS text)
                END AS whom
            FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS g
            WHERE c.oid = CAST('task_attempt' AS regclass) AND g.grantee <> c.relowner
              AND g.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
        LOOP
            EXECUTE 'GRANT ' || given.what || ' ON task_count_part, task_count TO ' || given.whom;
        END LOOP;
    END $$
    """)
    build_index(
        "task_attempt_ended",
        "task_attempt",
        "USING brin (ended_at) WITH (pages_per_range = 16, autosummarize = on)",
    )


def downgrade() -> None:
    op.execute("DROP INDEX task_attempt_ended")
    op.execute("DROP TABLE task_count")
    op.execute("DROP TABLE task_count_part")
