"""Locks as a with block, for code that is not a task; a thread renews them."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from uuid import uuid4
from weakref import WeakSet

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from tasks_app.domain.durations import Duration, parse_duration
from tasks_app.domain.errors import InvalidConnectionError, InvalidLockError
from tasks_app.domain.locks import LONGEST_WHO, LockOrderError, LockRequest, lock_parts
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.domain.tasks.options import Names
from tasks_app.pool.locks.holders import renew
from tasks_app.runtime.db.connections import shown
from tasks_app.runtime.db.database import settle_in
from tasks_app.runtime.handler_db.handler_sessions import HandlerSession
from tasks_app.runtime.locks.lock import Lock, Transacts, acquire_locks

Where = Engine | Session | Connection
SHORTEST_LEASE_S, LONGEST_LEASE_S = 1.0, 86_400.0
_HELD: ContextVar[tuple[Lock, ...]] = ContextVar("tasks_app locks", default=())


@dataclass(frozen=True)
class Transactions:
    """Short transactions of our own on a caller's engine."""

    engine: Engine

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open one that commits at the end of the block."""
        with self.engine.connect() as connection:
            connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                settle_in(connection)
                yield connection

    @contextmanager
    def single(self) -> Iterator[Connection]:
        """Open a connection for one statement, which commits by itself: in one round trip."""
        with self.engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")


def hold(
    where: Where,
    *,
    exclusive: Names = (),
    shared: Names = (),
    counted: Mapping[str, int] | None = None,
    wait: Duration = 0,
    lease: Duration = "30s",
    snooze: Duration = "5s",
    who: str | None = None,
    renew: bool = True,
) -> Hold:
    """Hold a group of named resources while a block runs: all of them, or none.

    Args:
        where: an engine; of a session or connection, its engine. Locks are taken and released on
            a connection of their own, at once: what the block writes, it has to commit itself.
        exclusive: names of resources for this holder alone.
        shared: names of resources for all who share them.
        counted: names, and how many may hold each at a time.
        wait: how long to wait for it; 0: not at all.
        lease: how long the lock outlives a holder that died.
        snooze: how long a task is snoozed whose handler was denied.
        who: shown to others; default host and process.
        renew: a thread of this process renews the lease; without, ``renew()`` of the lock does.

    Raises:
        InvalidLockError: at once, if the group cannot be.
        LockDeniedError: when the block is entered, if it was not free in time.
        LockOrderError: when the block is entered, if it would wait while another group is held.
        LockLostError: when the block is left, if another holder has taken the lock over.
    """
    parts = lock_parts(exclusive, shared, counted)
    ask = LockRequest(uuid4(), parts, (who or here(os.getpid()))[:LONGEST_WHO], lease_of(lease))
    return Hold(
        Transactions(engine_of(where)),
        ask,
        wait_s=span_of("wait", wait),
        snooze_s=span_of("snooze", snooze),
        renewals=BACKGROUND if renew else None,
    )


def lease_of(value: Duration) -> timedelta:
    """Return a lease; raise InvalidLockError if it is not one of 1 s to 1 day."""
    seconds = span_of("lease", value)
    if not SHORTEST_LEASE_S <= seconds <= LONGEST_LEASE_S:
        raise InvalidLockError("lease", f"is {seconds:g} s", "1s .. 1d")
    return timedelta(seconds=seconds)


def span_of(word: str, value: Duration) -> float:
    """Return a span in seconds; raise InvalidLockError if it is no duration."""
    try:
        return parse_duration(value).total_seconds()
    except ValueError as error:
        raise InvalidLockError(word, str(error), "a span such as 5s") from None


def engine_of(where: Where) -> Engine:
    """Return the engine; raise InvalidConnectionError if there is none, or it is a handler's."""
    if isinstance(where, HandlerSession):
        raise InvalidConnectionError(
            "In handlers use ctx.locks(...): it knows when the task is over."
        )
    if isinstance(where, Engine):
        return where
    if isinstance(where, Session):
        return where.get_bind().engine
    if isinstance(where, Connection):
        return where.engine
    raise InvalidConnectionError(
        f"{shown(where)} isn't an Engine, Session or Connection. "
        "Pass one of SQLAlchemy that is not async: async with uses it in a thread."
    )


@cache
def here(pid: int) -> str:
    """Name this process, once: it takes a system call."""
    return f"{socket.gethostname()}:{pid}"


