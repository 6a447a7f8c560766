"""Hints: what a session created is offered to the broker once its transaction has committed.

A savepoint's tasks go to the transaction around it when it is released, and are forgotten when it
rolls back. A session bound to a connection hints nothing: what it commits, another may roll back.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  Celery brings it, too late for a script that ends
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from tasks_app.domain.coordination.groups import Called
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.records import HINT_WAIT, RowTemplate, TaskId, TaskRow
from tasks_app.domain.tasks.run import Settlement
from tasks_app.pool.pool_name import pool_name
from tasks_app.runtime.hints.channel import Counts
from tasks_app.runtime.hints.sender import Hint, HintSender
from tasks_app.runtime.publisher import HintPublisher

if TYPE_CHECKING:
    from tasks_app.domain.config.settings import Settings

log = quiet_logger(__name__)

BULK = 1_000
"""More tasks than this in one call are left to the scan: nobody waits for the first of them."""
NEAR = timedelta(seconds=1.5)
"""What becomes due later than this, the scan sees coming. Longer than its usual interval."""
EXIT_PATIENCE_S = 1.0
"""How long a process that ends waits for its last hints; the scan finds the tasks as soon."""
ROOM = "tasks_app.broker.publish.hints"
"""Where the way through the broker is."""
_NOTES = "tasks_app hints"
"""Where a session keeps a list of hints for each of its open transactions."""


def through_broker(settings: Settings) -> HintPublisher:
    """Reach the broker by a room of a higher floor, imported with the first hint: it brings Celery.

    Nobody has to hand it in: no matter by which import a process came to us, it wakes others.
    """
    publisher: HintPublisher = importlib.import_module(ROOM).CeleryHints(settings)
    return publisher


class Hints:
    """The hints of one process; a forked one starts afresh."""

    def __init__(self) -> None:
        self._connect: Callable[[Settings], HintPublisher] = through_broker
        self._left_behind: list[HintSender] = []
        self._names: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()
        self.pool: str | None = None
        """The pool whose tasks are hinted at: that of the first session; None: not known."""
        self._forget()

    def provide(self, connect: Callable[[Settings], HintPublisher]) -> None:
        """Say how else to reach a broker. It is called in the hinter's thread."""
        self._connect = connect
        self.pool = None
        self._forget()

    def counts(self) -> Counts:
        """Return what became of this process's hints so far."""
        return replace(self._hinter.counts) if self._hinter else Counts()

    def expected(self, session: object, rows: Sequence[TaskRow]) -> Sequence[TaskRow]:
        """Return the rows to insert: the scan is to leave those alone that a hint will announce.

        What may expire meanwhile is not left to a hint.
        """
        hinter = self._current()
        if hinter is None or self._hinting_here(session, rows) is None:
            return rows
        return [
            row._replace(terms=_hinted(row.terms))
            if _is_due(row.terms)
            and row.terms.expires_at is None
            and hinter.reliable(row.terms.queue)
            else row
            for row in rows
        ]

    def note(self, session: object, rows: Sequence[TaskRow], ids: Sequence[TaskId]) -> None:
        """Remember what was created; it is hinted if and when the session commits."""
        if self._current() is None or (hinting := self._hinting_here(session, rows)) is None:
            return
        inserted_at = time.monotonic()  # later than by the database: no hint is early
        transaction = hinting.get_nested_transaction() or hinting.get_transaction()
        if transaction is not None:
            hinting.info.setdefault(_NOTES, {}).setdefault(transaction, []).extend(
                Hint(row.terms.queue, int(task_id), inserted_at + row.terms.delay.total_seconds())
                for row, task_id in zip(rows, ids, strict=True)
                if task_id.created and _is_near(row.terms)
            )

    def again(self, settlements: Iterable[Settlement]) -> None:
        """Hint at those tasks that this child has just sent back to the pool for a short wait."""
        settled_at = time.monotonic()
        hints = [
            Hint(s.task.queue, s.fence.task_id, settled_at + s.wait.total_seconds())
            for s in settlements
            if s.wait is not None and s.wait <= NEAR and s.task is not None
        ]
        if hints and (hinter := self._current()) is not None:
            hinter.offer(hints)

    def called(self, callbacks: Sequence[Called]) -> None:
        """Hint at callbacks that ends which this child has just committed have inserted."""
        if not callbacks or (hinter := self._current()) is None:
            return
        committed_at, near = time.monotonic(), NEAR.total_seconds()
        hinter.offer(
            Hint(each.queue, each.id, committed_at + max(0.0, each.wait_s))
            for each in callbacks
            if each.wait_s <= near
        )

    def offer(self, queue: str, ids: Iterable[int], wait_s: float = 0.0) -> None:
        """Hint at tasks of whose commit nobody else can tell us, now or after a moment."""
        hinter = self._current()
        if hinter is not None:
            at = time.monotonic() + wait_s if wait_s else 0.0
            hinter.offer(Hint(queue, int(task_id), at) for task_id in ids)

    def flush(self) -> None:
        """Give the last hints of a process that ends their time."""
        if self._hinter is not None:
            self._hinter.flush(EXIT_PATIENCE_S)

    def forked(self) -> None:
        """Begin anew in a child. The parent's hinter is kept: to close its socket is not for us."""
        if self._hinter is not None:
            self._left_behind.append(self._hinter)
        self._forget()

    def _forget(self) -> None:
        self._hinter: HintSender | None = None
        self._decided = False
        self._deciding = threading.Lock()

    def _current(self) -> HintSender | None:
        """Return the hinter; None: hints are switched off, or no broker is configured."""
        if not self._decided:
            with self._deciding:
                if not self._decided:
                    self._hinter = self._make()
                    self._decided = True
        return self._hinter

    def _make(self) -> HintSender | None:
        from tasks_app.domain.config.settings import load_settings  # noqa: PLC0415  slow to import

        connect, settings = self._connect, load_settings()
        if not settings.hints or settings.broker_url is None:
            return None
        if not event.contains(Session, "after_commit", self._committed):
            event.listen(Session, "after_commit", self._committed)
            event.listen(Session, "after_transaction_end", self._ended)
            atexit.register(self.flush)
        return HintSender(lambda: connect(settings))

    def _hinting_here(self, session: object, rows: Sequence[TaskRow]) -> Session | None:
        """Return the session, as below, if it is of the pool that this process hints at.

        Each engine is asked once, with its first task.
        """
        hinting = self._hinting(session, rows)
        if hinting is None:
            return None
        engine = hinting.get_bind()
        if engine not in self._names:
            self._names[engine] = pool_name(hinting.connection())
        name = self._names[engine]
        self.pool = self.pool or name
        return hinting if name in (None, self.pool) else None

    @staticmethod
    def _hinting(session: object, rows: Sequence[TaskRow]) -> Session | None:
        """Return the session whose commit will tell; None: there is none that can be known."""
        if not isinstance(session, Session) or len(rows) > BULK:
            return None
        return None if isinstance(session.get_bind(), Connection) else session

    def _committed(self, session: Session) -> None:
        """A savepoint was released, or a transaction has committed. Nothing may be raised here."""
        notes: dict[SessionTransaction | None, list[Hint]] | None = session.info.get(_NOTES)
        if not notes:
            return
        try:
            nested = session.get_nested_transaction()
            if nested is not None:
                notes.setdefault(nested.parent, []).extend(notes.pop(nested, ()))
            elif self._hinter is not None:
                self._hinter.offer(notes.pop(session.get_transaction(), ()))
        except Exception as error:  # the commit took place; the scan finds the tasks
            log.warning("hints were lost: %s", type(error).__name__)

    @staticmethod
    def _ended(session: Session, transaction: SessionTransaction) -> None:
        """Whatever is still noted here was rolled back."""
        notes = session.info.get(_NOTES)
        if notes:
            notes.pop(transaction, None)


@lru_cache(1024)
def _hinted(terms: RowTemplate) -> RowTemplate:
    return terms._replace(hint_wait=HINT_WAIT)


def _is_near(terms: RowTemplate) -> bool:
    """Whether the task is due before a scan has surely seen it coming.

    What has a share of a fair queue is the scan's: a hint would pass by all others.
    """
    near = terms.run_at is None and terms.delay <= NEAR
    return near and terms.enabled and terms.fair_key is None


def _is_due(terms: RowTemplate) -> bool:
    """Whether the task may run as soon as it is there, whatever the time is."""
    return not terms.delay and _is_near(terms)


HINTS = Hints()
os.register_at_fork(after_in_child=HINTS.forked)
