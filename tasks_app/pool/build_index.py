"""How a migration builds an index on a table that is in use."""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

from tasks_app.pool.tables import table

_IS_INVALID = text("""
    SELECT NOT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:index)
""")


def build_index(name: str, of: str, what: str) -> None:
    """Build it while others write; in a transaction of somebody else's, the usual way.

    What a killed or failed try left is of no use, and costs as much: it goes first.
    """
    context = op.get_context()
    index, rest = table(name), f"IF NOT EXISTS {name} ON {table(of)} {what}"
    if context.as_sql or not context.opts["transaction_per_migration"]:
        op.execute(f"CREATE INDEX {rest}")
        return
    with context.autocommit_block():
        context.opts["say"](f"building the index {name}; nobody waits for it")
        if op.get_bind().execute(_IS_INVALID, {"index": index}).scalar():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}")
        op.execute(f"CREATE INDEX CONCURRENTLY {rest}")
