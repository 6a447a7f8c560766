"""The pool's name: what its messages say, so that another one's worker leaves them alone."""

from __future__ import annotations

from sqlalchemy import Connection, text

from tasks_app.pool.tables import table

_NAME = text("""
    SELECT left(md5(p.prosrc || current_database()), 12) FROM pg_catalog.pg_proc p
    WHERE p.oid = to_regproc(:function)
""")
"""Out of the catalogue, for it is also asked within transactions of producers: there nothing may
fail, not where the schema is a version behind either. A copy of the database has another name."""


def pool_name(connection: Connection) -> str | None:
    """Return it: 12 characters that stay as they are; None: the schema knows none yet."""
    return connection.execute(_NAME, {"function": table("task_pool")}).scalar()
