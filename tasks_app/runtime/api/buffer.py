"""Tasks that are written a moment later, many together, by a thread: fast, and not for keeps.

They belong to no transaction of the caller, and a process that is killed takes with it what it had
not written yet. Whatever else happens to a task, it is written once, or its loss is reported.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, Unpack, overload

from sqlalchemy import Engine

from tasks_app.domain.creation import NewTask
from tasks_app.domain.durations import Duration, named_duration
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.domain.tasks.records import TaskRow
from tasks_app.domain.tasks.unique_key import POLICIES, OnConflict
from tasks_app.runtime.api.buffer_queue import BufferCounts, BufferLimits, BufferQueue
from tasks_app.runtime.api.buffer_writer import BufferWriter, database_of, leave_to_parent
from tasks_app.runtime.api.producer import admitted, ready
from tasks_app.runtime.db.errors import patience_s

if TYPE_CHECKING:
    from tasks_app.domain.handlers.spec import Handler
    from tasks_app.domain.tasks.call_payload import CeleryCall
    from tasks_app.domain.tasks.payload import Payload

log = quiet_logger(__name__)

P = TypeVar("P")
OnLost: TypeAlias = Callable[[Sequence[TaskRow], BaseException], None]
_JOIN_S = 1.0
"""How long the end of a buffer waits for its thread, which may hang in a call to the database."""
_NAMES_SHOWN = 9


class TaskBuffer:
    """Creates tasks in the background: NOT in your transaction, and lost if the process is killed.

    Any thread may use it. After a fork the child has an empty one, and its own connections.

    >>> with TaskBuffer(engine) as buffer:
    ...     for n in range(3):
    ...         buffer.create_task("clicks.count", {"page": n})
    >>> buffer.counts().written
    3
    """

    _pause_s = staticmethod(patience_s)
    """How long a database that did not take a batch is left alone."""

    def __init__(
        self,
        database: Engine | str,
        *,
        size: int = 1_000,
        every: Duration = "100ms",
        capacity: int = 50_000,
        block: Duration = "5s",
        patience: Duration = "30s",
        on_lost: OnLost | None = None,
    ) -> None:
        """Make a buffer; its thread and its connection come with the first task.

        Args:
            database: an Engine, or the URL of the database.
            size: how many tasks are written together; so many are written at once.
            every: how long a task waits for company.
            capacity: how many tasks may wait; then ``create_task`` waits for room.
            block: how long it does so before it raises; use 0 in an event loop.
            patience: how long a batch that the database does not take is tried again.
            on_lost: called with rows that could not be written, and why; in the buffer's thread.
        """
        if not 1 <= size <= capacity:
            raise ValueError("size of a TaskBuffer is outside 1 .. capacity. Set both.")
        self._database = database_of(database)
        every_s = named_duration("every", every).total_seconds()
        block_s = named_duration("block", block).total_seconds()
        self._limits = BufferLimits(size, every_s, capacity, block_s)
        self._patience_s = named_duration("patience", patience).total_seconds()
        self._on_lost = on_lost
        self._begin()
        _BUFFERS.add(self)

    def _begin(self, *, closed: bool = False) -> None:
        """Be empty: at first, and in a forked child, because these tasks are the parent's."""
        self._queue = BufferQueue(self._limits)
        self._queue.closed = closed
        self._thread: threading.Thread | None = None

    @overload
    def create_task(
        self,
        task: Handler[P, Any],
        payload: P,
        **options: Unpack[TaskOptions],
    ) -> None: ...
    @overload
    def create_task(
        self,
        task: Handler[None, Any],
        payload: None = None,
        **options: Unpack[TaskOptions],
    ) -> None: ...
    @overload
    def create_task(
        self,
        task: str | CeleryCall,
        payload: Payload = None,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[TaskOptions],
    ) -> None: ...
    def create_task(
        self,
        task: Any,
        payload: Any = None,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[TaskOptions],
    ) -> None:
        """Take one task, as :func:`tasks_app.create_task` does, to be written soon.

        There is no id yet, and no word on whether a ``unique_key`` was free: nothing is returned.
        A ``delay`` counts from when the task is written.

        Raises:
            InvalidTaskError: it is refused.
            TaskBufferFullError: the database has not kept up for as long as ``block``.
        """
        (row,) = ready([admitted(NewTask(task, payload, options, args, kwargs), large=True)])
        if row.terms.rule is not None and row.terms.rule.on_conflict is OnConflict.RAISE:
            raise InvalidTaskError(
                "options.on_conflict", "is raise, which a buffer cannot report", POLICIES
            )
        if self._thread is None and not self._queue.closed:
            self._start()
        self._queue.put(row)

    def flush(self, timeout: Duration | None = None) -> bool:
        """Write now all that was taken so far; False: it is not written yet, or some was lost."""
        timeout_s = None if timeout is None else named_duration("timeout", timeout).total_seconds()
        return self._queue.flush(timeout_s)

    def close(self, timeout: Duration = "5s") -> bool:
        """Write all and end, as the end of the ``with`` block and of the program do.

        What cannot be written in time is lost, and that is told. Returns whether all was written.
        """
        self._queue.close()
        written = self.flush(timeout)
        if rest := self._queue.give_up():
            self._lose(rest, TimeoutError("the buffer was closed"))
            self._queue.settle(len(rest), written=0)
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        if waiting := self.counts().waiting:
            log.error("a buffer ends before it knows whether %s tasks are written", waiting)
        atexit.unregister(self.close)
        return written

    def counts(self) -> BufferCounts:
        """Return what became of this process's tasks so far."""
        return self._queue.counts()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        with self._queue.changed:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tasks_app buffer", daemon=True
                )
                self._thread.start()
                atexit.register(self.close)

    # -- in the thread

    def _run(self) -> None:
        queue = self._queue
        writer = BufferWriter(
            lambda: self._database.engine,
            self._patience_s,
            lambda: queue.pause(self._pause_s()),
            self._lose,
        )
        while batch := queue.take():
            written = 0
            try:
                written = writer.write(batch)
            except BaseException as error:
                self._lose(batch, error)
            queue.settle(len(batch), written=written)
        self._database.dispose()

    def _lose(self, rows: Sequence[TaskRow], error: BaseException) -> None:
        names = sorted({row.name for row in rows})
        log.error(
            "%s tasks of a buffer were lost (%s): %s",
            len(rows),
            type(error).__name__,
            ", ".join(names[:_NAMES_SHOWN]),
        )
        if self._on_lost is not None:
            try:
                self._on_lost(rows, error)
            except Exception as own:
                log.warning("on_lost of a buffer failed: %s", type(own).__name__)


_BUFFERS: weakref.WeakSet[TaskBuffer] = weakref.WeakSet()


def _forked() -> None:
    leave_to_parent()
    for buffer in list(_BUFFERS):
        buffer._begin(closed=buffer._queue.closed)  # noqa: SLF001  of this module


os.register_at_fork(after_in_child=_forked)
