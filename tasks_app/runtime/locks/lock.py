"""A group of locks that is held."""

from __future__ import annotations

import time
from contextvars import ContextVar
from datetime import datetime
from typing import Protocol

from sqlalchemy import Transaction

from tasks_app.domain.locks import Ask
from tasks_app.domain.locks import Granted
from tasks_app.domain.locks import LockLostError
from tasks_app.pool.locks.renew import guard, release, release_now, renew
from tasks_app.runtime.db.connections import Sync, connection_of
from tasks_app.runtime.locks.acquire import Transacts, patiently, wake_next

_HELD: ContextVar[tuple[Lock, ...]] = ContextVar("tasks_app locks", default=())


class Lock:
    """A group that is held. Call :meth:`check` in the transaction that writes under it."""

    def __init__(self, database: Transacts, ask: Ask, granted: Granted) -> None:
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
        """The names that are held."""
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
        """Note that a renewal did not find it; return whether it is lost, and not just released."""
        self.lost = not self._ended and self._released_in is None
        return self.lost

    def lose(self) -> None:
        """Note that it is lost, unless its own release may still be rolled back.

        Raises:
            LockLostError: always.
        """
        if not self.leaving:
            self.end()
            self.lost = True
        raise LockLostError(self.resources)


class Renewing(Protocol):
    """Renews locks while their holder works."""

    def add(self, lock: Lock) -> None: ...

    def discard(self, lock: Lock) -> None: ...
