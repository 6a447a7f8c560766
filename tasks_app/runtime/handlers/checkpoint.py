"""A run, its checkpoints, and loops over a long SELECT that save one after each page."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from types import FrameType
from typing import Any, TypeAlias

from sqlalchemy import Connection

from tasks_app.domain.errors import InvalidTaskError, LeaseLostError
from tasks_app.domain.handlers.outcomes import Cancel, Snooze
from tasks_app.domain.partition.keys import KeysetKey, pack_keyset, unpack_keyset
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.payload import encode_object
from tasks_app.domain.tasks.run import ClaimedTask, Settlement
from tasks_app.pool.fragments.conditions import CHECK_STOPPED_EVERY_S, is_queue_stopped
from tasks_app.pool.tasks.paging import Paged
from tasks_app.pool.tasks.run_records import (
    Note,
    read_checkpoint,
    save_checkpoint,
    write_sub_status,
)
from tasks_app.runtime.db.connections import noted
from tasks_app.runtime.db.transaction import Access
from tasks_app.runtime.handlers.interrupts import HandlerCall

LIMIT = 64 * 1024  # bytes of one checkpoint, which is written with each commit
PLACES = "ctx.chunks"  # the key under which a checkpoint holds the positions of chunk loops


@dataclass(slots=True)
class ActiveRun:
    """A task that a thread runs. The housekeeper writes most flags, the handler reads them."""

    task: ClaimedTask
    since: float
    cancelled: bool
    progress: tuple[float, str] | None = None
    reported: tuple[str, Any] | None = None  # a state in the task's own words, and JSON about it
    has_news: bool = False  # progress or a state that no heartbeat has told yet
    sub_status: str | None = None  # what the handler set; empty: clear it, None: leave it
    held_until: float = inf  # by time.monotonic: the lease ends no earlier, as far as we know
    in_async_pool: bool = False
    place: object = field(default_factory=object)
    """Its thread or place in the event loop, which all that one call runs share."""
    stops: bool = False  # the child stops; a handler that can stop in between may do so
    is_kept: bool = True  # the task keeps its row if it succeeds
    is_secret: bool = False  # what it returns and keeps is to be encrypted
    hard_timeout_s: float | None = None  # its process is killed after so long
    returned: Settlement | None = None  # the handler's end, if its writes commit later, alone
    has_kept: bool = False  # it has committed, so a further call of its handler goes on there
    thread: threading.Thread = field(default_factory=threading.current_thread)
    in_loop: Callable[[], bool] | None = None  # whether a task of the event loop still runs it
    call: HandlerCall | None = None  # the last call of its handler
    interrupted: bool = False  # a cancel was raised in it, or need not be
    others: Sequence[ActiveRun] = ()  # what the same call of a bulk handler runs with it

    @property
    def is_first(self) -> bool:
        """Whether its handler was not called before, so that nothing can be kept."""
        return self.task.fence.attempt == 1 and not self.has_kept

    def owned(self) -> bool:
        """Return whether the thread, or the task of the event loop, that runs it still lives."""
        return self.thread.is_alive() if self.in_loop is None else self.in_loop()

    def with_sub_status(self, settlement: Settlement) -> Settlement:
        """Return the settlement with the sub-status that the handler set."""
        if self.sub_status is None:
            return settlement
        return settlement._replace(sub_status=self.sub_status)


class RunCheckpoint:
    def __init__(self, run: ActiveRun, access: Access) -> None:
        self._run = run
        self._access = access
        self._value: dict[str, Any] | None = None
        self._places: dict[str, Any] = {}
        self._known = run.is_first
        self._changed = False
        self._inside: str | None = None

    def set(self, value: Mapping[str, Any] | None) -> None:
        """Keep the value for the next commit; InvalidTaskError: it cannot be stored."""
        if value is not None:
            encode_object(value, "checkpoint", LIMIT)
            if PLACES in value:
                raise InvalidTaskError(f"checkpoint.{PLACES}", "is reserved", "any other name")
        self._value = None if value is None else dict(value)
        self._changed = True

    def set_place(self, name: str, place: list[list[Any]]) -> None:
        """Set where a loop goes on after the next commit; the loop has read the places before."""
        self._places[name] = place
        self._changed = True

    def _load(self, connection: Connection) -> None:
        """Load what an earlier attempt saved; a value that was set meanwhile stays."""
        found = read_checkpoint(connection, self._run.task.task_id)
        saved = dict(found.checkpoint or {}) if found else {}
        self._places, self._known = saved.pop(PLACES, {}), True
        if not self._changed:
            self._value = saved or None

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Call a step's function: nothing is committed before it has returned."""
        self._check_outside()
        self._inside = name
        try:
            yield
        finally:
            self._inside = None

    def _check_outside(self) -> None:
        if self._inside is not None:
            raise RuntimeError(
                f"The step {self._inside!r} runs, and what it does commits at its end. "
                "Use ctx.commit, ctx.step and ctx.sleep before it or after it."
            )

    def _keep(self, connection: Connection, step: tuple[str, str] | None = None) -> None:
        if self._changed and not self._known:
            self._load(connection)
        text = None
        if self._changed and (self._value is not None or self._places):
            places = {PLACES: self._places} if self._places else {}
            text = encode_object({**(self._value or {}), **places}, "checkpoint", 2 * LIMIT)
        task, progress = self._run.task, self._run.progress
        note = Note(text, self._changed, *(progress or (None, None)), *(step or (None, None)))
        self._run.has_kept = True  # at the latest now it may
        cancelled = save_checkpoint(connection, task.fence, note)
        if cancelled is None:
            raise LeaseLostError(task.task_id)
        if self._run.sub_status is not None:
            write_sub_status(connection, task.fence, self._run.sub_status)
        self._run.cancelled = self._run.cancelled or cancelled


