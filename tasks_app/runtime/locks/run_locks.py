"""Locks of handlers: renewed by the child's housekeeper, released when their run ends.

What a handler has written through ``ctx.session`` becomes visible when the run commits. So its
locks are released within that transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy.exc import SQLAlchemyError

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import Duration
from tasks_app.domain.locks import LONGEST_WHO, LockOrderError, LockRequest, lock_parts
from tasks_app.domain.tasks.options import Names
from tasks_app.domain.tasks.run import ClaimedTask
from tasks_app.pool.locks.acquire import look_soon, notify_next
from tasks_app.pool.locks.holders import declared_of, release
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.db.errors import PendingWrite
from tasks_app.runtime.db.transaction import Access
from tasks_app.runtime.locks.client import Hold, Renewals, span_of
from tasks_app.runtime.locks.lock import Lock


class LocksOfChild:
    """The locks of all runs of one child."""

    def __init__(
        self, settings: Settings, database: Database, pending_write: Callable[[PendingWrite], None]
    ) -> None:
        self.lease: timedelta = settings.lease
        self.database: Database = database
        self.renewals: Renewals = Renewals()
        self._pending_write = pending_write

    def release_soon(self, locks: list[Lock]) -> None:
        """Release what a run did not, and try until the database has answered."""
        tokens = [lock.ask.token for lock in locks]
        resources = [name for lock in locks for name in lock.resources]
        self._pending_write(lambda connection: release(connection, *tokens))
        self._pending_write(lambda connection: notify_next(connection, resources))
        self._pending_write(lambda connection: look_soon(connection, resources))


class LocksOfRun:
    """The locks that one run holds, or has released in a transaction that is not over."""

    def __init__(self, child: LocksOfChild, task: ClaimedTask, access: Access) -> None:
        self._child = child
        self._task = task
        self._access = access
        self._locks: list[Lock] = []

    def hold(
        self,
        exclusive: Names,
        shared: Names,
        counted: Mapping[str, int] | None,
        wait: Duration,
        snooze: Duration,
    ) -> HoldOfRun:
        """Return a group for this run, beside those that it holds already."""
        parts = lock_parts(exclusive, shared, counted)
        who = self._task.name[:LONGEST_WHO]
        ask = LockRequest(uuid4(), parts, who, self._child.lease, self._task.fence)
        return HoldOfRun(
            self._access,
            self._locks,
            self._child.database,
            ask,
            wait_s=span_of("wait", wait),
            snooze_s=span_of("snooze", snooze),
            renewals=self._child.renewals,
        )

    def end(self) -> None:
        """Release what a run that is over may still hold."""
        if self._locks:
            for lock in self._locks:
                lock.end()
                self._child.renewals.discard(lock)
            self._child.release_soon(self._locks)


class HoldOfRun(Hold):
    """Holds a group while a block of a handler runs, and until what it wrote is committed."""

    def __init__(self, access: Access, locks: list[Lock], *arguments: Any, **options: Any) -> None:
        """``access``: the transaction that its release is part of; ``locks``: all of the run."""
        super().__init__(*arguments, **options)
        self._access, self._locks = access, locks

    def take(self) -> Lock:
        """Take the group; the end of the run releases it at the latest.

        Raises:
            LockDeniedError: it was not free in time; the task comes back later, uncharged.
            LockOrderError: it would wait while another group is held.
        """
        if self._wait_s and self._ask.run is not None:
            others = [lock.ask.token for lock in self._locks]
            with self._database.single() as connection:
                declared = declared_of(connection, self._ask.run, others)
            if declared:
                raise LockOrderError(declared)
        lock = super().take()
        self._locks.append(lock)
        return lock

    def __enter__(self) -> Lock:
        if self._access.is_async:
            raise TypeError("In async handlers use: async with ctx.locks(...)")
        return super().__enter__()

    def _release(self, lock: Lock, *, failed: bool) -> None:
        """Release now, or with the commit of what the handler has written.

        After a block that failed, too: the handler may catch what was raised, and commit.
        """
        if self._access.active:
            with suppress(SQLAlchemyError) if failed else nullcontext():  # it cannot commit, then
                lock.release(self._access.connection)
        else:
            super()._release(lock, failed=failed)
            if not failed:  # else the end of the run releases what was not
                self._locks.remove(lock)

    async def _arelease(self, lock: Lock, *, failed: bool) -> None:
        if self._access.active:
            with suppress(SQLAlchemyError) if failed else nullcontext():
                connection = await self._access.session.connection()
                await connection.run_sync(lock.release)
        else:
            await super()._arelease(lock, failed=failed)
            if not failed:  # else the end of the run releases what was not
                self._locks.remove(lock)