class Hold:
    """A context manager that holds a group."""

    def __init__(
        self,
        database: Transacts,
        ask: LockRequest,
        *,
        wait_s: float,
        snooze_s: float,
        renewals: Renewals | None,
    ) -> None:
        self._database = database
        self._ask = ask
        self._wait_s = wait_s
        self._snooze_s = snooze_s
        self._renewals = renewals
        self._lock: Lock | None = None

    def take(self) -> Lock:
        """Take the group without a block; then call ``release()`` of the lock.

        Raises:
            LockDeniedError: it was not free in time.
            LockOrderError: it would wait while another group is held.
        """
        held = [lock for lock in _HELD.get() if not lock.ended]
        if held and self._wait_s:
            raise LockOrderError(name for lock in held for name in lock.resources)
        ask = replace(self._ask, token=uuid4())
        lock = Lock(
            self._database, ask, acquire_locks(self._database, ask, self._wait_s, self._snooze_s)
        )
        if self._renewals is not None:
            self._renewals.add(lock)
        return lock

    def __enter__(self) -> Lock:
        self._refuse_twice()
        return self._begin_block(self.take())

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        lock = self._end_block()
        if error is not None or lock.lost or not (lock.leaving or lock.ended):
            self._release(lock, failed=error is not None)

    async def __aenter__(self) -> Lock:
        self._refuse_twice()
        return self._begin_block(await asyncio.to_thread(self.take))

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        lock = self._end_block()
        failed = error is not None
        if failed or lock.lost or not (lock.leaving or await asyncio.to_thread(lambda: lock.ended)):
            await self._arelease(lock, failed=failed)

    def _release(self, lock: Lock, *, failed: bool) -> None:
        """Release after the block; raise LockLostError unless the block itself failed."""
        with suppress(Exception) if failed else nullcontext():
            if lock.lost and not failed:
                lock.lose()
            lock.release()

    async def _arelease(self, lock: Lock, *, failed: bool) -> None:
        await asyncio.to_thread(Hold._release, self, lock, failed=failed)

    def _refuse_twice(self) -> None:
        if self._lock is not None:
            raise RuntimeError("This group is held already. Make another one for each block.")

    def _begin_block(self, lock: Lock) -> Lock:
        self._lock = lock
        _HELD.set((*_HELD.get(), lock))
        return lock

    def _end_block(self) -> Lock:
        lock, self._lock = self._lock, None
        assert lock is not None  # noqa: S101  the block has begun
        _HELD.set(tuple(other for other in _HELD.get() if other is not lock))
        if self._renewals is not None:
            self._renewals.discard(lock)
        return lock


log = quiet_logger(__name__)
LONGEST_NAP_S, PATIENCE_S = 60.0, 1.0


class Renewals:
    """The locks to renew, held weakly: one that is dropped unreleased ends with its lease."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._locks: WeakSet[Lock] = WeakSet()

    def add(self, lock: Lock) -> None:
        with self._mutex:
            self._locks.add(lock)

    def discard(self, lock: Lock) -> None:
        with self._mutex:
            self._locks.discard(lock)

    def __len__(self) -> int:
        return len(self._locks)

    def renew_locks(self) -> None:
        """Renew what is due; raise DBAPIError if the database did not answer."""
        if not self._locks:
            return
        groups: dict[tuple[Transacts, timedelta], list[Lock]] = defaultdict(list)
        now = time.monotonic()
        with self._mutex:
            due = [lock for lock in self._locks if lock.is_renewed and now >= _due_at(lock, now)]
        for lock in due:
            if not lock.ended:
                groups[lock.database, lock.ask.lease].append(lock)
        for (database, lease), locks in groups.items():
            with database.begin() as connection:
                lost = renew(connection, [lock.ask.token for lock in locks], lease)
            for lock in locks:
                lock.renew_at = time.monotonic() + lease.total_seconds() / 3
                if lock.ask.token in lost and lock.miss():
                    log.warning("lost the lock on %s", ", ".join(lock.resources))

    def next_s(self) -> float:
        """Return the seconds until one is due."""
        now = time.monotonic()
        with self._mutex:
            due = [_due_at(lock, now) for lock in self._locks if lock.is_renewed]
        return max(0.0, min(due) - now) if due else LONGEST_NAP_S


def _due_at(lock: Lock, now: float) -> float:
    """Return when to renew it: not while a transaction that releases it is open."""
    return max(lock.renew_at, now + PATIENCE_S) if lock.leaving else lock.renew_at


class Background(Renewals):
    """Renewals by a thread, for processes that have no housekeeper."""

    def __init__(self) -> None:
        super().__init__()
        self._news = threading.Event()
        self._pid = 0

    def add(self, lock: Lock) -> None:
        if self._pid != os.getpid():  # at the first, and after a fork
            self._mutex, self._news, self._locks = threading.Lock(), threading.Event(), WeakSet()
            self._pid = os.getpid()
            threading.Thread(target=self._work, name="tasks_app locks", daemon=True).start()
        super().add(lock)
        self._news.set()

    def _work(self) -> None:
        while True:
            self._news.wait(self.next_s())
            self._news.clear()
            try:
                self.renew_locks()
            except Exception as error:
                log.warning("locks were not renewed, again soon: %s", first_line(error))
                time.sleep(PATIENCE_S)


BACKGROUND = Background()  # of this process
