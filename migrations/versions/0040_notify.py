"""The function of an opt-in trigger that tells by NOTIFY which queue got work.

For producers in SQL and other languages. The trigger itself is made by ``tasks-app notify
install``: who notifies within a transaction waits at its COMMIT for all others that do.
"""

from __future__ import annotations

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"


def upgrade() -> None:
    # What is not due yet, or left to a hint, a scan looks at in time: nobody has to be woken.
    op.execute("""
    CREATE FUNCTION task_notify() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_catalog.pg_notify('tasks_app_' || TG_RELID, queues.queue)
        FROM (SELECT DISTINCT n.queue FROM inserted AS n
              WHERE n.state = 'PENDING' AND n.enabled AND n.scan_at <= statement_timestamp()
             ) AS queues;
        RETURN NULL;
    END $$
    """)
    op.execute("""
    COMMENT ON FUNCTION task_notify() IS
        'Tells who listens which queue got work. For the trigger of tasks-app notify install.'
    """)


def downgrade() -> None:
    op.execute("DROP FUNCTION task_notify() CASCADE")
