"""Indexes for gates: who runs, who is first, who waits. A plain task is in none of them."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

INDEXES = {
    "task_pending_order": "task_pending (order_key, id) WHERE order_key IS NOT NULL",
    "task_pending_order_runs": (
        "task_pending (order_key) WHERE state = 'RUNNING' AND order_key IS NOT NULL"
    ),
    "task_pending_limit_runs": (
        "task_pending (limit_key) WHERE state = 'RUNNING' AND limit_key IS NOT NULL"
    ),
    "task_pending_parked": (
        "task_pending (parked, priority, id) WHERE state = 'PENDING' AND parked IS NOT NULL"
    ),
    "task_error_order": "task_error (order_key, id) WHERE order_key IS NOT NULL",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for name, index in INDEXES.items():
        op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {index}")


def downgrade() -> None:
    for name in INDEXES:
        op.execute(f"DROP INDEX {name}")
