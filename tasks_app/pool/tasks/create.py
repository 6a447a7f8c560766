"""Create: rows in the caller's transaction, and nothing else: no broker, no NOTIFY, no commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import compress
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection

from tasks_app.domain.errors import TasksError, UniqueKeyTakenError
from tasks_app.domain.large_values.store import LargePayload
from tasks_app.domain.tasks.records import KEYS, KeyRule, OnConflict, RowTemplate, TaskId, TaskRow
from tasks_app.pool.connection.execute import (
    Copy,
    Statement,
    Statements,
    arun_statements,
    can_copy,
    commits_itself,
    run_statements,
)
from tasks_app.pool.tables import PENDING
from tasks_app.pool.tasks import unique_keys
from tasks_app.pool.tasks.insert import DEFAULTS, ON_CONFLICT, arrays, copy_of, in_turn, take_ids
from tasks_app.pool.tasks.large_values import check_transaction, has_large, with_value, with_values
from tasks_app.pool.tasks.unique_keys import met_in_the_pool, met_in_the_table

if TYPE_CHECKING:
    from tasks_app.pool.connection.psycopg_connection import AsyncRaw, Raw


T = TypeVar("T")
CHUNK = 2_000  # rows with a unique_key per statement
TRIES = 10  # how often a unique_key may change hands between our INSERT and our look at its holder
RESTARTS, RESTARTED = 10, 1_000
"""How often a call begins anew so that its keys are locked in order, and how many rows may do so in
all. Beyond that the order is not kept, and PostgreSQL has to end deadlocks."""

_SAVE, _UNDO, _FORGET = (
    Statement(f"{verb} tasks_app_create_many", {}, yields=False)
    for verb in ("SAVEPOINT", "ROLLBACK TO SAVEPOINT", "RELEASE SAVEPOINT")
)


def create_one(
    connection: Connection | Raw, row: TaskRow, *, now: datetime | None = None
) -> TaskId:
    """Insert one task; ``.created`` is False when its unique_key is taken.

    Raises:
        UniqueKeyTakenError: the key is taken, and the task's policy is to say so.
        TasksError: the key is taken by a row that this transaction's snapshot cannot see.
    """
    if type(row.payload) is not LargePayload:
        return run_statements(connection, _one(row, now))
    check_transaction(connection)
    return run_statements(connection, with_value(row, _one(row, now)))


def create_many(
    connection: Connection | Raw, rows: Sequence[TaskRow], *, now: datetime | None = None
) -> list[TaskId]:
    """Insert any number of tasks; ids rise in the order of ``rows``.

    Rows without a unique_key are copied. The others are inserted, 2,000 per statement, their keys
    in one order (Python's, which is that of the bytes, whatever the database sorts by), so that two
    producers with the same keys cannot deadlock. If a key becomes free behind its turn, up to 1,000
    begin anew from a savepoint; more take it out of turn. Of equal keys the first wins.

    Raises:
        UniqueKeyTakenError: as :func:`create_one`; then nothing of this call is written.
        TasksError: as :func:`create_one`.
    """
    plan = _many(rows, now, copy=can_copy(connection), undoable=not commits_itself(connection))
    if has_large(rows):
        check_transaction(connection)
        plan = with_values(rows, plan)
    return run_statements(connection, plan)


async def acreate_one(connection: AsyncRaw, row: TaskRow) -> TaskId:
    """Do as :func:`create_one`, on psycopg's async connection."""
    if type(row.payload) is not LargePayload:
        return await arun_statements(connection, _one(row, None))
    return await arun_statements(connection, with_value(row, _one(row, None)))


async def acreate_many(connection: AsyncRaw, rows: Sequence[TaskRow]) -> list[TaskId]:
    """Do as :func:`create_many`, on psycopg's async connection."""
    plan = _many(rows, None, copy=can_copy(connection))
    return await arun_statements(connection, with_values(rows, plan) if has_large(rows) else plan)


def _one(row: TaskRow, now: datetime | None) -> Statements[TaskId]:
    if row.terms.strict_order:
        yield in_turn([row])
    if row.terms.rule is not None and row.terms.rule.outlives_the_index:
        return (yield from _one_of_the_table(row, now))
    insert = Statement(*_insertion(row, now))
    for _ in range(TRIES):
        created = yield insert
        if created:
            return TaskId(created[0][0])
        holder = yield from met_in_the_pool(row, now)
        if holder is not None:
            return holder
    raise _elusive(row)


def _insertion(row: TaskRow, now: datetime | None) -> tuple[str, Mapping[str, Any]]:
    """Return the INSERT of one row, which returns its id, and its values."""
    payload, *own, terms = row
    keys = tuple([value is not None for value in own])
    sql, constants = _statement(terms, keys, now)
    return sql, {**constants, "payload": payload, **dict(zip(KEYS, own, strict=True))}


@lru_cache(1024)
def _statement(
    terms: RowTemplate, keys: tuple[bool, ...], now: datetime | None
) -> tuple[str, Mapping[str, Any]]:
    values = {"name": terms.name} | {
        column: getattr(terms, column)
        for column, default in DEFAULTS.items()
        if getattr(terms, column) != default
    }
    columns = {column: f"%({column})s" for column in values}
    columns["payload"] = "CAST(%(payload)s AS jsonb)"
    columns |= {key: f"%({key})s" for key in compress(KEYS, keys)}
    columns |= _moments(terms, now)
    sql = f"""
        INSERT INTO {PENDING} ({", ".join(columns)}) VALUES ({", ".join(columns.values())})
        {ON_CONFLICT if "unique_key" in columns else ""} RETURNING id
    """
    return sql, {**values, "now": now, "run_at": terms.run_at, "delay": terms.delay.total_seconds()}


def _moments(terms: RowTemplate, now: datetime | None) -> dict[str, str]:
    """Return SQL for when the row was made, is due and is scanned, unless all of that is now."""
    instant = "CAST(%(now)s AS timestamptz)" if now else "statement_timestamp()"
    due = "CAST(%(run_at)s AS timestamptz)" if terms.run_at else instant
    if terms.delay:
        due += " + make_interval(secs => CAST(%(delay)s AS double precision))"
    columns = {"created_at": instant, "due_at": due, "scan_at": due}
    return {name: sql for name, sql in columns.items() if sql != "statement_timestamp()"}


def _one_of_the_table(row: TaskRow, now: datetime | None) -> Statements[TaskId]:
    for _ in range(TRIES):
        created = yield unique_keys.insert_with_keys([None], [row], now)
        if created:
            return TaskId(created[0][0])
        met = yield from met_in_the_table(row, None, now)
        if met is not None:
            return met
    raise _elusive(row)


def _many(
    rows: Sequence[TaskRow], now: datetime | None, *, copy: bool, undoable: bool = True
) -> Statements[list[TaskId]]:
    if not rows:
        return []
    rules = [row.terms.rule for row in rows if row.unique_key is not None]
    raises = any(rule.on_conflict is OnConflict.RAISE for rule in rules if rule)
    restarts = min(RESTARTS, RESTARTED // len(rules)) if len(rules) > 1 and undoable else 0
    if not raises and not restarts:
        return (yield from _all(rows, now, copy=copy, in_order=False))
    yield _SAVE
    while True:
        try:
            made = yield from _all(rows, now, copy=copy, in_order=restarts > 0)
        except UniqueKeyTakenError:
            yield _UNDO
            yield _FORGET
            raise
        except _KeyBecameFreeError:
            yield _UNDO
            restarts -= 1
            continue
        yield _FORGET
        return made


class _KeyBecameFreeError(Exception):
    """The key's turn is over: to take it now might deadlock with another producer."""


def _all(
    rows: Sequence[TaskRow], now: datetime | None, *, copy: bool, in_order: bool
) -> Statements[list[TaskId]]:
    """Insert what meets nobody, then look at who was met: so keys are locked in one order.

    Raises:
        _KeyBecameFreeError: nobody has a key any more that somebody had, and they are to be locked
            ``in_order``.
    """
    strict = [row for row in rows if row.order_key is not None and row.terms.strict_order]
    if strict:
        yield in_turn(strict)
    ids, clock = yield from take_ids(len(rows))
    made = list(map(TaskId, ids))
    keyed = [i for i, row in enumerate(rows) if not copy or row.unique_key is not None]
    keyed.sort(key=lambda i: (rows[i].name, rows[i].unique_key or ""))
    rules = {i: rows[i].terms.rule or KeyRule() for i in keyed}
    table = [i for i in keyed if rules[i].outlives_the_index]
    pool = [i for i in keyed if not rules[i].outlives_the_index]
    met = []
    for places, is_table in ((pool, False), (table, True)):
        for start in range(0, len(places), CHUNK):
            part = places[start : start + CHUNK]
            of_part = [ids[i] for i in part], [rows[i] for i in part], now
            answer = (
                yield unique_keys.insert_with_keys(*of_part)
                if is_table
                else Statement(*arrays(*of_part))
            )
            created = {task_id for (task_id,) in answer}
            met += [(i, is_table) for i in part if ids[i] not in created]
    for i, is_table in met:
        if is_table:
            holder = yield from met_in_the_table(rows[i], ids[i], now)
        else:
            holder = yield from met_in_the_pool(rows[i], now)
        if holder is None and in_order:
            raise _KeyBecameFreeError
        made[i] = holder if holder is not None else (yield from _one(rows[i], now))
    if len(keyed) < len(rows):
        plain = _without(set(keyed), ids), _without(set(keyed), rows)
        yield Copy(*copy_of(*plain, clock, now))
    return made


def _without(places: set[int], values: Sequence[T]) -> Sequence[T]:
    return [each for i, each in enumerate(values) if i not in places] if places else values


def _elusive(row: TaskRow) -> TasksError:
    return TasksError(
        f"unique_key {row.unique_key!r} of {row.name} is held by a task that this "
        "transaction cannot see. Use READ COMMITTED, or try the transaction again."
    )
