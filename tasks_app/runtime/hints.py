"""Hints: tasks that a session created are announced to workers once its transaction commits."""

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
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from tasks_app.domain.groups import StartedTask
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.records import RowTemplate, TaskId, TaskRow
from tasks_app.domain.tasks.run import Settlement
from tasks_app.pool.tables import pool_name
from tasks_app.runtime.hint_sender import Hint, HintCounts, HintPublisher, HintSender

if TYPE_CHECKING:
    from tasks_app.domain.config.settings import Settings


log = quiet_logger(__name__)
Connect: TypeAlias = "Callable[[Settings], HintPublisher]"
PUBLISHER = "tasks_app.broker.publisher"  # the module that sends hints through Celery's broker
NOTIFIER = "tasks_app.runtime.notify"  # the one that sends them by NOTIFY
UNHEARD = "tasks_app_unheard"  # option of a test's engine: other processes do not see its commits
_NOTES = "tasks_app hints"  # where a session keeps hints for each of its open transactions
NEAR = timedelta(seconds=1.5)  # longer than the scan's usual interval: it finds later tasks in time
BULK = 1_000  # calls that create more tasks than this are left to the scan


def as_configured(settings: Settings) -> HintPublisher:
    """Make the publisher of a higher room, which may import Celery, with the first hint."""
    publisher: HintPublisher
    if settings.broker_url is None:
        publisher = importlib.import_module(NOTIFIER).NotifyHints(settings)
    else:
        publisher = importlib.import_module(PUBLISHER).CeleryHints(settings)
    return publisher


class Hints:
    """The hints of one process; a forked one starts afresh."""

    def __init__(self) -> None:
        self._connect: Connect = as_configured
        self._left_behind: list[HintSender] = []
        self._names: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()
        self.pool: str | None = None  # the pool of the first session, which gets hints
        # How long a process that ends waits for its last hints; by then the scan finds the tasks.
        self.exit_patience_s = 1.0
        self._reset()

    def provide(self, connect: Connect) -> Connect:
        """Set what connects to a broker, in the sender's thread; return what did before."""
        before, self._connect = self._connect, connect
        self.pool = None
        self._reset()
        return before

    def counts(self) -> HintCounts:
        return replace(self._sender.counts) if self._sender else HintCounts()

    def note(self, session: object, rows: Sequence[TaskRow], ids: Sequence[TaskId]) -> None:
        """Remember the tasks of a session, to hint at them when it commits."""
        if self._current() is None or not isinstance(session, Session):
            return
        transaction = session.get_nested_transaction() or session.get_transaction()
        hints = hints_of_new(rows, ids)
        if hints and transaction is not None and self._gets_hints(session):
            session.info.setdefault(_NOTES, {}).setdefault(transaction, []).extend(hints)

    def offer(self, hints: Iterable[Hint]) -> None:
        """Hint at committed tasks; returns at once, and raises nothing."""
        given = list(hints)
        try:
            if given and (sender := self._current()) is not None:
                sender.offer(given)
        except Exception as error:  # the commit took place; the scan finds the tasks
            log.warning("hints were lost: %s", type(error).__name__)

    def takes(self, queue: str) -> bool:
        """Whether a hint for the queue would be sent, and not dropped, just now."""
        sender = self._current()
        return sender is not None and sender.takes(queue)

    def flush(self, patience_s: float | None = None) -> None:
        """Wait until the hints so far are sent or dropped; None: as long as at an exit."""
        if self._sender is not None:
            self._sender.flush(self.exit_patience_s if patience_s is None else patience_s)

    def forked(self) -> None:
        """Start afresh in a child. The parent's sender is kept: its socket is not ours to close."""
        if self._sender is not None:
            self._left_behind.append(self._sender)
        self._reset()

    def _reset(self) -> None:
        self._sender: HintSender | None = None
        self._decided = False
        self._deciding = threading.Lock()

    def _current(self) -> HintSender | None:
        """Return the sender; None: hints are switched off, or no URL is configured."""
        if not self._decided:
            with self._deciding:
                if not self._decided:
                    self._sender = self._make()
                    self._decided = True
        return self._sender

    def _make(self) -> HintSender | None:
        from tasks_app.domain.config.settings import load_settings  # noqa: PLC0415  slow to import

        connect, settings = self._connect, load_settings()
        whom, url = "broker", settings.broker_url
        if url is None:
            whom, url = "database", settings.database_url
        if not settings.hints or url is None:
            return None
        if not event.contains(Session, "after_commit", self._committed):
            event.listen(Session, "after_commit", self._committed)
            event.listen(Session, "after_transaction_end", self._ended)
            atexit.register(self.flush)
        return HintSender(lambda: connect(settings), whom)

    def _gets_hints(self, session: Session) -> bool:
        """Whether we see its commit, and its pool (read once per engine) is the one with hints."""
        engine = session.get_bind()
        if isinstance(engine, Connection) or UNHEARD in engine.get_execution_options():
            return False
        if engine not in self._names:
            self._names[engine] = pool_name(session.connection())
        name = self._names[engine]
        self.pool = self.pool or name
        return name in (None, self.pool)

    def _committed(self, session: Session) -> None:
        """Handle a released savepoint, or a commit."""
        notes: dict[SessionTransaction | None, list[Hint]] | None = session.info.get(_NOTES)
        if not notes:
            return
        nested = session.get_nested_transaction()
        if nested is not None:
            notes.setdefault(nested.parent, []).extend(notes.pop(nested, ()))
        else:
            self.offer(notes.pop(session.get_transaction(), ()))

    @staticmethod
    def _ended(session: Session, transaction: SessionTransaction) -> None:
        notes = session.info.get(_NOTES)
        if notes:
            notes.pop(transaction, None)  # what is still there was rolled back


