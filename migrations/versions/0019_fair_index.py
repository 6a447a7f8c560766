"""The index of fair queues: in it are tasks with a key that wait, and no others.

Queue and key are one expression, which no other index has, and it says what its rows are not: the
scan's index, which holds what is PENDING, is then none that the planner could search for a key,
whatever it takes the sizes of tables for. No queue has a colon.
"""

from __future__ import annotations

from alembic import op

from tasks_app.pool.build_index import build_index

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    build_index(
        "task_pending_fair",
        "task_pending",
        """((queue || ':' || fair_key) COLLATE "C", priority, scan_at, id)
        WHERE state <> 'RUNNING' AND fair_key IS NOT NULL""",
    )


def downgrade() -> None:
    op.execute("DROP INDEX task_pending_fair")
