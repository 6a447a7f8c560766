"""Creates tasks: rows in the caller's transaction; no broker, no NOTIFY, no commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import compress
from typing import TYPE_CHECKING, Any

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
from tasks_app.pool.tables import PENDING, Clock
from tasks_app.pool.tasks.insert import (
    DEFAULTS,
    ON_CONFLICT,
    copy_of,
    in_turn,
    insert_many,
    take_ids,
)
from tasks_app.pool.tasks.large_values import check_transaction, has_large, with_value, with_values
from tasks_app.pool.tasks.unique_keys import insert_with_keys, resolve_in_pool, resolve_in_table

if TYPE_CHECKING:
    from tasks_app.pool.connection.psycopg_connection import AsyncRaw, Raw

CHUNK = 2_000  # rows with a unique_key per statement
TRIES = 10  # how often a key may change hands between our INSERT and our read of its holder
RESTARTS, RESTARTED = 10, 1_000
"""How often a call may restart to lock its keys in order, and for how many rows in all. After that
the order is given up, and PostgreSQL has to end deadlocks."""

_SAVE, _UNDO, _FORGET = (
    Statement(f"{verb} tasks_app_create_many", {}, yields=False)
    for verb in ("SAVEPOINT", "ROLLBACK TO SAVEPOINT", "RELEASE SAVEPOINT")
)


def create_one(connection: Connection | Raw, row: TaskRow, *, now: Clock = None) -> TaskId:
    """Insert one task; ``.created`` is False when its unique_key is taken.

    Raises:
        UniqueKeyTakenError: the key is taken, and the task's policy is to raise.
        TasksError: the key is taken by a row that this transaction's snapshot cannot see.
    """
    if type(row.payload) is not LargePayload:
        return run_statements(connection, _one(row, now))
    check_transaction(connection)
    return run_statements(connection, with_value(row, _one(row, now)))


def create_many(
    connection: Connection | Raw, rows: Sequence[TaskRow], *, now: Clock = None
) -> list[TaskId]:
    """Insert any number of tasks; ids rise in the order of ``rows``.

    Rows without a unique_key are copied. The others are inserted, 2,000 per statement, with keys in
    one order (that of Python and of bytes, not the database's collation), so that producers with
    the same keys cannot deadlock. If a key becomes free after its turn, up to 1,000 rows restart
    from a savepoint; more take it out of order. Of equal keys the first wins.

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
    if type(row.payload) is not LargePayload:
        return await arun_statements(connection, _one(row, None))
    return await arun_statements(connection, with_value(row, _one(row, None)))


async def acreate_many(connection: AsyncRaw, rows: Sequence[TaskRow]) -> list[TaskId]:
    plan = _many(rows, None, copy=can_copy(connection))
    return await arun_statements(connection, with_values(rows, plan) if has_large(rows) else plan)


def _one(row: TaskRow, now: Clock) -> Statements[TaskId]:
    if row.terms.strict_order:
        yield in_turn([row])
    if row.terms.rule is not None and row.terms.rule.outlives_the_index:
        return (yield from _one_with_key(row, now))
    payload, *own, terms = row
    keys = tuple([value is not None for value in own])
    sql, constants = _statement(terms, keys, now)
    insert = Statement(sql, {**constants, "payload": payload, **dict(zip(KEYS, own, strict=True))})
    for _ in range(TRIES):
        created = yield insert
        if created:
            return TaskId(created[0][0])
        holder = yield from resolve_in_pool(row, now)
        if holder is not None:
            return holder
    raise _invisible_holder(row)


@lru_cache(1024)
def _statement(
    terms: RowTemplate, keys: tuple[bool, ...], now: Clock
) -> tuple[str, Mapping[str, Any]]:
    values = {"name": terms.name} | {
        column: getattr(terms, column)
        for column, default in DEFAULTS.items()
        if getattr(terms, column) != default
    }
    columns = {column: f"%({column})s" for column in values}
    columns["payload"] = "CAST(%(payload)s AS jsonb)"
    columns |= {key: f"%({key})s" for key in compress(KEYS, keys)}
    default = "statement_timestamp()"  # of the columns below
    instant = "CAST(%(now)s AS timestamptz)" if now else default
    due = "CAST(%(run_at)s AS timestamptz)" if terms.run_at else instant
    if terms.delay:
        due += " + make_interval(secs => CAST(%(delay)s AS double precision))"
    instants = {"created_at": instant, "due_at": due, "scan_at": due}
    columns |= {name: sql for name, sql in instants.items() if sql != default}
    sql = f"""
        INSERT INTO {PENDING} ({", ".join(columns)}) VALUES ({", ".join(columns.values())})
        {ON_CONFLICT if "unique_key" in columns else ""} RETURNING id
    """
    return sql, {**values, "now": now, "run_at": terms.run_at, "delay": terms.delay.total_seconds()}


def _one_with_key(row: TaskRow, now: Clock) -> Statements[TaskId]:
    for _ in range(TRIES):
        created = yield insert_with_keys([None], [row], now)
        if created:
            return TaskId(created[0][0])
        holder = yield from resolve_in_table(row, None, now)
        if holder is not None:
            return holder
    raise _invisible_holder(row)


def _many(
    rows: Sequence[TaskRow], now: Clock, *, copy: bool, undoable: bool = True
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
    """The key's turn is over: taking it now might deadlock with another producer."""


def _all(
    rows: Sequence[TaskRow], now: Clock, *, copy: bool, in_order: bool
) -> Statements[list[TaskId]]:
    """Insert rows with free keys, then resolve the conflicts: so keys are locked in one order.

    Raises:
        _KeyBecameFreeError: a key was taken and is free now, but keys are locked ``in_order``.
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
    taken = []
    for places, is_table in ((pool, False), (table, True)):
        insert = insert_with_keys if is_table else insert_many
        for start in range(0, len(places), CHUNK):
            part = places[start : start + CHUNK]
            answer = yield insert([ids[i] for i in part], [rows[i] for i in part], now)
            created = {task_id for (task_id,) in answer}
            taken += [(i, is_table) for i in part if ids[i] not in created]
    for i, is_table in taken:
        if is_table:
            holder = yield from resolve_in_table(rows[i], ids[i], now)
        else:
            holder = yield from resolve_in_pool(rows[i], now)
        if holder is None and in_order:
            raise _KeyBecameFreeError
        made[i] = holder if holder is not None else (yield from _one(rows[i], now))
    if len(keyed) < len(rows):
        plain_ids, plain_rows = ids, rows
        if keyed:
            skipped = set(keyed)
            plain = [i for i in range(len(rows)) if i not in skipped]
            plain_ids, plain_rows = [ids[i] for i in plain], [rows[i] for i in plain]
        yield Copy(*copy_of(plain_ids, plain_rows, clock, now))
    return made


def _invisible_holder(row: TaskRow) -> TasksError:
    return TasksError(
        f"A task that this transaction cannot see holds unique_key {row.unique_key!r} of "
        f"{row.name}. Use READ COMMITTED, or try the transaction again."
    )