HINTS = Hints()
os.register_at_fork(after_in_child=HINTS.forked)


def hint_tasks(ids: Iterable[int], *, queue: str = "default") -> None:
    """Hint at due tasks that you have committed on a connection of psycopg.

    Workers start them at once instead of at the next scan. It neither waits nor raises.

    >>> with psycopg.connect(url) as connection:
    ...     task_id = create_task(connection, send_mail, {"to": "a@example.org"})
    >>> hint_tasks([task_id])
    """
    HINTS.offer(Hint(queue, int(task_id)) for task_id in ids)


def hints_of_new(rows: Sequence[TaskRow], ids: Sequence[TaskId]) -> list[Hint]:
    """Return hints at those tasks of one call that are due soon."""
    if len(rows) > BULK:
        return []
    now = time.monotonic()  # later than the database inserted them: no hint is early
    return [
        Hint(row.terms.queue, int(task_id), now + row.terms.delay.total_seconds())
        for row, task_id in zip(rows, ids, strict=True)
        if task_id.created and is_near(row.terms)
    ]


def hints_of_returned(settlements: Iterable[Settlement]) -> list[Hint]:
    """Return hints at tasks that went back to the pool and are due again soon."""
    now = time.monotonic()
    return [
        Hint(s.task.queue, s.fence.task_id, now + s.wait.total_seconds())
        for s in settlements
        if s.wait is not None and s.wait <= NEAR and s.task is not None
    ]


def hints_of_started(callbacks: Iterable[StartedTask]) -> list[Hint]:
    """Return hints at committed callbacks that are due soon."""
    now, near = time.monotonic(), NEAR.total_seconds()
    return [
        Hint(each.queue, each.id, now + max(0.0, each.wait_s))
        for each in callbacks
        if each.wait_s <= near
    ]


def is_near(terms: RowTemplate) -> bool:
    """Whether the task may become due before a scan finds it.

    A task with a fair_key is left to the scan: by a hint it would overtake all others.
    """
    near = terms.run_at is None and terms.delay <= NEAR
    return near and terms.enabled and terms.fair_key is None
