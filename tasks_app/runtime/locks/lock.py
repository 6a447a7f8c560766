"""A group of logical locks: waited for, held and released."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime, timedelta
from itertools import chain, repeat
from typing import Protocol, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Pool, Transaction
from sqlalchemy.exc import DBAPIError

from tasks_app.domain.locks import (
    GrantedLocks,
    LockDeniedError,
    LockLostError,
    LockRequest,
    Obstacle,
)
from tasks_app.domain.tasks.error_text import first_line, quiet_logger
from tasks_app.pool.locks.acquire import (
    WAIT_LEASE,
    acquire,
    acquire_at_once,
    insert_resources,
    listen_for_wake_ups,
    look_soon,
    notify_next,
    read_wake_ups,
    would_be_denied,
)
from tasks_app.pool.locks.holders import guard, leave_queue, release, release_now, renew
from tasks_app.runtime.db.connections import Sync, connection_of
from tasks_app.runtime.db.errors import sqlstate


class Lock:
    """A group that is held. Call :meth:`check` in the transaction that writes under it."""

    def __init__(self, database: Transacts, ask: LockRequest, granted: GrantedLocks) -> None:
        self.database = database
        self.ask = ask
        self.fence: int = granted.fence
        """Rises with every grant of a resource: other systems can refuse an older one."""
        self.granted_at: datetime = granted.granted_at
        self.renew_at: float = time.monotonic() + ask.lease.total_seconds() / 3
        self.lost: bool = False
        """Whether a renewal found that another holder took it; only :meth:`check` is sure."""
        self._ended = False
        self._released_in: Transaction | None = None

    @property
    def resources(self) -> tuple[str, ...]:
        return tuple(self.ask.resources)

    @property
    def ended(self) -> bool:
        """Whether it was released, or found to be lost.

        A lock that was released in a transaction is held until that has committed, and for longer
        if it did not: once the transaction is over, the database is asked.
        """
        if self._released_in is not None and not self.leaving:
            with self.database.begin() as connection:
                gone = renew(connection, [self.ask.token], self.ask.lease)
            self._ended, self._released_in = bool(gone), None
            if gone:
                wake_next(self.database, self.resources)
            self.renew_at = time.monotonic() + self.ask.lease.total_seconds() / 3
        return self._ended

    @property
    def leaving(self) -> bool:
        """Whether the transaction in which it was released is still open."""
        return self._released_in is not None and self._released_in.is_active

    @property
    def is_renewed(self) -> bool:
        """Whether it needs a renewal, as far as is known without asking the database."""
        return not self._ended

    def __repr__(self) -> str:
        if self._released_in is not None:
            state = "released, if that transaction commits"
        else:
            state = "lost" if self.lost else "released" if self._ended else "held"
        return f"<lock {self.fence} on {', '.join(self.resources)}: {state}>"

    def check(self, session: Sync) -> None:
        """Pass if the lock is held, and keep it so until the transaction of ``session`` ends.

        Raises:
            LockLostError: its lease ended, and another holder took it over.
        """
        if not guard(connection_of(session), self.ask.token):
            self.lose()

    def renew(self) -> None:
        """Extend the lease to its full length from now.

        Raises:
            LockLostError: the lease ended, and another holder took the lock over.
        """
        with self.database.begin() as connection:
            lost = renew(connection, [self.ask.token], self.ask.lease)
        if lost:
            self.lose()
        self.renew_at = time.monotonic() + self.ask.lease.total_seconds() / 3

    def release(self, session: Sync | None = None) -> None:
        """Release the lock: at once, or with the commit of ``session``, guarded until then.

        If that transaction rolls back, the lock is held as before, and the end of its block
        releases it; after the block, the end of its lease does.

        Raises:
            LockLostError: another holder took it over before.
        """
        if session is not None:
            connection = connection_of(session)
            if not release(connection, self.ask.token):
                self.lose()
            self._released_in = connection.get_transaction()
            return
        if not patiently(self.database, lambda single: release_now(single, self.ask.token)):
            self.lose()
        self.end()
        wake_next(self.database, self.resources)

    def end(self) -> None:
        """Note that it is released, or that its run's end releases it."""
        self._ended, self._released_in = True, None

    def miss(self) -> bool:
        """Note that a renewal did not find it; return whether it is lost, not just released."""
        self.lost = not self._ended and self._released_in is None
        return self.lost

    def lose(self) -> None:
        """Raise LockLostError; note it, unless its own release may still be rolled back."""
        if not self.leaving:
            self.end()
            self.lost = True
        raise LockLostError(self.resources)


