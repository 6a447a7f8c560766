"""Partitions of about as many rows each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.cuts import (
    Amount,
    CutPoint,
    even_cuts,
    partition_of_nulls,
    ranges_of_cuts,
)
from tasks_app.domain.partition.records import Plan
from tasks_app.pool.batch.sources.cuts import exact_cuts, points, sampled_cuts
from tasks_app.pool.batch.sources.measure import count, has_nulls
from tasks_app.pool.batch.sources.relation import Relation, Source, find

BIG_BYTES = 256 * 2**20  # larger tables are sampled: to sort their keys takes seconds
SAMPLE_BYTES = 64 * 2**20  # read of them: some 8,000 blocks; their quantiles are off by 0.5%


class How(StrEnum):
    AUTO = "auto"  # exact, or by a sample if the table is big
    EXACT = "exact"  # all keys, in their order
    SAMPLE = "sample"  # some of the table's blocks
    STATISTICS = "statistics"  # what ANALYZE left: about a hundred keys; nothing is read


@dataclass(frozen=True, slots=True)
class Even(Amount):
    """Ranges of keys with about as many rows each; one key is never divided."""

    how: How = How.AUTO

    def plan(self, connection: Connection, source: Source) -> Plan:
        """Split by the rows of now; the first and the last range have no outer bound."""
        relation = find(connection, source)
        cuts, rows, how = self.cut(connection, relation)
        partitions = ranges_of_cuts(cuts, rows)
        if has_nulls(connection, relation):
            partitions.append(partition_of_nulls(len(partitions) + 1, None))
        made, wanted = len(cuts) + 1, self.number_for(rows, relation.size_bytes)
        warning = (
            f"{made} partitions instead of {wanted}: some keys have more rows than a partition "
            "should, and one key is never divided. Split by hash, or by a column with more "
            "different values."
        )
        warnings = (warning,) if made < min(wanted, rows) else ()
        return Plan(f"even, {how}", relation.key_type, tuple(partitions), rows, warnings=warnings)

    def cut(self, connection: Connection, relation: Relation) -> tuple[list[CutPoint], int, How]:
        """Return where to cut, about how many rows have a key, and how that was found."""
        how = self.how
        if how is How.SAMPLE and not relation.can_sample:
            raise PlanError(
                f"{relation.source} cannot be sampled: it is not a table. Do not set `how`."
            )
        if how is How.AUTO:
            is_big = relation.can_sample and (relation.size_bytes or 0) > BIG_BYTES
            how = How.SAMPLE if is_big else How.EXACT
        if how is How.EXACT:
            rows = count(connection, relation)
            parts = self.number_for(rows, relation.size_bytes)
            return exact_cuts(connection, relation, parts, rows), rows, how
        size = relation.size_bytes or 1
        if how is How.STATISTICS:
            found = points(connection, relation)
            if not found and relation.rows != 0:
                raise PlanError(f"There are no statistics of {relation.source}. Run ANALYZE first.")
            parts = self.number_for(relation.rows, size)
            return even_cuts(found, parts), round(sum(weight for _, weight in found)), how
        known = relation.rows
        if known is None and self.rows is not None:
            known = count(connection, relation)
        parts = self.number_for(known, size)
        percent = min(100.0, 100.0 * SAMPLE_BYTES / size)
        return *sampled_cuts(connection, relation, parts, percent), how
