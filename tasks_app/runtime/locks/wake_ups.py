"""Wake-ups: who waits for a lock asks again as soon as it is given back, not at its next look.

A thread listens for all of a process that wait on one engine, on a connection of its own outside
of the engine's pool, which it closes when nobody has waited for a while. Nothing rests on it:
behind a pooler, with another driver than psycopg, or while it fails, they look.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, Pool

from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.error_text import brief
from tasks_app.pool.locks.wake import listen, woken

log = quiet_logger(__name__)

ROUND_S, IDLE_S = 1.0, 10.0
"""It listens on for a while when nobody waits: to connect takes longer than most waits."""
REST_S = 30.0
"""After an error."""


class WakeUps:
    """Who waits in this process, on the engines of one connection pool."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self.pid: int = os.getpid()
        self._idle_s = idle_s
        self._mutex = threading.Lock()
        self._waiting: dict[str, threading.Event] = {}
        self._waited_at = 0.0
        self._listens = False
        self.hears: bool = False
        """Whether whoever waits is told, so that its looks may be rare."""
        self._not_before = 0.0

    @contextmanager
    def expected(self, engine: Engine, token: UUID) -> Iterator[threading.Event]:
        """Yield what is set when the group should be asked for again."""
        told = threading.Event()
        with self._mutex:
            self._waiting[str(token)] = told
            starts = not self._listens and time.monotonic() >= self._not_before
            self._listens |= starts
        try:
            if starts:
                name = "tasks_app lock wake-ups"
                threading.Thread(target=self._work, args=(engine,), name=name, daemon=True).start()
            yield told
        finally:
            with self._mutex:
                del self._waiting[str(token)]
                self._waited_at = time.monotonic()

    def _work(self, engine: Engine) -> None:
        try:
            heard = self._listen(engine)
            rest_s = 0.0 if heard else float("inf")
        except Exception as error:
            log.info("whoever waits for a lock looks now and then: %s", brief(error))
            rest_s = REST_S
        if rest_s:
            with self._mutex:
                self._listens, self._not_before = False, time.monotonic() + rest_s

    def _listen(self, engine: Engine) -> bool:
        """Listen while somebody waits; False: it cannot be here."""
        with engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()
            if not listen(connection):
                return False
            self.hears = True
            try:
                with self._mutex:
                    for told in self._waiting.values():  # of what was said before
                        told.set()
                while not self._ends():
                    for token in woken(connection, ROUND_S):
                        told_one = self._waiting.get(token)
                        if told_one is not None:
                            told_one.set()
            finally:
                self.hears = False
        return True

    def _ends(self) -> bool:
        """End under the mutex: whoever comes later starts another thread."""
        with self._mutex:
            idle = not self._waiting and time.monotonic() >= self._waited_at + self._idle_s
            self._listens = not idle
        return idle


_OF: WeakKeyDictionary[Pool, WakeUps] = WeakKeyDictionary()


def wake_ups_of(engine: Engine) -> WakeUps:
    """Return those of an engine; a process that was forked has none yet."""
    found = _OF.get(engine.pool)
    if found is None or found.pid != os.getpid():
        found = _OF[engine.pool] = WakeUps()
    return found
