"""Partitions by the hash of the key, for keys of any type."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from tasks_app.domain.partition.cuts import Amount
from tasks_app.domain.partition.keys import Range
from tasks_app.domain.partition.records import Partition, PartitionKind, Plan
from tasks_app.pool.batch.sources.measure import count, has_nulls
from tasks_app.pool.batch.sources.relation import Source, by_bucket, find


@dataclass(frozen=True, slots=True)
class Hash(Amount):
    """One partition for each remainder of the key's hash.

    New rows spread as the old ones do. Each partition reads the whole table, unless an index holds
    the bucket: see ``column``.
    """

    column: str | None = None
    """A stored column that holds the bucket by the same modulus: ``add_bucket`` makes one."""

    def plan(self, connection: Connection, source: Source) -> Plan:
        """Split; reads only statistics if the number of partitions is given."""
        relation = find(connection, source)
        rows = relation.rows
        if rows is None or self.rows is not None:
            rows = count(connection, relation)
        modulus = self.number_for(rows, relation.size_bytes)
        hashed = by_bucket(relation, self.column) if self.column else relation
        nulls = has_nulls(connection, hashed)
        partitions = tuple(
            Partition(
                bucket + 1,
                PartitionKind.HASH,
                Range(bucket, bucket + 1),
                owns_null=nulls and bucket == 0,
                column=self.column,
                modulus=modulus,
                rows=rows // modulus,
            )
            for bucket in range(modulus)
        )
        return Plan(f"hash, {modulus}", relation.key_type, partitions, rows)
