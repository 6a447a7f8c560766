"""Where to cut a relation: by all keys, by a sample, or by the statistics of ANALYZE."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tasks_app.domain.partition.cuts import CutPoint
from tasks_app.domain.partition.keys import Key, KeyType, in_utc
from tasks_app.domain.partition.records import Partition
from tasks_app.pool.batch.sources.measure import usable
from tasks_app.pool.batch.sources.predicate import bound, key_from_text, predicate
from tasks_app.pool.batch.sources.relation import Query, Relation, Source, find, in_order, source_of

_SEED = 4711  # the same blocks each time: they are counted first, and read later


def points(connection: sa.Connection, relation: Relation) -> list[tuple[Key, float]]:
    """Return keys that a bound can name, and how many rows each stands for in the statistics."""
    query = sa.text("""
        SELECT s.null_frac, CAST(CAST(s.most_common_vals AS text) AS text[]) AS common,
            CAST(CAST(s.histogram_bounds AS text) AS text[]) AS bounds,
            s.most_common_freqs AS shares
        FROM pg_stats s JOIN pg_namespace n ON n.nspname = s.schemaname
        JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s.tablename
        WHERE c.oid = CAST(:oid AS oid) AND s.attname = :key
        ORDER BY s.inherited DESC LIMIT 1
    """)
    row = connection.execute(query, {"oid": relation.oid, "key": relation.source.key}).first()
    if row is None or not relation.rows:
        return []
    shares = row.shares or []
    found = _weighted(relation.key_type, zip(row.common or [], shares, strict=True))
    bounds = (row.bounds or [])[:-1]
    share = max(0.0, 1.0 - row.null_frac - sum(shares)) / max(1, len(bounds))
    found += _weighted(relation.key_type, ((bound, share) for bound in bounds))
    return [(key, share * relation.rows) for key, share in found]


def _weighted(key_type: KeyType, shares: Any) -> list[tuple[Key, float]]:
    found = []
    for written, share in shares:
        try:
            key = key_type.parse(written)
        except ValueError:
            continue
        if key_type.admits(key):
            found.append((key, share))
    return found


def keys_owned(
    connection: sa.Connection,
    source: Source,
    partition: Partition,
    key_type: KeyType,
    *,
    behind: str | None = None,
) -> Relation:
    found = find(connection, source_of(source, partition))
    own = predicate(partition, found.key, key_type)
    if behind is not None:
        last = key_from_text(sa.literal(behind, sa.Text), key_type)
        own = sa.and_(own, in_order(found.key, key_type) > last)
    keys = sa.select(found.key.label(source.key)).select_from(found.rows_of).where(own)
    return find(connection, Query(keys, source.key))


def exact_cuts(
    connection: sa.Connection, relation: Relation, parts: int, rows: int
) -> list[CutPoint]:
    """Cut ``rows`` rows into equal parts, as ``ntile`` does. Sorts all keys, or reads an index."""
    return _cuts(connection, relation, relation.rows_of, parts, rows)


def sampled_cuts(
    connection: sa.Connection, relation: Relation, parts: int, percent: float
) -> tuple[list[CutPoint], int]:
    """Cut by a sample of the blocks; also return about how many rows there are."""
    sample = sa.tablesample(relation.rows_of, sa.func.system(percent), seed=sa.literal(_SEED))
    counted = sa.select(sa.func.count()).select_from(sample).where(relation.key.is_not(None))
    seen = int(connection.execute(counted).scalar_one())
    scale = 100 / percent
    cuts = _cuts(connection, relation, sample, parts, seen)
    return [CutPoint(cut.key, round(cut.before * scale)) for cut in cuts], round(seen * scale)


def upper_half(connection: sa.Connection, relation: Relation, rows: int) -> Key | None:
    """Return the key with which the second half of ``rows`` rows begins.

    Rows of one key stay together, in the first half; None: no key comes behind them. Reads half
    of the keys, by an index if there is one.
    """
    key = relation.ordered
    keys = sa.select(relation.key).select_from(relation.rows_of).where(usable(relation))
    keys = keys.order_by(key).limit(1)
    middle = connection.execute(keys.offset(max(0, rows - 1) // 2)).scalar()
    if middle is None:
        return None
    behind = key > bound(middle, relation.key_type)
    found: Key | None = in_utc(connection.execute(keys.where(behind)).scalar())
    return found


def _cuts(
    connection: sa.Connection, relation: Relation, rows_of: sa.FromClause, parts: int, rows: int
) -> list[CutPoint]:
    starts, key = sorted({part * rows // parts + 1 for part in range(parts)}), relation.ordered
    ranked = (
        sa.select(
            relation.key.label("key"),
            sa.func.row_number().over(order_by=key).label("at"),
            (sa.func.rank().over(order_by=key) - 1).label("before"),
        )
        .select_from(rows_of)
        .where(usable(relation))
        .subquery()
    )
    query = (
        sa.select(ranked.c.key, ranked.c.before)
        .where(ranked.c.at == sa.func.any(sa.literal(starts)))
        .order_by(ranked.c.at)
    )
    rows_read = connection.execute(query)
    cuts = dict.fromkeys(CutPoint(in_utc(found), before) for found, before in rows_read)
    return list(cuts)[1:]  # the first part begins without a bound
