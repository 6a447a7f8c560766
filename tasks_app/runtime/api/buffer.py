"""A buffer of new tasks that a thread writes a moment later, many together; a crash loses them."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, Unpack, overload

from sqlalchemy import Engine

from tasks_app.domain.creation import NewTask
from tasks_app.domain.durations import Duration, named_duration
from tasks_app.domain.errors import InvalidTaskError, TaskBufferFullError, TasksError
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.domain.tasks.records import POLICIES, OnConflict, TaskRow
from tasks_app.runtime.api.buffer_writer import BufferWriter
from tasks_app.runtime.api.producer import admitted, ready
from tasks_app.runtime.db.connections import checked_engine
from tasks_app.runtime.db.database import Database
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
        self._engine: Callable[[], Engine]
        self._dispose: Callable[[], None]
        if isinstance(database, str):
            own = Database(database)
            self._engine, self._dispose = lambda: own.engine, own.dispose
        else:
            engine = checked_engine(database, advice="Pass a synchronous Engine, or a URL.")
            _ENGINES.add(engine)
            self._engine, self._dispose = lambda: engine, lambda: None  # its owner does that
        every_s = named_duration("every", every).total_seconds()
        block_s = named_duration("block", block).total_seconds()
        self._limits = size, every_s, capacity, block_s
        self._patience_s = named_duration("patience", patience).total_seconds()
        self._on_lost = on_lost
        self._begin()
        _BUFFERS.add(self)

    def _begin(self, *, closed: bool = False) -> None:
        """Begin empty, in a forked child too: these tasks are the parent's."""
        self._queue = BufferQueue(*self._limits)
        self._queue.closed = closed
        self._thread: threading.Thread | None = None

    @overload
    def create_task(
        self, task: Handler[P, Any], payload: P, **options: Unpack[TaskOptions]
    ) -> None: ...
    @overload
    def create_task(
        self, task: Handler[None, Any], payload: None = None, **options: Unpack[TaskOptions]
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

        Nothing is returned: there is no id yet, and whether a ``unique_key`` is free is not known.
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

        What cannot be written in time is lost and reported. Returns whether all was written.
        """
        self._queue.close()
        written = self.flush(timeout)
        if left := self._queue.give_up():
            self._lose(left, TimeoutError("the buffer was closed"))
            self._queue.settle(len(left), written=0)
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

    def __exit__(self, *_error: object) -> None:
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
            self._engine, self._patience_s, lambda: queue.pause(self._pause_s()), self._lose
        )
        while batch := queue.take():
            written = 0
            try:
                written = writer.write(batch)
            except BaseException as error:
                self._lose(batch, error)
            queue.settle(len(batch), written=written)
        self._dispose()

    def _lose(self, rows: Sequence[TaskRow], error: BaseException) -> None:
        kind, names = type(error).__name__, ", ".join(sorted({row.name for row in rows})[:9])
        log.error("%s tasks of a buffer were lost (%s): %s", len(rows), kind, names)
        if self._on_lost is not None:
            try:
                self._on_lost(rows, error)
            except Exception as own:
                log.warning("on_lost of a buffer failed: %s", type(own).__name__)


_BUFFERS: weakref.WeakSet[TaskBuffer] = weakref.WeakSet()
_ENGINES: weakref.WeakSet[Engine] = weakref.WeakSet()
"""Those that were given."""


def _forked() -> None:
    for engine in list(_ENGINES):
        engine.dispose(close=False)  # its connections are the parent's
    for buffer in list(_BUFFERS):
        buffer._begin(closed=buffer._queue.closed)  # noqa: SLF001  of this module


os.register_at_fork(after_in_child=_forked)


@dataclass(slots=True)
class BufferCounts:
    """What became of the tasks of a buffer, in this process."""

    waiting: int = 0
    """Those that are being written included."""
    written: int = 0
    lost: int = 0


class BufferQueue:
    """Any thread puts; one thread takes batches and settles each."""

    def __init__(self, size: int, every_s: float, capacity: int, block_s: float) -> None:
        self._size = size
        self._every_s = every_s
        self._capacity = capacity
        self._block_s = block_s
        self.changed: threading.Condition = threading.Condition()
        self._waiting: deque[TaskRow] = deque()
        self._since = 0.0
        """Since when the first of them has waited, or a batch was taken."""
        self._taken = self._flush_to = 0
        self._counts = BufferCounts()
        self.closed: bool = False
        self._given_up = False

    def put(self, row: TaskRow) -> None:
        """Add a row; waits for room. TasksError: it is closed; TaskBufferFullError: no room."""
        with self.changed:
            room = self.changed.wait_for(self._has_room, self._block_s)
            if self.closed:
                raise TasksError("The buffer is closed. Create tasks before its with block ends.")
            if not room:
                raise TaskBufferFullError(self._capacity)
            self._waiting.append(row)
            self._taken += 1
            if len(self._waiting) == 1:
                self._since = time.monotonic()
            if len(self._waiting) in (1, self._size):
                self.changed.notify_all()

    def flush(self, timeout_s: float | None) -> bool:
        """Have all rows written that were put so far; False: one is late, or was lost."""
        with self.changed:
            target, lost = self._taken, self._counts.lost
            self._flush_to = target
            self.changed.notify_all()
            settled = self.changed.wait_for(lambda: self._settled >= target, timeout_s)
            return settled and self._counts.lost == lost

    def close(self) -> None:
        """Refuse further rows; what waits is still taken."""
        with self.changed:
            self.closed = True

    def give_up(self) -> list[TaskRow]:
        """Return the rows that were not taken yet; nothing is tried again from now on."""
        with self.changed:
            self._given_up = True
            left = list(self._waiting)
            self._waiting.clear()
            self.changed.notify_all()
            return left

    def counts(self) -> BufferCounts:
        with self.changed:
            return replace(self._counts, waiting=self._taken - self._settled)

    def take(self) -> list[TaskRow]:
        """Wait for a batch that is full, old enough or flushed; empty: the queue has ended."""
        with self.changed:
            while not self._is_ripe():
                if self.closed and not self._waiting:
                    return []
                left_s = self._since + self._every_s - time.monotonic() if self._waiting else None
                self.changed.wait(left_s)
            size = min(self._size, len(self._waiting))
            self._since = time.monotonic()
            return [self._waiting.popleft() for _ in range(size)]

    def settle(self, number: int, *, written: int) -> None:
        """Note what became of ``number`` rows; those that were not written are lost."""
        with self.changed:
            self._counts.written += written
            self._counts.lost += number - written
            self.changed.notify_all()

    def pause(self, seconds: float) -> bool:
        """Wait before the next try; False: there is to be none."""
        with self.changed:
            return not self.changed.wait_for(lambda: self._given_up, seconds)

    @property
    def _settled(self) -> int:
        return self._counts.written + self._counts.lost

    def _has_room(self) -> bool:
        return self._taken - self._settled < self._capacity or self.closed

    def _is_ripe(self) -> bool:
        waiting = len(self._waiting)
        return waiting >= self._size or (
            waiting > 0
            and (self._settled < self._flush_to or time.monotonic() >= self._since + self._every_s)
        )
