"""Statistics: where keys lie, as ANALYZE left it; nothing of the table itself is read."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

from tasks_app.domain.partition.keys import Key, KeyType
from tasks_app.pool.batch.relation import Relation

_READ = text("""
    SELECT s.null_frac, CAST(CAST(s.most_common_vals AS text) AS text[]) AS common,
        s.most_common_freqs AS shares, CAST(CAST(s.histogram_bounds AS text) AS text[]) AS bounds
    FROM pg_stats s JOIN pg_namespace n ON n.nspname = s.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s.tablename
    WHERE c.oid = CAST(:oid AS oid) AND s.attname = :key
    ORDER BY s.inherited DESC LIMIT 1
""")


def points(connection: Connection, relation: Relation) -> list[tuple[Key, float]]:
    """Return keys, and for how many rows each stands; none: nobody has analyzed the table.

    Keys that no bound can name are left out.
    """
    row = connection.execute(_READ, {"oid": relation.oid, "key": relation.source.key}).first()
    if row is None or not relation.rows:
        return []
    shares = row.shares or []
    found = _weighted(relation.key_type, zip(row.common or [], shares, strict=True))
    rest = 1.0 - row.null_frac - sum(shares)
    bounds = (row.bounds or [])[:-1]
    share = max(0.0, rest) / max(1, len(bounds))
    found += _weighted(relation.key_type, ((bound, share) for bound in bounds))
    return [(key, share * relation.rows) for key, share in found]


def _weighted(key_type: KeyType, shares: Any) -> list[tuple[Key, float]]:
    found = []
    for word, share in shares:
        try:
            key = key_type.parse(word)
        except ValueError:
            continue
        if key_type.admits(key):
            found.append((key, share))
    return found
