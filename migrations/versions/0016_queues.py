"""Rules of queues: pauses that end, windows, holidays, gates, and what their tasks have by default.

Claims read three small tables, once a statement; of tasks nothing is written.
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

QUEUE = "queue ~ '^[A-Za-z_][A-Za-z0-9_.-]{0,99}$'"


def upgrade() -> None:
    op.execute("""
    ALTER TABLE task_queue_pause
        ADD COLUMN resume_at timestamptz
            CHECK (resume_at BETWEEN '1900-01-01Z' AND '9900-01-01Z')
    """)
    op.execute("""
    CREATE TABLE task_calendar (
        name text   PRIMARY KEY CHECK (name ~ '^[A-Za-z_][A-Za-z0-9_.-]{0,99}$'),
        days date[] NOT NULL CONSTRAINT days_are_readable CHECK (
            ('0001-01-01' <= ALL (days) AND '9999-12-31' >= ALL (days)) IS TRUE
            AND coalesce(array_ndims(days), 1) = 1)
    )
    """)
    # A zone that the server does not know is refused here: in a claim it would stop all queues.
    op.execute(f"""
    CREATE TABLE task_queue_window (
        queue    text       NOT NULL CHECK ({QUEUE}),
        days     smallint[] NOT NULL CHECK (
            cardinality(days) > 0 AND days <@ ARRAY[1, 2, 3, 4, 5, 6, 7]::smallint[]),
        opens    time       NOT NULL CHECK (opens < '24:00'),
        closes   time       NOT NULL,
        zone     text       NOT NULL CONSTRAINT zone_is_known
            CHECK ('2000-01-01Z'::timestamptz AT TIME ZONE zone IS NOT NULL),
        calendar text       REFERENCES task_calendar
    )
    """)
    op.execute("ALTER TABLE task_queue_window REPLICA IDENTITY FULL")
    op.execute(f"""
    CREATE TABLE task_queue (
        queue           text     PRIMARY KEY CHECK ({QUEUE}),
        running_below   integer  CHECK (running_below > 0),
        waiting_below   interval CHECK (waiting_below > '0' AND waiting_below <= '3660 days'),
        shut            text     CHECK (shut IN ('running', 'waiting')),
        retry           text,
        max_attempts    smallint CHECK (max_attempts > 0),
        timeout_ms      integer  CHECK (timeout_ms > 0),
        hard_timeout_ms integer  CHECK (hard_timeout_ms > 0),
        CONSTRAINT only_a_gate_is_shut CHECK (
            shut IS NULL OR running_below IS NOT NULL OR waiting_below IS NOT NULL)
    )
    """)


def downgrade() -> None:
    op.execute("DROP TABLE task_queue")
    op.execute("DROP TABLE task_queue_window")
    op.execute("DROP TABLE task_calendar")
    op.execute("ALTER TABLE task_queue_pause DROP COLUMN resume_at")