FIRST_CHECKS_S, CHECK_EVERY_S = (0.05, 0.1, 0.2, 0.3), 0.4
"""When a waiter checks whether it may have the group: one read each time, which locks nothing."""
LOCK_NOT_AVAILABLE = "55P03"
REPEATED = (LOCK_NOT_AVAILABLE, "40001")
"""Errors after which we ask again; the second is for roles stricter than READ COMMITTED."""
SHORT_TRIES = 3  # by one statement, which does nothing if another request was decided meanwhile
MOST_TRIES = 20  # each waits a second for the row lock (``lock_timeout``)
T = TypeVar("T")
nap = time.sleep


class Transacts(Protocol):
    """Opens our own transactions."""

    @property
    def engine(self) -> Engine: ...

    def begin(self) -> AbstractContextManager[Connection]:
        """Open one that commits at the end of the block."""

    def single(self) -> AbstractContextManager[Connection]:
        """Open a connection for one statement, which commits by itself."""


def acquire_locks(
    database: Transacts, ask: LockRequest, wait_s: float, snooze_s: float
) -> GrantedLocks:
    """Return when the group is held; raise LockDeniedError if it was not free in time."""
    began = time.monotonic()
    try:
        answer = _ask(database, ask, waits=wait_s > 0)
        if wait_s > 0 and not isinstance(answer, GrantedLocks):
            answer = _wait_in_line(database, ask, began + wait_s, answer)
        if isinstance(answer, GrantedLocks):
            return answer
        if wait_s > 0:
            patiently(database, lambda single: leave_queue(single, ask.token))
    except BaseException:  # a time limit, say, or a COMMIT that was not answered
        with suppress(Exception):
            patiently(database, lambda single: release_now(single, ask.token))
            wake_next(database, ask.resources)
        raise
    if wait_s > 0:
        wake_next(database, ask.resources)
    after = timedelta(seconds=snooze_s * random.uniform(0.75, 1.25))  # noqa: S311  no secret
    raise LockDeniedError(answer, time.monotonic() - began if wait_s else 0.0, after)


def _wait_in_line(
    database: Transacts, ask: LockRequest, ends: float, answer: tuple[Obstacle, ...]
) -> GrantedLocks | tuple[Obstacle, ...]:
    """Check at once, since a release meanwhile woke no one, then when woken or now and then."""
    renew_every_s = WAIT_LEASE.total_seconds() / 3
    renew_at = time.monotonic() + renew_every_s
    wake_ups, naps = wake_ups_of(database.engine), pauses()
    told = False
    with wake_ups.expected(database.engine, ask.token) as woken:  # before the check
        while True:
            passed_by = False
            if time.monotonic() >= renew_at:
                with database.begin() as connection:
                    passed_by = bool(renew(connection, [ask.token], WAIT_LEASE))
                renew_at = time.monotonic() + renew_every_s
            if told or passed_by or not answer or not _is_hindered(database, ask):
                found = _ask(database, ask, waits=True)
                if isinstance(found, GrantedLocks):
                    return found
                answer = found
            left = ends - time.monotonic()
            if left <= 0:
                return answer
            nap_s = next(naps)
            told = woken.wait(min(left, max(nap_s, CHECK_EVERY_S) if wake_ups.hears else nap_s))
            woken.clear()


def _is_hindered(database: Transacts, ask: LockRequest) -> bool:
    with database.single() as connection:
        return would_be_denied(connection, ask)


def wake_next(database: Transacts, resources: Sequence[str]) -> None:
    """Wake the next in line, after the commit that freed the resources; they check anyway."""
    with suppress(DBAPIError), database.single() as connection:
        notify_next(connection, resources)
        look_soon(connection, resources)


