"""Connection limits: of roles that may run tasks, and of the database."""

from __future__ import annotations

from sqlalchemy import Connection, text

from tasks_app.domain.explain.surroundings import ConnectionLimit
from tasks_app.pool.tables import PENDING

_LIMITS = text(f"""
    SELECT 'role ' || r.rolname AS of, r.rolconnlimit AS most,
        (SELECT count(*) FROM pg_stat_activity a WHERE a.usesysid = r.oid) AS used
    FROM pg_roles r
    WHERE r.rolconnlimit >= 0 AND r.rolcanlogin AND NOT r.rolsuper
      AND has_table_privilege(r.oid, to_regclass('{PENDING}'), 'UPDATE')
    UNION ALL
    SELECT 'database ' || d.datname, d.datconnlimit,
        (SELECT count(*) FROM pg_stat_activity a WHERE a.datid = d.oid)
    FROM pg_database d WHERE d.datname = current_database() AND d.datconnlimit >= 0
    ORDER BY 1
""")


def connection_limits(connection: Connection) -> list[ConnectionLimit]:
    """Return what is limited; superusers are not."""
    return [ConnectionLimit(*row) for row in connection.execute(_LIMITS)]