class PlainCheckpoint(RunCheckpoint):
    def get(self) -> dict[str, Any] | None:
        if not self._known:
            self._access.read(self._load)
        return self._value

    def places(self) -> dict[str, Any]:
        self.get()
        return self._places

    def commit(self, step: tuple[str, str] | None = None) -> None:
        """Commit, with the name and the result of a step that is over."""
        self._check_outside()
        self._access.keep(partial(self._keep, step=step))
        self._changed = False


class AwaitedPart:
    """What the context of an async handler consists of."""

    _access: Access

    def note_made(self, made: Any, context: FrameType) -> None:
        """Remember what the handler must await, with its line, to name one that it forgets."""
        note = getattr(self._access, "note_made", None)  # the test kit's has none
        if note is not None:
            made.__qualname__ = f"ctx.{context.f_code.co_name}"
            note(made, context.f_back)


class AsyncCheckpoint(AwaitedPart, RunCheckpoint):
    @noted
    async def get(self) -> dict[str, Any] | None:
        if not self._known:
            await self._access.read(self._load)
        return self._value

    async def places(self) -> dict[str, Any]:
        await self.get()
        return self._places

    @noted
    async def commit(self, step: tuple[str, str] | None = None) -> None:
        self._check_outside()
        await self._access.keep(partial(self._keep, step=step))
        self._changed = False


Checkpoint: TypeAlias = PlainCheckpoint | AsyncCheckpoint


def checkpoint_of(run: ActiveRun, access: Access) -> Checkpoint:
    return (AsyncCheckpoint if access.is_async else PlainCheckpoint)(run, access)


log = quiet_logger(__name__)
SLOW_PAGE_S = 1.0  # that a page takes to read, so that its query probably lacks an index
FIRST = 100  # rows of the first page where time sizes pages: nothing is measured yet
NOT_UNIQUE = (
    "The key of ctx.chunks is not unique, so a page that ends between rows with one key would skip "
    "the others. Add columns until it is unique, such as the primary key."
)
NO_KEY = "ctx.chunks would skip rows whose key is NULL. Exclude them, or give them a key."
PAUSED = "Its queue was paused or closed between two pages."


