"""The name of the pool, which its messages carry: several may share a broker.

A function, for whoever may use the schema may call it, and a dump takes it along.
"""

from __future__ import annotations

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
    DO $do$ BEGIN
        EXECUTE format(
            'CREATE FUNCTION task_pool() RETURNS text LANGUAGE sql STABLE AS %L',
            format('SELECT %L', gen_random_uuid()));
    END $do$
    """)


def downgrade() -> None:
    op.execute("DROP FUNCTION task_pool()")
