"""Indexes for gates: who runs, who is first, who waits. A plain task is in none of them."""

from __future__ import annotations

from alembic import op

from tasks_app.pool.build_index import build_index

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

INDEXES = {
    "task_pending_order": "(order_key, id) WHERE order_key IS NOT NULL",
    "task_pending_order_runs": ("(order_key) WHERE state = 'RUNNING' AND order_key IS NOT NULL"),
    "task_pending_limit_runs": ("(limit_key) WHERE state = 'RUNNING' AND limit_key IS NOT NULL"),
    "task_pending_parked": (
        "(parked, priority, id) WHERE state = 'PENDING' AND parked IS NOT NULL"
    ),
    "task_error_order": "(order_key, id) WHERE order_key IS NOT NULL",
}


def upgrade() -> None:
    for name, index in INDEXES.items():
        build_index(name, "task_error" if name == "task_error_order" else "task_pending", index)


def downgrade() -> None:
    for name in INDEXES:
        op.execute(f"DROP INDEX {name}")