class Chunks:
    """For one ``for`` loop, or ``async for`` in async handlers."""

    def __init__(
        self,
        run: ActiveRun,
        access: Access,
        point: Any,  # a Checkpoint, of the kind that fits the access
        paged: Paged,
        size: int,
        max_ms: float | None,
        name: str,
    ) -> None:
        self._run = run
        self._access = access
        self._point = point
        self._paged = paged
        self._most = size
        self._max_s = None if max_ms is None else max_ms / 1000
        self._size = size if max_ms is None else min(size, FIRST)
        self._name = name
        self._began = 0.0
        self._ask_at = 0.0
        self._last: list[list[Any]] = []
        self._warned = False

    def __iter__(self) -> Iterator[list[Any]]:
        """Go on behind the last commit; each page is committed when the next one is wanted.

        Raises Snooze: the worker stops, or the queue is paused or outside its window. The task goes
        on behind the page, uncharged, as soon as it may; Cancel: its cancellation was requested;
        ValueError: the key is not unique, or null, or a floating point number.
        """
        if self._access.is_async:
            raise TypeError("In async handlers use: async for page in ctx.chunks(...)")
        after = self._saved_place(self._point.places())
        if after is None and self._rows(self._paged.nulls()):
            raise ValueError(NO_KEY)
        more = True
        while more:
            page, more = self._page(self._rows(self._next_query(after)))
            if not page:
                return
            yield page
            after = self._advance()
            self._point.commit()
            self._resize(len(page))
            if (
                more
                and self._must_check_queue()
                and is_queue_stopped(self._access.connection, self._run.task.queue)
            ):
                raise Snooze(0, PAUSED)

    async def __aiter__(self) -> AsyncIterator[list[Any]]:
        if not self._access.is_async:
            raise TypeError("In plain handlers use: for page in ctx.chunks(...)")
        after = self._saved_place(await self._point.places())
        if after is None and await self._arows(self._paged.nulls()):
            raise ValueError(NO_KEY)
        more = True
        while more:
            page, more = self._page(await self._arows(self._next_query(after)))
            if not page:
                return
            yield page
            after = self._advance()
            await self._point.commit()
            self._resize(len(page))
            if more and self._must_check_queue():
                connection = await self._access.session.connection()
                if await connection.run_sync(is_queue_stopped, self._run.task.queue):
                    raise Snooze(0, PAUSED)

    def _saved_place(self, places: Mapping[str, Any]) -> KeysetKey | None:
        place = places.get(self._name)
        return None if place is None else unpack_keyset(place)

    def _next_query(self, after: KeysetKey | None) -> tuple[Any, dict[str, Any]]:
        self._began = time.monotonic()
        return self._paged.page(after, self._size + 1)

    def _rows(self, query: tuple[Any, dict[str, Any]]) -> list[Any]:
        if self._paged.of_entities:
            return list(self._access.session.scalars(*query))
        by = self._access.session if self._paged.of_classes else self._access.connection
        return list(by.execute(*query))

    async def _arows(self, query: tuple[Any, dict[str, Any]]) -> list[Any]:
        session = self._access.session
        return list(await (session.scalars if self._paged.of_entities else session.execute)(*query))

    def _page(self, rows: list[Any]) -> tuple[list[Any], bool]:
        """Return the page, and whether more follow."""
        read_s = time.monotonic() - self._began
        if read_s >= SLOW_PAGE_S and not self._warned:
            self._warned = True
            log.warning(
                "task %s (%s): a page of ctx.chunks took %.1f s to read. Create an index that has "
                "what its WHERE compares, then its key: each page reads by it.",
                *(self._run.task.task_id, self._run.task.name, read_s),
            )
        page, more = rows[: self._size], len(rows) > self._size
        if page:
            self._last = pack_keyset(self._paged.key_of(page[-1]))  # before the handler changes it
        if more and self._last == pack_keyset(self._paged.key_of(rows[self._size])):
            raise ValueError(NOT_UNIQUE)
        return page, more

    def _advance(self) -> KeysetKey:
        self._point.set_place(self._name, self._last)
        return unpack_keyset(self._last)

    def _resize(self, rows: int) -> None:
        """Size the next page by the time of this one, to at most twice as many rows."""
        if self._max_s is not None:
            took_s = max(time.monotonic() - self._began, 1e-6)
            fits = min(rows * self._max_s / took_s, 2 * self._size)
            self._size = max(1, min(self._most, int(fits)))

    def _must_check_queue(self) -> bool:
        """Raise if the run ends here; return whether to read if the queue is paused or closed."""
        if self._run.cancelled:
            raise Cancel("It was cancelled between two pages.")
        if self._run.stops:
            raise Snooze(0, "Its worker stopped between two pages.")
        now = time.monotonic()
        if now < self._ask_at:
            return False
        self._ask_at = now + CHECK_STOPPED_EVERY_S
        return True
