"""A group of locks for the length of a with block."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from uuid import uuid4

from tasks_app.domain.locks import Ask
from tasks_app.domain.locks import LockOrderError
from tasks_app.runtime.locks.acquire import Transacts, take
from tasks_app.runtime.locks.lock import _HELD, Lock, Renewing


class Hold:
    """A context manager that holds a group."""

    def __init__(
        self,
        database: Transacts,
        ask: Ask,
        *,
        wait_s: float,
        snooze_s: float,
        renewing: Renewing | None,
    ) -> None:
        self._database = database
        self._ask = ask
        self._wait_s = wait_s
        self._snooze_s = snooze_s
        self._renewing = renewing
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
        lock = Lock(self._database, ask, take(self._database, ask, self._wait_s, self._snooze_s))
        if self._renewing is not None:
            self._renewing.add(lock)
        return lock

    def __enter__(self) -> Lock:
        self._refuse_twice()
        return self._begin_block(self.take())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lock = self._end_block()
        if error is not None:
            self.fail(lock)
        elif lock.lost or not (lock.leaving or lock.ended):
            self.end(lock)

    async def __aenter__(self) -> Lock:
        self._refuse_twice()
        return self._begin_block(await asyncio.to_thread(self.take))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lock = self._end_block()
        if error is not None:
            await self.afail(lock)
        elif lock.lost or not (lock.leaving or await asyncio.to_thread(lambda: lock.ended)):
            await self.aend(lock)

    def end(self, lock: Lock) -> None:
        """Release after a block that ended well.

        Raises:
            LockLostError: another holder took it over before.
        """
        if lock.lost:
            lock.lose()
        lock.release()

    async def aend(self, lock: Lock) -> None:
        """As :meth:`end`, in a thread."""
        await asyncio.to_thread(Hold.end, self, lock)

    def fail(self, lock: Lock) -> None:
        """Release after a block that raised; its error says more than one of ours would."""
        with suppress(Exception):
            lock.release()

    async def afail(self, lock: Lock) -> None:
        await asyncio.to_thread(Hold.fail, self, lock)

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
        if self._renewing is not None:
            self._renewing.discard(lock)
        return lock
