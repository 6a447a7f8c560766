"""A group of locks that somebody holds, and the context manager that takes and releases it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Protocol

from sqlalchemy import Connection, Transaction

from tasks_app.domain.coordination.locks import Ask, Granted, LockLostError
from tasks_app.pool.locks.renew import guard, release, renew
from tasks_app.runtime.db.connections import Sync, connection_of
from tasks_app.runtime.locks.acquire import patiently

_HELD: ContextVar[tuple[Lock, ...]] = ContextVar("tasks_app locks", default=())


class Lock:
    """A group that is held. Guard with it what is written under it."""

    def __init__(self, begin: Begin, ask: Ask, granted: Granted) -> None:
        self.begin = begin
        self.ask = ask
        self.fence = granted.fence
        """Rises with every grant of a resource: for other systems that refuse what is older."""
        self.granted_at = granted.granted_at
        self.renew_at = time.monotonic() + ask.lease.total_seconds() / 3
        self.lost = False
        """Whether a renewal found that somebody else took it. Ask :meth:`check` to be sure."""
        self._ended = False
        self._released_in: Transaction | None = None

    @property
    def resources(self) -> tuple[str, ...]:
        """What is held."""
        return tuple(self.ask.resources)

    @property
    def ended(self) -> bool:
        """Released, or found to be lost.

        What was released in a transaction is held until that has committed, and for longer if it
        did not: once it is over the database is asked, for it alone knows.
        """
        if self._released_in is not None and not self.leaving:
            with self.begin() as connection:
                gone = renew(connection, [self.ask.token], self.ask.lease)
            self._ended, self._released_in = bool(gone), None
            self.renew_at = time.monotonic() + self.ask.lease.total_seconds() / 3
        return self._ended

    @property
    def leaving(self) -> bool:
        """Whether the transaction that it was released in still goes on."""
        return self._released_in is not None and self._released_in.is_active

    @property
    def is_renewed(self) -> bool:
        """Whether it is to be renewed some time, as far as is known without asking."""
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
            LockLostError: its lease ended, and somebody took it over.
        """
        if not guard(connection_of(session), self.ask.token):
            self.lose()

    def renew(self) -> None:
        """Extend the lease to its full length from now.

        Raises:
            LockLostError: it ended, and somebody took the lock over.
        """
        with self.begin() as connection:
            lost = renew(connection, [self.ask.token], self.ask.lease)
        if lost:
            self.lose()
        self.renew_at = time.monotonic() + self.ask.lease.total_seconds() / 3

    def release(self, session: Sync | None = None) -> None:
        """Give the lock back: at once, or with the commit of ``session``, guarded until then.

        If that transaction rolls back the lock is held as before, and the end of its block releases
        it. If the block ends before the transaction does, its lease does.

        Raises:
            LockLostError: somebody took it over before.
        """
        if session is not None:
            connection = connection_of(session)
            if not release(connection, self.ask.token):
                self.lose()
            self._released_in = connection.get_transaction()
            return
        if not patiently(self.begin, lambda connection: release(connection, self.ask.token)):
            self.lose()
        self.end()

    def end(self) -> None:
        """Remember that it is released, or that somebody else will see to that."""
        self._ended, self._released_in = True, None

    def miss(self) -> bool:
        """A renewal did not find it: return whether it is lost, and not just released."""
        self.lost = not self._ended and self._released_in is None
        return self.lost

    def lose(self) -> None:
        """Remember that it is lost; not where its own release may yet be rolled back.

        Raises:
            LockLostError: always.
        """
        if not self.leaving:
            self.end()
            self.lost = True
        raise LockLostError(self.resources)


Begin = Callable[[], AbstractContextManager[Connection]]
"""Opens a transaction of ours, which commits at the end of the block."""


class Renewing(Protocol):
    """Who keeps locks alive while their holder works."""

    def add(self, lock: Lock) -> None:
        """Renew this one from now on."""

    def discard(self, lock: Lock) -> None:
        """Do so no more."""
