"""Bloated tables and indexes, and sequences behind their tables: found and repaired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, text

from tasks_app.pool import tables as t

LEAST_WASTE = 10 * 2**20  # bytes: rewriting an index for less is not worth the load
_OURS = """
    SELECT c.oid, c.relname, c.relnamespace::regnamespace::text AS schema, c.reltuples,
        coalesce((SELECT o.option_value::float8 FROM pg_options_to_table(c.reloptions) o
            WHERE o.option_name = 'fillfactor'), 100) / 100 AS fill
    FROM (SELECT DISTINCT coalesce(t.relid, to_regclass(n.name)) AS oid
        FROM unnest(CAST(:tables AS text[])) AS n(name)
        LEFT JOIN LATERAL pg_partition_tree(to_regclass(n.name)) AS t ON true) AS o
    JOIN pg_class c ON c.oid = o.oid AND c.relkind = 'r'
"""
_PAGE, _HEADER = 8192, 24
_ALL = {"tables": [t.table(name) for name in sorted(t.TABLES)]}


@dataclass(frozen=True, slots=True)
class RelationSize:
    table: str
    name: str
    kind: str
    bytes: int
    estimate: int | None  # bytes after a rewrite; None: ANALYZE has not seen it yet

    @property
    def wasted(self) -> int:
        return 0 if self.estimate is None else max(0, self.bytes - self.estimate)

    @property
    def is_bloated(self) -> bool:
        return self.wasted > self.bytes / 2 and self.wasted >= LEAST_WASTE


def sizes(connection: Connection) -> list[RelationSize]:
    """Return all our tables and indexes, those that waste most first."""
    query = text(f"""
        WITH ours AS MATERIALIZED ({_OURS}),
        rows AS (
            SELECT o.relname AS "table", o.relname AS name, 'table' AS kind, o.oid, o.reltuples,
                o.fill,
                (SELECT sum(s.avg_width * (1 - s.null_frac)) FROM pg_stats s
                    WHERE s.schemaname = o.schema AND s.tablename = o.relname) AS width,
                28 AS header
            FROM ours o),
        entries AS (
            SELECT o.relname AS "table", i.relname AS name, 'index' AS kind, i.oid, i.reltuples,
                coalesce((SELECT f.option_value::float8 FROM pg_options_to_table(i.reloptions) f
                    WHERE f.option_name = 'fillfactor'), 90) / 100 AS fill,
                (SELECT sum(coalesce(s.avg_width, 8))
                    FROM unnest(CAST(x.indkey AS int2[])) WITH ORDINALITY AS k(number, place)
                    JOIN pg_attribute e ON e.attrelid = i.oid AND e.attnum = k.place
                    LEFT JOIN pg_attribute a ON a.attrelid = o.oid AND a.attnum = k.number
                        AND k.number > 0
                    LEFT JOIN pg_stats s ON s.schemaname = o.schema
                        AND s.tablename = CASE WHEN k.number > 0 THEN o.relname ELSE i.relname END
                        AND s.attname = coalesce(a.attname, e.attname)) AS width,
                12 AS header
            FROM ours o JOIN pg_index x ON x.indrelid = o.oid AND x.indisvalid
            JOIN pg_class i ON i.oid = x.indexrelid
            JOIN pg_am m ON m.oid = i.relam AND m.amname = 'btree')
        SELECT "table", name, kind, pg_relation_size(oid) AS bytes,
            CASE WHEN reltuples >= 0 AND (width IS NOT NULL OR reltuples = 0) THEN CAST({_PAGE} * (1
                + ceil(reltuples * (header + 8 * ceil(coalesce(width, 0) / 8))
                    / (({_PAGE} - {_HEADER}) * fill))) AS bigint) END AS estimate
        FROM (SELECT * FROM rows UNION ALL SELECT * FROM entries) AS all_of_them
    """)
    found = [RelationSize(*row) for row in connection.execute(query, _ALL)]
    return sorted(found, key=lambda size: (-size.wasted, -size.bytes, size.name))


def invalid_indexes(connection: Connection) -> list[str]:
    """Return the invalid indexes that a failed or killed REINDEX left."""
    query = text(f"""
        WITH ours AS MATERIALIZED ({_OURS})
        SELECT i.relname FROM ours o JOIN pg_index x ON x.indrelid = o.oid AND NOT x.indisvalid
        JOIN pg_class i ON i.oid = x.indexrelid
        WHERE i.relname ~ '_cc(new|old)[0-9]*$' ORDER BY 1
    """)
    return list(connection.execute(query, _ALL).scalars())


def tables_of_other_roles(connection: Connection) -> Sequence[str]:
    query = text(f"""
        WITH ours AS MATERIALIZED ({_OURS})
        SELECT o.relname FROM ours o JOIN pg_class c ON c.oid = o.oid
        WHERE NOT pg_has_role(current_user, c.relowner, 'USAGE') ORDER BY 1
    """)
    return connection.execute(query, _ALL).scalars().all()


def set_lock_timeout(connection: Connection, seconds: float) -> None:
    """Set it for the session: REINDEX CONCURRENTLY runs outside a transaction."""
    connection.execute(
        text("SELECT set_config('lock_timeout', :value, false)"),
        {"value": f"{round(seconds * 1000)}ms"},
    )


def reindex(connection: Connection, index: str) -> None:
    """Rewrite an index beside the old one; readers and writers do not wait."""
    connection.exec_driver_sql(f"REINDEX INDEX CONCURRENTLY {t.table(_quoted(index))}")


def drop_index(connection: Connection, index: str) -> None:
    connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS {t.table(_quoted(index))}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_OWN = (
    *(t.SCHEDULE, t.AUDIT, t.GROUP, t.PARTITION),
    *(t.BATCH, t.BATCH_SKIP, t.ALERT, t.TRANSITION, t.TOTAL, t.LOCK_HOLDER),
)
# Each sequence, and the columns that hold its numbers.
GIVEN = {
    t.table("task_pending_id_seq"): (
        *((pool, "id") for pool in (t.PENDING, t.COMPLETED, t.ERROR)),
        (t.GROUP, "callback_id"),
    ),
    t.LOCK_FENCE: ((t.LOCK_HOLDER, "fence"),),
    **{f"{name}_id_seq": ((name, "id"),) for name in _OWN},
}
MARGIN = 10_000  # skipped when one is set: others may draw from it at this moment


class LateSequence(NamedTuple):
    """A sequence that will give numbers that are in use."""

    name: str
    next: int
    highest: int


def sequences_behind(connection: Connection) -> list[LateSequence]:
    """Return those that this role may read."""
    query = text("""
        SELECT s.name FROM unnest(CAST(:names AS text[])) AS s(name)
        WHERE has_sequence_privilege(s.name, 'SELECT')
    """)
    names = connection.execute(query, {"names": list(GIVEN)}).scalars().all()
    found = []
    for name in names:
        highest = ", ".join(f"(SELECT max({column}) FROM {of})" for of, column in GIVEN[name])
        row = connection.execute(
            text(f"SELECT last_value + CAST(is_called AS int), greatest({highest}) FROM {name}")
        ).one()
        if row[1] is not None and row[1] >= row[0]:
            found.append(LateSequence(name, *row))
    return found


def advance_sequences(connection: Connection) -> list[LateSequence]:
    found = sequences_behind(connection)
    query = text("SELECT setval(CAST(:name AS regclass), :value)")
    for each in found:
        connection.execute(query, {"name": each.name, "value": each.highest + MARGIN})
    return found
