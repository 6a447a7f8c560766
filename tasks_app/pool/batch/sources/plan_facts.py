"""The facts that a plan is checked against, as the database has them now."""

from __future__ import annotations

from sqlalchemy import Connection

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import Key
from tasks_app.domain.partition.records import Extent, Facts, PartitionKind, Plan
from tasks_app.pool.batch.sources.measure import extent, has_nulls, histogram
from tasks_app.pool.batch.sources.physical import leaves, physical_ranges
from tasks_app.pool.batch.sources.relation import Relation, Source, by_bucket, find

MOST_VALUES = 100_000
"""A key with more different values is not split by values."""


def gather(
    connection: Connection,
    source: Source,
    plan: Plan,
    *,
    aligned: bool = False,
    at_least: int = 0,
) -> Facts:
    """Return which keys there are now; ``aligned``: with the bounds of the database's partitions.

    Raises:
        PlanError: the source does not exist, or has no such partitions or keys.
    """
    relation = find(connection, source)
    key_type = relation.key_type
    kinds = {each.kind for each in plan.partitions}
    if any(each.source is not None for each in plan.partitions):
        parts = leaves(connection, relation)
        extents = {str(leaf): extent(connection, find(connection, leaf)) for leaf in parts}
        return Facts(key_type, dict(extents.items()), at_least=at_least)
    found = _extent(connection, relation, plan)
    values = _values(connection, relation) if PartitionKind.VALUES in kinds else None
    physical = physical_ranges(connection, relation) if aligned else ()
    return Facts(key_type, {None: found}, values, physical, at_least)


def _extent(connection: Connection, relation: Relation, plan: Plan) -> Extent:
    stored = {each.column for each in plan.partitions if each.kind is PartitionKind.HASH}
    if len(stored) == 1:
        (name,) = stored
        if name is None:
            return Extent(nulls=has_nulls(connection, relation))
        relation = by_bucket(relation, name)
    return extent(connection, relation)


def _values(connection: Connection, relation: Relation) -> dict[Key, int]:
    values = histogram(connection, relation, MOST_VALUES)
    if values is None:
        raise PlanError(
            f"{relation.source} has more than {MOST_VALUES} different keys. "
            "Split it by ranges or by hash."
        )
    return values
