"""Rows that a run takes as they come, and marks in the transaction that processes them.

The mark is in a column of the user's table, or in ``task_marker``. Taken rows are locked until the
transaction ends; after a rollback they wait again. So any number of runs can share the rows. When
a run can take none, rows may still be left: other runs hold them, and may roll back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import Mark, Marker, Table
from tasks_app.pool.batch.sources.predicate import (
    columns_of,
    fetch_rows,
    key_as_text,
    keys_from_texts,
)
from tasks_app.pool.batch.sources.relation import EVERYTHING, Expr, Relation, find
from tasks_app.pool.tables import MARKER, SCHEMA


class TakenRow(dict[str, Any]):
    __slots__ = ("key",)
    key: str  # as ``key_as_text`` writes it


def take(connection: sa.Connection, source: Table, marker: Marker, size: int) -> list[TakenRow]:
    """Mark up to ``size`` free rows as done, and return them by key; more if rows share a key."""
    relation, of = find(connection, source), _marked(source, marker)
    waiting = _is(of.c[marker.column], marker.waiting)
    chosen = (
        sa.select(of.c[source.key])
        .where(waiting)
        .order_by(of.c[source.key])
        .limit(size)
        .with_for_update(key_share=True, skip_locked=True)
        .cte("chosen")
        .prefix_with("MATERIALIZED")
    )
    keys = sa.func.array(sa.select(chosen.c[source.key]).scalar_subquery())
    taken = (
        sa.update(of)
        .where(of.c[source.key] == sa.any_(keys), waiting)
        .values({marker.column: marker.done})
        .returning(EVERYTHING)
        .cte("taken")
    )
    return _read(connection, relation, select_from=taken)


def fail(connection: sa.Connection, source: Table, marker: Marker, keys: Iterable[str]) -> None:
    """Mark rows that this transaction took as skipped; ``keys`` are texts."""
    relation, of = find(connection, source), _marked(source, marker)
    listed = _listed(list(keys), relation)
    connection.execute(
        sa.update(of).where(relation.key == sa.any_(listed)).values({marker.column: marker.error})
    )


def left(connection: sa.Connection, source: Table, marker: Marker) -> bool:
    """Whether rows wait, including those that others have taken and not committed."""
    of = _marked(source, marker)
    query = sa.select(sa.literal(1)).where(_is(of.c[marker.column], marker.waiting)).limit(1)
    return connection.execute(query).first() is not None


def fill(connection: sa.Connection, program: str, source: Table) -> int:
    """Write a waiting mark for each row that has none; return how many. Times are refused."""
    relation = find(connection, source)
    if relation.key_type.is_time:
        raise PlanError(f"Rows of {source} cannot be marked by {source.key}: use a number or text.")
    rows = (
        sa.select(sa.literal(program, sa.Text), key_as_text(relation.key, relation.key_type))
        .select_from(relation.rows_of)
        .where(relation.key.is_not(None))
        .distinct()
    )
    marks = sa.table("task_marker", sa.column("program_id"), sa.column("key"), schema=SCHEMA)
    missing = postgresql.insert(marks).from_select(["program_id", "key"], rows)
    return connection.execute(
        missing.on_conflict_do_nothing(), execution_options={"preserve_rowcount": True}
    ).rowcount


def take_beside(
    connection: sa.Connection, program: str, source: Table, size: int, number: int
) -> list[TakenRow]:
    """Do as ``take`` with marks in ``task_marker``, also those of rows deleted since."""
    relation = find(connection, source)
    values = {"program": program, "size": size, "number": number}
    query = sa.text(f"""
        WITH chosen AS MATERIALIZED (
            SELECT m.key FROM {MARKER} m WHERE m.program_id = :program AND m.state = 'waiting'
            ORDER BY m.key LIMIT :size FOR NO KEY UPDATE SKIP LOCKED)
        UPDATE {MARKER} m SET state = 'done', partition_no = :number
        WHERE m.program_id = :program AND m.key = ANY(ARRAY(SELECT c.key FROM chosen c))
          AND m.state = 'waiting'
        RETURNING m.key
    """)
    found = connection.execute(query, values).scalars().all()
    taken = relation.ordered == sa.any_(_listed(list(found), relation))
    return _read(connection, relation, taken)


def fail_beside(connection: sa.Connection, program: str, keys: Iterable[str]) -> None:
    query = sa.text(f"""
        UPDATE {MARKER} m SET state = 'error'
        WHERE m.program_id = :program AND m.key = ANY(CAST(:keys AS text[]))
    """)
    connection.execute(query, {"program": program, "keys": list(keys)})


def left_beside(connection: sa.Connection, program: str) -> bool:
    query = sa.text(f"""
        SELECT EXISTS (SELECT FROM {MARKER} m WHERE m.program_id = :program AND m.state = 'waiting')
    """)
    return bool(connection.execute(query, {"program": program}).scalar_one())


def clear(connection: sa.Connection, program: str) -> int:
    query = sa.text(f"DELETE FROM {MARKER} m WHERE m.program_id = :program")
    return connection.execute(query, {"program": program}).rowcount


def _marked(source: Table, marker: Marker) -> Any:
    key: sa.ColumnClause[Any] = sa.column(source.key)
    return sa.table(source.name, key, sa.column(marker.column), schema=source.schema)


def _is(marked: Expr, mark: Mark) -> Expr:
    return marked.is_(None) if mark is None else marked == mark


def _listed(keys: list[str], relation: Relation) -> Expr:
    return sa.func.array(keys_from_texts(keys, relation.key_type).scalar_subquery())


def _read(
    connection: sa.Connection,
    relation: Relation,
    where: Expr | None = None,
    *,
    select_from: sa.FromClause | None = None,
) -> list[TakenRow]:
    key = key_as_text(relation.key, relation.key_type).label("tasks_app_key")
    rows = relation.rows_of if select_from is None else select_from
    query = sa.select(EVERYTHING, key).select_from(rows).order_by(relation.ordered)
    result = connection.execute(query if where is None else query.where(where))
    names = [each.name for each in columns_of(result)[:-1]]
    found = fetch_rows(result.cursor)
    result.close()
    made = []
    for *values, word in found:
        row = TakenRow(zip(names, values, strict=True))
        row.key = word
        made.append(row)
    return made
