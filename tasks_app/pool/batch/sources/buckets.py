"""A stored column with the hash bucket of each row's key: added, replaced and dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Text, cast, literal_column, text

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.keys import KeyType
from tasks_app.domain.partition.records import PartitionKind, Status, Table
from tasks_app.pool.batch.sources.predicate import bucket, execute_inline, inline
from tasks_app.pool.batch.sources.relation import find, identifier, quoted
from tasks_app.pool.tables import BATCH, BATCH_STEP, PARTITION


def add_bucket(connection: Connection, table: Table, column: str, modulus: int) -> None:
    added = _add_column(connection, table, column, modulus)
    execute_inline(connection, f"ALTER TABLE {quoted(table)} {added}")
    _create_index(connection, table, column)


def rebalance(connection: Connection, table: Table, column: str, modulus: int) -> None:
    """Compute the column again, with another modulus; only one that the database computes."""
    added = _add_column(connection, table, column, modulus)
    _check_computed(connection, table, column)
    dropped = f"DROP COLUMN {identifier(column)}"
    execute_inline(connection, f"ALTER TABLE {quoted(table)} {dropped}, {added}")
    _create_index(connection, table, column)


def drop_bucket(connection: Connection, table: Table, column: str) -> None:
    """Drop the column and its index. Raises PlanError if the database does not compute it."""
    _check_computed(connection, table, column)
    execute_inline(connection, f"ALTER TABLE {quoted(table)} DROP COLUMN {identifier(column)}")


def _add_column(connection: Connection, table: Table, column: str, modulus: int) -> str:
    relation = find(connection, table)
    computed = inline(connection, bucket(relation.key, relation.key_type, modulus))
    return f"ADD COLUMN {identifier(column)} integer GENERATED ALWAYS AS ({computed}) STORED"


def _create_index(connection: Connection, table: Table, column: str) -> None:
    columns = f"{identifier(column)}, {identifier(table.key)}"
    execute_inline(connection, f"CREATE INDEX ON {quoted(table)} ({columns})")


def _check_computed(connection: Connection, table: Table, column: str) -> None:
    row = connection.execute(_COLUMN, {"name": str(table), "column": column}).one_or_none()
    if row is None or not row.is_generated:
        raise _not_computed(table, column)


def _not_computed(table: Table, column: str) -> PlanError:
    return PlanError(
        f"The database does not compute {column} of {table}. Update it yourself, or add one by "
        "add_bucket."
    )


_COLUMN = text("""
    SELECT a.attgenerated = 's' AS is_generated, c.relkind = 'r' AS is_plain
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE c.oid = to_regclass(:name) AND a.attname = :column AND NOT a.attisdropped
""")
LOCK_WAIT = "SET LOCAL lock_timeout = '5s'"  # others wait behind us no longer than we wait


@dataclass(frozen=True, slots=True)
class BucketColumn:
    table: Table
    column: str
    modulus: int

    @property
    def beside(self) -> str:  # until it is filled
        return f"{self.column}__{self.modulus}"

    @property
    def index(self) -> str:
        return f"{self.table.name}_{self.beside}"[-63:]

    @property
    def trigger(self) -> str:  # and its function, which fill new rows
        return f"tasks_app:{self.column}:{self.modulus}"


def find_bucket_readers(connection: Connection, column: str) -> Sequence[Row[Any]]:
    """Return the steps of unfinished instances that read by a column of this name."""
    query = text(f"""
        SELECT DISTINCT b.id AS batch_id, b.job, b.params, p.step FROM {PARTITION} p
        JOIN {BATCH} b ON b.id = p.batch_id
        JOIN {BATCH_STEP} s ON s.batch_id = p.batch_id AND s.step = p.step
        WHERE p.kind = '{PartitionKind.HASH}' AND p.key_column = :column AND s.status <> 'COMPLETED'
          AND b.status NOT IN ('COMPLETED', 'ABANDONED') AND p.status <> '{Status.ABANDONED}'
        ORDER BY batch_id, p.step
    """)
    return connection.execute(query, {"column": column}).all()


def begin_rebucket(connection: Connection, new: BucketColumn) -> None:
    """Add the new column and its trigger unless they exist; drop those of other moduli."""
    connection.execute(text(LOCK_WAIT))
    row = connection.execute(_COLUMN, _named(new, new.column)).one_or_none()
    triggers = _triggers(connection, new)
    in_place = any(not _has(connection, new, _beside(new, each)) for each in triggers)
    if row is None or not (row.is_generated or in_place):
        raise _not_computed(new.table, new.column)
    if not row.is_plain:
        raise PlanError(
            f"{new.table} is partitioned in the database. Rebalance its partitions one by one."
        )
    if _has(connection, new, new.beside):
        return
    if new.trigger in triggers:
        raise PlanError(
            f"{new.column} of {new.table} already has the modulus {new.modulus}. There is nothing "
            "to do."
        )
    table = quoted(new.table)
    for trigger in triggers:
        other = _beside(new, trigger)
        if _has(connection, new, other):
            execute_inline(connection, f"ALTER TABLE {table} DROP COLUMN {identifier(other)}")
            _drop_trigger(connection, new, trigger)
    execute_inline(connection, f"ALTER TABLE {table} ADD COLUMN {identifier(new.beside)} integer")
    _create_function(connection, new, new.beside)
    execute_inline(
        connection,
        f"CREATE TRIGGER {identifier(new.trigger)} BEFORE INSERT OR UPDATE OF "
        f"{identifier(new.table.key)} ON {table} FOR EACH ROW "
        f"EXECUTE FUNCTION {_function(new.table, new.trigger)}()",
    )


def count_blocks(connection: Connection, new: BucketColumn) -> int:
    size = "pg_relation_size(to_regclass(:name)) / current_setting('block_size')\\:\\:bigint"
    query = text(f"SELECT CAST({size} AS bigint)")
    return int(connection.execute(query, {"name": str(new.table)}).scalar_one())


def fill_blocks(connection: Connection, new: BucketColumn, first: int, number: int) -> int:
    """Fill the column in ``number`` blocks; return in how many rows it was empty."""
    relation = find(connection, new.table)
    by = inline(connection, bucket(relation.key, relation.key_type, new.modulus))
    update = f"UPDATE {quoted(new.table)} SET {identifier(new.beside)} = {by}"
    blocks = f"ctid >= '({first},0)' AND ctid < '({first + number},0)'"
    return execute_inline(connection, f"{update} WHERE {blocks} AND {_is_empty(new)}").rowcount


def build_bucket_index(connection: Connection, new: BucketColumn) -> None:
    """Build the index while others write; outside a transaction, on a connection of its own."""
    execute_inline(connection, "SET statement_timeout = 0")
    execute_inline(connection, "SET lock_timeout = 0")
    query = text("""
        SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE i.indrelid = to_regclass(:name) AND c.relname = :index
    """)
    found = connection.execute(query, {"name": str(new.table), "index": new.index}).scalar()
    schema = f"{identifier(new.table.schema)}." if new.table.schema else ""
    if found is False:  # an earlier call was interrupted
        execute_inline(connection, f"DROP INDEX CONCURRENTLY {schema}{identifier(new.index)}")
    if not found:
        columns = f"{identifier(new.beside)}, {identifier(new.table.key)}"
        create = f"CREATE INDEX CONCURRENTLY {identifier(new.index)} ON {quoted(new.table)}"
        execute_inline(connection, f"{create} ({columns})")


def lock_table(connection: Connection, new: BucketColumn) -> None:
    connection.execute(text(LOCK_WAIT))
    execute_inline(connection, f"LOCK TABLE {quoted(new.table)} IN ACCESS EXCLUSIVE MODE")


def replace_column(connection: Connection, new: BucketColumn) -> bool:
    """Replace the old column in the locked table; False: some rows have no new bucket yet."""
    table, column = quoted(new.table), identifier(new.column)
    left = f"SELECT 1 FROM {table} WHERE {_is_empty(new)} LIMIT 1"
    if execute_inline(connection, left).first() is not None:
        return False
    old = [name for name in _triggers(connection, new) if name != new.trigger]
    execute_inline(connection, f"ALTER TABLE {table} DROP COLUMN {column}")
    rename = f"RENAME COLUMN {identifier(new.beside)} TO {column}"
    execute_inline(connection, f"ALTER TABLE {table} {rename}")
    _create_function(connection, new, new.column)
    for trigger in old:
        _drop_trigger(connection, new, trigger)
    return True


def _is_empty(new: BucketColumn) -> str:
    """Return the condition that a row has no bucket yet; without a key it never has one."""
    return f"{identifier(new.beside)} IS NULL AND {identifier(new.table.key)} IS NOT NULL"


def _create_function(connection: Connection, new: BucketColumn, column: str) -> None:
    key: ColumnElement[object] = literal_column(f"NEW.{identifier(new.table.key)}")
    key_type = find(connection, new.table).key_type
    if key_type is KeyType.TEXT:
        key = cast(key, Text)
    by = inline(connection, bucket(key, key_type, new.modulus))
    body = f"BEGIN NEW.{identifier(column)} := {by}; RETURN NEW; END"
    execute_inline(
        connection,
        f"CREATE OR REPLACE FUNCTION {_function(new.table, new.trigger)}() RETURNS trigger "
        f"LANGUAGE plpgsql AS $tasks_app${body}$tasks_app$",
    )


def _drop_trigger(connection: Connection, new: BucketColumn, trigger: str) -> None:
    execute_inline(connection, f"DROP TRIGGER {identifier(trigger)} ON {quoted(new.table)}")
    execute_inline(connection, f"DROP FUNCTION {_function(new.table, trigger)}()")


def _triggers(connection: Connection, new: BucketColumn) -> list[str]:
    query = text(r"""
        SELECT t.tgname FROM pg_trigger t WHERE t.tgrelid = to_regclass(:name)
          AND starts_with(t.tgname, 'tasks_app\:' || :column || '\:')
    """)
    return list(connection.execute(query, _named(new, new.column)).scalars())


def _has(connection: Connection, new: BucketColumn, column: str) -> bool:
    return connection.execute(_COLUMN, _named(new, column)).first() is not None


def _named(new: BucketColumn, column: str) -> dict[str, str]:
    return {"name": str(new.table), "column": column}


def _beside(new: BucketColumn, trigger: str) -> str:
    """Return the name of the column that a trigger fills until it is in place."""
    return f"{new.column}__{trigger.rpartition(':')[2]}"


def _function(table: Table, trigger: str) -> str:
    return quoted(Table(f"{table.name}:{trigger}", schema=table.schema))
