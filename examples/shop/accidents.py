"""What goes wrong half way: a worker is killed with all its children, and the broker is emptied.

Nobody is told. Tasks in hand come back when their leases are over; lost messages are sent again.
"""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import Engine

from shop import figures, pace
from shop.diary import Diary


class Machine(Protocol):
    """What can be broken."""

    @property
    def engine(self) -> Engine:
        """The database, which stays up."""

    def kill_worker(self) -> None:
        """End the worker and all its children with SIGKILL."""

    def start_worker(self) -> None:
        """Start a worker."""

    def messages(self) -> int:
        """Return how many messages are in the broker."""

    def empty_broker(self) -> None:
        """Make the broker forget everything."""

    def cry(self, what: str) -> None:
        """Tell the people who watch."""


class Accidents:
    """One after the other, each at its worst moment, or after some time without one."""

    def __init__(self, machine: Machine, diary: Diary) -> None:
        self._machine = machine
        self._diary = diary
        self._dead_since: float | None = None
        self.are_over = False

    def step(self, elapsed_s: float) -> None:
        """Cause the accident that is due, if one is."""
        if self._dead_since is None:
            waited_s = elapsed_s - pace.WORKER_DIES_AT_S
            if waited_s >= 0 and self._kill(late=waited_s > pace.WORST_MOMENT_S):
                self._dead_since = elapsed_s
            return
        dead_s = elapsed_s - self._dead_since
        if self._diary.forgotten is None:
            if dead_s >= pace.BROKER_FORGETS_AFTER_S:
                self._forget(late=dead_s > pace.WORST_MOMENT_S)
        elif dead_s >= pace.WORKER_RETURNS_AFTER_S and not self.are_over:
            self._machine.start_worker()
            self._machine.cry("another worker is started, as a supervisor would do")
            self.are_over = True

    def _kill(self, *, late: bool) -> bool:
        with self._machine.engine.connect() as connection:
            in_hand = figures.total(figures.lines(connection, self._diary)).running
        if not in_hand and not late:
            return False
        self._machine.kill_worker()
        self._diary.in_hand = in_hand
        self._machine.cry(
            f"kill -9: the worker and its children are dead; tasks in hand: {in_hand}"
        )
        return True

    def _forget(self, *, late: bool) -> None:
        messages = self._machine.messages()
        if messages or late:
            self._machine.empty_broker()
            self._diary.forgotten = messages
            self._machine.cry(f"FLUSHALL: the broker has forgotten {messages} messages")
