"""Rows that the first comer takes, and marks in the transaction that processes them.

The mark is in a column of the user's table, or beside it in ``task_marker``. Taken rows are locked
until the transaction ends; after a rollback they wait again. So any number of takers can work
without knowing of each other.

When nothing can be taken, rows may still be left: others hold the rest, and may roll back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Text,
    any_,
    column,
    func,
    literal,
    select,
    table,
    text,
    update,
)
from sqlalchemy.dialects import postgresql

from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import Mark, Marker, Table
from tasks_app.pool.batch.sources.predicate import (
    columns_of,
    fetch_rows,
    key_as_text,
    keys_from_texts,
)
from tasks_app.pool.batch.sources.relation import EVERYTHING, Relation, find
from tasks_app.pool.tables import MARKER, SCHEMA


class TakenRow(dict[str, Any]):
    """A row that was taken."""

    __slots__ = ("key",)
    key: str  # as text; see ``as_text.written``


_TAKE = text(f"""
    WITH chosen AS MATERIALIZED (
        SELECT m.key FROM {MARKER} m WHERE m.program_id = :program AND m.state = 'waiting'
        ORDER BY m.key LIMIT :size FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE {MARKER} m SET state = 'done', partition_no = :number
    WHERE m.program_id = :program AND m.key = ANY(ARRAY(SELECT c.key FROM chosen c))
      AND m.state = 'waiting'
    RETURNING m.key
""")
_FAIL = text(f"""
    UPDATE {MARKER} m SET state = 'error'
    WHERE m.program_id = :program AND m.key = ANY(CAST(:keys AS text[]))
""")
_LEFT = text(f"""
    SELECT EXISTS (SELECT FROM {MARKER} m WHERE m.program_id = :program AND m.state = 'waiting')
""")
_CLEAR = text(f"DELETE FROM {MARKER} m WHERE m.program_id = :program")


def take(connection: Connection, source: Table, marker: Marker, size: int) -> list[TakenRow]:
    """Mark up to ``size`` waiting rows that nobody has in hand as done, and return them by key.

    More if several rows have one key: all of them are taken.
    """
    relation, of = find(connection, source), _marked(source, marker)
    waiting = _is(of.c[marker.column], marker.waiting)
    chosen = (
        select(of.c[source.key])
        .where(waiting)
        .order_by(of.c[source.key])
        .limit(size)
        .with_for_update(key_share=True, skip_locked=True)
        .cte("chosen")
        .prefix_with("MATERIALIZED")
    )
    keys = func.array(select(chosen.c[source.key]).scalar_subquery())
    taken = (
        update(of)
        .where(of.c[source.key] == any_(keys), waiting)
        .values({marker.column: marker.done})
        .returning(EVERYTHING)
        .cte("taken")
    )
    return _read(connection, relation, select_from=taken)


def fail(connection: Connection, source: Table, marker: Marker, keys: Iterable[str]) -> None:
    """Mark rows that this transaction took as skipped; ``keys`` are texts."""
    relation = find(connection, source)
    listed = _listed(list(keys), relation)
    of = _marked(source, marker)
    connection.execute(
        update(of).where(relation.key == any_(listed)).values({marker.column: marker.error})
    )


def left(connection: Connection, source: Table, marker: Marker) -> bool:
    """Whether rows wait, including those that somebody else has taken and not committed."""
    of = _marked(source, marker)
    query = select(literal(1)).where(_is(of.c[marker.column], marker.waiting)).limit(1)
    return connection.execute(query).first() is not None


def fill(connection: Connection, program: str, source: Table) -> int:
    """Write a waiting mark beside each row that has none; return how many.

    Raises PlanError if its keys are times, which have no one form as text.
    """
    relation = find(connection, source)
    if relation.key_type.is_time:
        raise PlanError(f"Rows of {source} cannot be marked by {source.key}: use a number or text.")
    rows = (
        select(literal(program, Text), key_as_text(relation.key, relation.key_type))
        .select_from(relation.rows_of)
        .where(relation.key.is_not(None))
        .distinct()
    )
    marks = table("task_marker", column("program_id"), column("key"), schema=SCHEMA)
    missing = postgresql.insert(marks).from_select(["program_id", "key"], rows)
    counted = {"preserve_rowcount": True}
    found = connection.execute(missing.on_conflict_do_nothing(), execution_options=counted)
    return found.rowcount


def take_beside(
    connection: Connection, program: str, source: Table, size: int, number: int
) -> list[TakenRow]:
    """Do as :func:`take` with marks in ``task_marker``; ``number`` is the partition's.

    The mark of a row that was deleted since is taken, too; the row is not returned.
    """
    relation = find(connection, source)
    values = {"program": program, "size": size, "number": number}
    found = connection.execute(_TAKE, values).scalars().all()
    taken = relation.ordered == any_(_listed(list(found), relation))
    return _read(connection, relation, taken)


def fail_beside(connection: Connection, program: str, keys: Iterable[str]) -> None:
    """Mark rows that this transaction took as skipped; ``keys`` are texts."""
    connection.execute(_FAIL, {"program": program, "keys": list(keys)})


def left_beside(connection: Connection, program: str) -> bool:
    """Whether rows wait, including those that somebody else has taken and not committed."""
    return bool(connection.execute(_LEFT, {"program": program}).scalar_one())


def clear(connection: Connection, program: str) -> int:
    return connection.execute(_CLEAR, {"program": program}).rowcount


def _marked(source: Table, marker: Marker) -> Any:
    return table(source.name, column(source.key), column(marker.column), schema=source.schema)


def _is(marked: ColumnElement[Any], mark: Mark) -> ColumnElement[bool]:
    return marked.is_(None) if mark is None else marked == mark


def _listed(keys: list[str], relation: Relation) -> ColumnElement[Any]:
    return func.array(keys_from_texts(keys, relation.key_type).scalar_subquery())


def _read(
    connection: Connection,
    relation: Relation,
    where: ColumnElement[bool] | None = None,
    *,
    select_from: FromClause | None = None,
) -> list[TakenRow]:
    """Return rows in the order of their keys."""
    key = key_as_text(relation.key, relation.key_type).label("tasks_app_key")
    rows = relation.rows_of if select_from is None else select_from
    query = select(EVERYTHING, key).select_from(rows).order_by(relation.ordered)
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
