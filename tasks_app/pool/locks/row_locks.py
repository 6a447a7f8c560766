"""Logical locks on single rows of users' own tables, in the columns of ``LockedRow``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, and_, func, or_, select, update

NOW = func.statement_timestamp()


class RowKey(NamedTuple):
    table: Table
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.table.name} {', '.join(str(value) for value in self.values)}"

    @property
    def condition(self) -> ColumnElement[bool]:
        """Its primary key."""
        columns: Sequence[Any] = list(self.table.primary_key)
        return and_(*(column == value for column, value in zip(columns, self.values, strict=True)))


class Holder(NamedTuple):
    locked_by: str | None
    locked_until: Any


def lock_row(connection: Connection, key: RowKey, who: str, lease: timedelta) -> int | None:
    """Lock the row and return its fence; None: it is locked, or there is no such row."""
    # One statement: it waits for a concurrent writer of the row, and decides by what that wrote.
    columns = key.table.c
    free = or_(columns.locked_until.is_(None), columns.locked_until <= NOW)
    return connection.execute(
        update(key.table)
        .where(key.condition, free)
        .values(locked_by=who, locked_until=NOW + lease, lock_fence=columns.lock_fence + 1)
        .returning(columns.lock_fence)
    ).scalar()


def holder(connection: Connection, key: RowKey) -> Holder | None:
    """Return the row's holder; None: there is no such row."""
    columns = key.table.c
    found = connection.execute(
        select(columns.locked_by, columns.locked_until).where(key.condition)
    ).one_or_none()
    return None if found is None else Holder(*found)


def renew(connection: Connection, key: RowKey, fence: int, lease: timedelta) -> bool:
    """Extend the lease to ``lease`` from now; False: lost."""
    statement = update(key.table).where(_ours(key, fence)).values(locked_until=NOW + lease)
    return connection.execute(statement).rowcount == 1


def guard(connection: Connection, key: RowKey, fence: int) -> bool:
    """Keep the row until the caller's transaction ends; False: lost."""
    statement = select(key.table.c.lock_fence).where(_ours(key, fence))
    return connection.execute(statement.with_for_update(key_share=True)).first() is not None


def release(connection: Connection, key: RowKey, fence: int) -> bool:
    """Unlock the row; False: another holder had taken it over."""
    statement = update(key.table).where(_ours(key, fence)).values(locked_by=None, locked_until=None)
    return connection.execute(statement).rowcount == 1


def is_unchanged(connection: Connection, key: RowKey, version: int) -> bool:
    """Keep a versioned row unchanged until the transaction ends; False: it was changed."""
    statement = select(key.table.c.version).where(key.condition).with_for_update(read=True)
    return connection.execute(statement).scalar() == version


def _ours(key: RowKey, fence: int) -> ColumnElement[bool]:
    columns = key.table.c  # released is lost, even without a new holder
    return and_(key.condition, columns.lock_fence == fence, columns.locked_until.is_not(None))
