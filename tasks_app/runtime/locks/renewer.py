"""Renewals of locks, each a third of its lease after the last one, for a whole process at once."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from datetime import timedelta
from weakref import WeakSet

from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import brief
from tasks_app.pool.locks.renew import renew
from tasks_app.runtime.locks.acquire import Transacts
from tasks_app.runtime.locks.lock import Lock

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
        """Renew what is due.

        Raises:
            sqlalchemy.exc.DBAPIError: the database did not answer.
        """
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
                log.warning("locks were not renewed, again soon: %s", brief(error))
                time.sleep(PATIENCE_S)


BACKGROUND = Background()
"""Of this process."""