def _ask(
    database: Transacts, ask: LockRequest, *, waits: bool
) -> GrantedLocks | tuple[Obstacle, ...]:
    """Ask once, and insert the rows of new resources."""
    try:
        for _ in range(SHORT_TRIES):
            if (answer := _ask_at_once(database, ask, waits=waits)) is not None:
                return answer
        while True:
            with database.begin() as connection:
                answer = acquire(connection, ask, waits=waits)
            if answer is not None:
                return answer
            with database.begin() as connection:
                insert_resources(connection, ask)
    except DBAPIError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        return ()


def _ask_at_once(
    database: Transacts, ask: LockRequest, *, waits: bool
) -> GrantedLocks | tuple[Obstacle, ...] | None:
    try:
        with database.single() as connection:
            return acquire_at_once(connection, ask, waits=waits)
    except DBAPIError as error:
        if sqlstate(error) not in REPEATED:
            raise
        return None


def patiently(database: Transacts, verb: Callable[[Connection], T]) -> T:
    """Call a verb of a single statement, and again while its row is locked.

    A renewal or a take-over locks it, whose process stands still; PostgreSQL ends a transaction
    that does so for long.
    """
    tries = 0
    while True:
        tries += 1
        try:
            with database.single() as connection:
                return verb(connection)
        except DBAPIError as error:
            if sqlstate(error) not in REPEATED or tries == MOST_TRIES:
                raise


def pauses() -> Iterator[float]:
    """Yield the seconds between two checks, with jitter so that waiters do not check in step."""
    for pause in chain(FIRST_CHECKS_S, repeat(CHECK_EVERY_S)):
        yield pause * random.uniform(0.75, 1.25)  # noqa: S311  no secret


log = quiet_logger(__name__)
ROUND_S = 1.0
IDLE_S = 10.0  # how long it listens on without a waiter: to connect takes longer than most waits
PAUSE_S = 30.0  # after an error


class WakeUps:
    """The waiters of this process, on the engines of one connection pool."""

    def __init__(self) -> None:
        self.pid: int = os.getpid()
        self._mutex = threading.Lock()
        self._waiting: dict[str, threading.Event] = {}
        self._waited_at = 0.0
        self._listens = False
        self.hears: bool = False  # whether waiters are woken, so that they need to check rarely
        self._not_before = 0.0

    @contextmanager
    def expected(self, engine: Engine, token: UUID) -> Iterator[threading.Event]:
        """Yield what is set when the group should be asked for again."""
        woken = threading.Event()
        with self._mutex:
            self._waiting[str(token)] = woken
            starts = not self._listens and time.monotonic() >= self._not_before
            self._listens |= starts
        try:
            if starts:
                name = "tasks_app lock wake-ups"
                threading.Thread(target=self._work, args=(engine,), name=name, daemon=True).start()
            yield woken
        finally:
            with self._mutex:
                del self._waiting[str(token)]
                self._waited_at = time.monotonic()

    def _work(self, engine: Engine) -> None:
        try:
            heard = self._listen(engine)
            pause_s = 0.0 if heard else float("inf")
        except Exception as error:
            log.info("waiters for locks are not woken, they check often: %s", first_line(error))
            pause_s = PAUSE_S
        if pause_s:
            with self._mutex:
                self._listens, self._not_before = False, time.monotonic() + pause_s

    def _listen(self, engine: Engine) -> bool:
        """Listen while a thread waits; False: these connections cannot listen."""
        with engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()
            if not listen_for_wake_ups(connection):
                return False
            self.hears = True
            try:
                with self._mutex:
                    for waiter in self._waiting.values():  # of notices before
                        waiter.set()
                while not self._ends():
                    for token in read_wake_ups(connection, ROUND_S):
                        if (woken := self._waiting.get(token)) is not None:
                            woken.set()
            finally:
                self.hears = False
        return True

    def _ends(self) -> bool:
        """Decide under the mutex: a later waiter starts another thread."""
        with self._mutex:
            idle = not self._waiting and time.monotonic() >= self._waited_at + IDLE_S
            self._listens = not idle
        return idle


_OF: WeakKeyDictionary[Pool, WakeUps] = WeakKeyDictionary()


def wake_ups_of(engine: Engine) -> WakeUps:
    """Return those of an engine; a forked process makes its own."""
    found = _OF.get(engine.pool)
    if found is None or found.pid != os.getpid():
        found = _OF[engine.pool] = WakeUps()
    return found
