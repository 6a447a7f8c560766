"""Logical locks on rows of users' own tables: optimistic by a version, pessimistic by a flag.

Mixins bring the columns. With both, the database refuses a stale write: the version, or the fence
of the flag, is in the WHERE of every UPDATE and DELETE of the ORM.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Integer, String, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from tasks_app.domain.durations import Duration
from tasks_app.domain.errors import InvalidLockError
from tasks_app.domain.locks import (
    LONGEST_WHO,
    LockDeniedError,
    LockLostError,
    LockMode,
    LostUpdateError,
    Obstacle,
)
from tasks_app.pool.locks import row_locks
from tasks_app.pool.locks.row_locks import Holder, RowKey
from tasks_app.runtime.db.connections import Sync, connection_of
from tasks_app.runtime.db.errors import sqlstate
from tasks_app.runtime.locks.client import Transactions, Where, engine_of, here, lease_of, span_of
from tasks_app.runtime.locks.lock import LOCK_NOT_AVAILABLE, nap, pauses


class Versioned:
    """Optimistic: two may read a row, and the second one to write it is refused.

    Its flush raises ``sqlalchemy.orm.exc.StaleDataError``. For rows with few conflicts, such as
    those that online users edit.
    """

    version: Mapped[int] = mapped_column(Integer, default=1, nullable=False)
    """Rises with every UPDATE."""

    @declared_attr.directive
    def __mapper_args__(cls) -> dict[str, Any]:  # noqa: N805  as SQLAlchemy calls it
        return {"version_id_col": cls.version}

    def expect(self, version: int) -> None:
        """Pass if the row was loaded in the version that, for example, a form has shown.

        Raises:
            LostUpdateError: it was changed since.
        """
        if self.version != version:
            raise LostUpdateError(str(_key_of(self)))

    def check(self, session: Sync) -> None:
        """Pass if the row is unchanged since it was loaded; keep it so until the transaction ends.

        Raises:
            LostUpdateError: it was changed.
        """
        key = _key_of(self)
        if not row_locks.is_unchanged(connection_of(session), key, self.version):
            raise LostUpdateError(str(key))


class LockedRow:
    """Pessimistic: a flag with an expiry in the row itself, taken by :func:`hold_row`.

    For rows with many conflicts, such as those of batches. If another holder took the flag over
    after the row was loaded, the flush is refused as with Versioned; ``check`` of the lock says so
    before.
    """

    locked_by: Mapped[str | None] = mapped_column(String(LONGEST_WHO), default=None)
    locked_until: Mapped[datetime | None] = mapped_column(DateTime(timezone=True), default=None)
    lock_fence: Mapped[int] = mapped_column(
        BigInteger, default=0, server_default="0", nullable=False
    )
    """Rises whenever the flag is taken."""

    @declared_attr.directive
    def __mapper_args__(cls) -> dict[str, Any]:  # noqa: N805  as above
        return {"version_id_col": cls.lock_fence, "version_id_generator": False}


class RowLock:
    """A flag that is held. A later request makes it again from its ``fence``, to go on with it."""

    def __init__(self, where: Where, kind: type[LockedRow], key: Any, fence: int) -> None:
        self._database = Transactions(engine_of(where))
        self._key = _key(kind, key)
        self.fence = fence

    def check(self, session: Sync) -> None:
        """Pass if the row is ours, and keep it so until the transaction of ``session`` ends.

        Raises:
            LockLostError: the flag expired, and another holder took it.
        """
        self._expect(row_locks.guard(connection_of(session), self._key, self.fence))

    def renew(self, lease: Duration = "30s") -> None:
        """Let the flag expire ``lease`` from now.

        Raises:
            LockLostError: it had expired, and another holder took it.
        """
        span = lease_of(lease)
        with self._database.begin() as connection:
            ours = row_locks.renew(connection, self._key, self.fence, span)
        self._expect(ours)

    def release(self, session: Sync | None = None) -> None:
        """Clear the flag: at once, or with the commit of ``session``.

        Raises:
            LockLostError: it expired, and another holder took it.
        """
        own = self._database.begin() if session is None else nullcontext(connection_of(session))
        with own as connection:
            ours = row_locks.release(connection, self._key, self.fence)
        self._expect(ours)

    def _expect(self, ours: bool) -> None:  # noqa: FBT001  a guard's answer
        if not ours:
            raise LockLostError([str(self._key)])


class HoldRow:
    """A context manager that holds a flag."""

    def __init__(self, take: Callable[[], RowLock]) -> None:
        self.take = take
        """Take the flag without a block; then call ``release()`` of the lock."""
        self._lock: RowLock | None = None

    def __enter__(self) -> RowLock:
        self._lock = self.take()
        return self._lock

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        lock, self._lock = self._lock, None
        assert lock is not None  # noqa: S101  the block has begun
        with nullcontext() if error is None else suppress(Exception):  # the block's error says more
            lock.release()


def hold_row(
    where: Where,
    kind: type[LockedRow],
    key: Any,
    *,
    wait: Duration = 0,
    lease: Duration = "30s",
    snooze: Duration = "5s",
    who: str | None = None,
) -> HoldRow:
    """Hold one row of a table that has the columns of :class:`LockedRow`, while a block runs.

    Load the row inside the block. Nothing renews the flag by itself: ``renew()`` of the lock does.

    Args:
        where: an engine; of a session or connection, its engine.
        kind: the mapped class.
        key: its primary key; a tuple if that has several columns.
        wait: how long to wait for it; 0: not at all.
        lease: when the flag expires.
        snooze: how long a task is snoozed whose handler was denied.
        who: shown to others; default host and process.

    Raises:
        LockDeniedError: when the block is entered, if it was not free in time.
        InvalidLockError: when the block is entered, if no row has the key.
        LockLostError: when the block is left, if another holder has taken it over.
    """
    database, row, span = Transactions(engine_of(where)), _key(kind, key), lease_of(lease)
    name = (who or here(os.getpid()))[:LONGEST_WHO]
    wait_s, snooze_s = span_of("wait", wait), span_of("snooze", snooze)

    def take() -> RowLock:
        began, naps = time.monotonic(), pauses()
        while True:
            fence, found = _try(database, row, name, span)
            if fence is not None:
                return RowLock(database.engine, kind, key, fence)
            left = began + wait_s - time.monotonic()
            if left <= 0:
                obstacle = _obstacle(row, found)
                raise LockDeniedError((obstacle,), wait_s, snooze_s)
            nap(min(left, next(naps)))

    return HoldRow(take)


def _try(
    database: Transactions, key: RowKey, who: str, span: Any
) -> tuple[int | None, Holder | None]:
    try:
        with database.begin() as connection:
            fence = row_locks.lock_row(connection, key, who, span)
            return fence, row_locks.holder(connection, key) if fence is None else None
    except DBAPIError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        return None, Holder("a transaction that is open", None)


def _obstacle(key: RowKey, holder: Holder | None) -> Obstacle:
    if holder is None:
        raise InvalidLockError("key", f"is of no row: {key}", "the primary key of a row")
    who = holder.locked_by or "no holder any more"
    return Obstacle(str(key), LockMode.EXCLUSIVE, who, None, None)


def _key(kind: type, key: Any) -> RowKey:
    mapper: Any = inspect(kind)
    values = key if isinstance(key, tuple) else (key,)
    if len(values) != len(mapper.primary_key):
        raise InvalidLockError("key", f"has {len(values)} values", f"{len(mapper.primary_key)}")
    return RowKey(mapper.local_table, values)


def _key_of(row: Any) -> RowKey:
    identity = inspect(row).identity
    if identity is None:
        raise InvalidLockError("row", "was not loaded", "one that a session has loaded")
    return RowKey(inspect(type(row)).local_table, tuple(identity))
