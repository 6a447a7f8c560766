"""Tasks that are written a moment later, many together, by a thread: fast, and not for keeps.

They belong to no transaction of the caller, and a process that is killed takes with it what it had
not written yet. Whatever else happens to a task, it is written once, or its loss is told.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, Unpack, overload

from sqlalchemy import Engine

from tasks_app.domain.creation.new_task import NewTask
from tasks_app.domain.durations import Duration, named_duration
from tasks_app.domain.errors import InvalidTaskError, TaskBufferFullError, TasksError
from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.domain.tasks.records import TaskRow
from tasks_app.domain.tasks.unique_key import POLICIES, OnConflict
from tasks_app.runtime.api.buffer_database import ENGINES, database_of
from tasks_app.runtime.api.buffer_writer import Delivery
from tasks_app.runtime.api.new_rows import admitted

if TYPE_CHECKING:
    from tasks_app.domain.handlers.spec import Handler
    from tasks_app.domain.tasks.call_payload import CeleryCall
    from tasks_app.domain.tasks.payload import Payload

log = quiet_logger(__name__)

P = TypeVar("P")
OnLost: TypeAlias = Callable[[Sequence[TaskRow], BaseException], None]


@dataclass(slots=True)
class BufferCounts:
    """What became of the tasks of a buffer, in this process."""

    waiting: int = 0
    """Being written, too."""
    written: int = 0
    lost: int = 0


class TaskBuffer:
    """Creates tasks in the background: NOT in your transaction, and lost if the process is killed.

    Any thread may use it. After a fork the child has an empty one, and its own connections.
    """

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
        self._size, self._capacity = size, capacity
        self._every_s = named_duration("every", every).total_seconds()
        self._block_s = named_duration("block", block).total_seconds()
        self._patience_s = named_duration("patience", patience).total_seconds()
        self._on_lost = on_lost
        self._closed = False
        self._begin()
        _BUFFERS.add(self)

    def _begin(self) -> None:
        """Be empty: at first, and in a child, for these tasks are the parent's."""
        self._changed = threading.Condition()
        self._waiting: deque[TaskRow] = deque()
        self._since = 0.0
        self._taken = self._flush_to = 0
        self._counts = BufferCounts()
        self._given_up = False
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
        row = admitted(NewTask(task, payload, options, args, kwargs))
        if row.terms.rule is not None and row.terms.rule.on_conflict is OnConflict.RAISE:
            raise InvalidTaskError(
                "options.on_conflict", "is raise: nobody would hear it", POLICIES
            )
        with self._changed:
            if self._settled + self._capacity <= self._taken:
                self._changed.wait_for(self._has_room, self._block_s)
            if self._closed:
                raise TasksError("The buffer is closed. Create tasks before its with block ends.")
            if not self._has_room():
                raise TaskBufferFullError(self._capacity)
            if self._thread is None:
                self._start()
            self._waiting.append(row)
            self._taken += 1
            if len(self._waiting) == 1:
                self._since = time.monotonic()
            if len(self._waiting) in (1, self._size):
                self._changed.notify_all()

    def flush(self, timeout: Duration | None = None) -> bool:
        """Write now all that was taken so far; False: it is not written yet, or some was lost."""
        with self._changed:
            target, lost = self._taken, self._counts.lost
            self._flush_to = target
            self._changed.notify_all()
            patience_s = (
                None if timeout is None else named_duration("timeout", timeout).total_seconds()
            )
            over = self._changed.wait_for(lambda: self._settled >= target, patience_s)
            return over and self._counts.lost == lost

    def close(self, timeout: Duration = "5s") -> bool:
        """Write all and end, as the end of the ``with`` block and of the program do.

        What cannot be written in time is lost, and that is told. Returns whether all was written.
        """
        with self._changed:
            self._closed = True
        written = self.flush(timeout)
        with self._changed:
            self._given_up = True
            rest = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        if rest:
            self._lose(rest, TimeoutError("the buffer was closed"))
            self._settle(len(rest), written=0)
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        if waiting := self.counts().waiting:
            log.error("a buffer ends before it knows whether %s tasks are written", waiting)
        atexit.unregister(self.close)
        return written

    def counts(self) -> BufferCounts:
        """Return what became of this process's tasks so far."""
        with self._changed:
            return replace(self._counts, waiting=self._taken - self._settled)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _settled(self) -> int:
        return self._counts.written + self._counts.lost

    def _has_room(self) -> bool:
        return self._taken - self._settled < self._capacity or self._closed

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="tasks_app buffer", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # -- in the thread

    def _run(self) -> None:
        delivery = Delivery(lambda: self._database.engine, self._patience_s, self._wait, self._lose)
        while batch := self._next():
            written = 0
            try:
                written = delivery.deliver(batch)
            except BaseException as error:
                self._lose(batch, error)
            self._settle(len(batch), written=written)
        self._database.dispose()

    def _next(self) -> list[TaskRow]:
        """Wait for a batch that is full, or old enough, or wanted; none: the buffer has ended."""
        with self._changed:
            while not self._is_ripe():
                if self._closed and not self._waiting:
                    return []
                left_s = self._since + self._every_s - time.monotonic() if self._waiting else None
                self._changed.wait(left_s)
            batch = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
            self._since = time.monotonic()
            return batch

    def _is_ripe(self) -> bool:
        waiting = len(self._waiting)
        return waiting >= self._size or (
            waiting > 0
            and (self._settled < self._flush_to or time.monotonic() >= self._since + self._every_s)
        )

    def _settle(self, number: int, *, written: int) -> None:
        with self._changed:
            self._counts.written += written
            self._counts.lost += number - written
            self._changed.notify_all()

    def _wait(self, seconds: float) -> bool:
        """Wait before the next try; False: there is to be none."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._given_up, seconds)

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


_JOIN_S = 1.0
"""How long the end of a buffer waits for its thread, which may hang in a call to the database."""
_NAMES_SHOWN = 9
_BUFFERS: weakref.WeakSet[TaskBuffer] = weakref.WeakSet()


def _forked() -> None:
    for engine in list(ENGINES):
        engine.dispose(close=False)
    for buffer in list(_BUFFERS):
        buffer._begin()  # noqa: SLF001  of this room


os.register_at_fork(after_in_child=_forked)
