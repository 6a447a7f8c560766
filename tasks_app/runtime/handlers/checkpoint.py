"""Checkpoints of a run, and loops over a long SELECT that save one after each page."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection

from tasks_app.domain.errors import InvalidTaskError, LeaseLostError
from tasks_app.domain.handlers.outcomes import Cancel, Snooze
from tasks_app.domain.partition.keys import KeysetKey, pack_keyset, unpack_keyset
from tasks_app.domain.tasks.payload import encode_object
from tasks_app.pool.fragments.conditions import LOOK_EVERY_S, stands_still
from tasks_app.pool.tasks.paging import Paged
from tasks_app.pool.tasks.run_records import (
    Note,
    read_checkpoint,
    save_checkpoint,
    write_sub_status,
)
from tasks_app.runtime.db.connections import noted
from tasks_app.runtime.db.transaction import Access
from tasks_app.runtime.handlers.active_run import ActiveRun

if TYPE_CHECKING:
    from tasks_app.runtime.handlers.active_run import ActiveRun


LIMIT = 64 * 1024
"""Bytes of one checkpoint, which is written with each commit."""
PLACES = "ctx.chunks"
"""The key of a checkpoint under which it holds the places of loops over chunks."""


class CheckpointPoint:
    """What one run knows of its checkpoint."""

    def __init__(self, run: ActiveRun, access: Access) -> None:
        self._run = run
        self._access = access
        self._value: dict[str, Any] | None = None
        self._places: dict[str, Any] = {}
        self._known = run.task.fence.attempt == 1  # no attempt before could leave one
        self._changed = False

    def set(self, value: Mapping[str, Any] | None) -> None:
        """Check it, and keep it for the next commit.

        Raises:
            InvalidTaskError: it cannot be stored.
        """
        if value is not None:
            encode_object(value, "checkpoint", LIMIT)
            if PLACES in value:
                raise InvalidTaskError(f"checkpoint.{PLACES}", "is ours", "any other name")
        self._value = None if value is None else dict(value)
        self._changed = True

    def go_on_behind(self, name: str, place: list[list[Any]]) -> None:
        """Set where a loop, which has read the places, goes on after the next commit."""
        self._places[name] = place
        self._changed = True

    def _learn(self, connection: Connection) -> None:
        """Read what an earlier attempt left; a value that was set meanwhile stays."""
        found = read_checkpoint(connection, self._run.task.task_id)
        kept = dict(found.checkpoint or {}) if found else {}
        self._places, self._known = kept.pop(PLACES, {}), True
        if not self._changed:
            self._value = kept or None

    def _keep(self, connection: Connection) -> None:
        if self._changed and not self._known:
            self._learn(connection)
        task, progress = self._run.task, self._run.progress
        note = Note(
            self._text() if self._changed else None, self._changed, *(progress or (None, None))
        )
        cancelled = save_checkpoint(connection, task.fence, note)
        if cancelled is None:
            raise LeaseLostError(task.task_id)
        if self._run.sub_status is not None:
            write_sub_status(connection, task.fence, self._run.sub_status)
        self._run.cancelled = self._run.cancelled or cancelled

    def _text(self) -> str | None:
        if self._value is None and not self._places:
            return None
        places = {PLACES: self._places} if self._places else {}
        return encode_object({**(self._value or {}), **places}, "checkpoint", 2 * LIMIT)


class PlainPoint(CheckpointPoint):
    """For plain handlers."""

    def get(self) -> dict[str, Any] | None:
        if not self._known:
            self._learn(self._access.connection)
        return self._value

    def places(self) -> dict[str, Any]:
        self.get()
        return self._places

    def commit(self) -> None:
        self._access.keep(self._keep)
        self._changed = False


class AsyncPoint(CheckpointPoint):
    """For async handlers."""

    def note_made(self, made: Any, context: FrameType) -> None:
        """Note, with the handler's line, what its context gave it to be awaited."""
        note = getattr(self._access, "note_made", None)  # the test kit's has none
        if note is not None:
            made.__qualname__ = f"ctx.{context.f_code.co_name}"
            note(made, context.f_back)

    @noted
    async def get(self) -> dict[str, Any] | None:
        if not self._known:
            connection = await self._access.session.connection()
            await connection.run_sync(self._learn)
        return self._value

    async def places(self) -> dict[str, Any]:
        await self.get()
        return self._places

    @noted
    async def commit(self) -> None:
        await self._access.keep(self._keep)
        self._changed = False


Checkpoint: TypeAlias = PlainPoint | AsyncPoint


def point_of(run: ActiveRun, access: Access) -> Checkpoint:
    return (AsyncPoint if access.is_async else PlainPoint)(run, access)


FIRST = 100
"""Rows of the first page if pages are sized by time, which is not known yet."""
NOT_UNIQUE = (
    "The key of ctx.chunks is not unique: rows with the same one would be left out at a page's "
    "end. Add columns until it is, such as the primary key."
)
NO_KEY = "Rows have no key (NULL), so ctx.chunks would leave them out. Exclude them, or add a key."


class Chunks:
    """For one ``for`` loop, or ``async for`` in async handlers."""

    def __init__(
        self,
        run: ActiveRun,
        access: Access,
        point: Any,  # a Checkpoint of the kind that is asked below
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

    def __iter__(self) -> Iterator[list[Any]]:
        """Go on behind what was committed last; each page is committed when the next is wanted.

        Raises:
            Snooze: the worker stops, or the queue is paused or outside its window. The task goes on
                behind the page, uncharged, as soon as it may.
            Cancel: its cancellation was requested.
            ValueError: the key is not unique, or null, or a floating point number.
        """
        if self._access.is_async:
            raise TypeError("In async handlers use: async for page in ctx.chunks(...)")
        after = self._opened(self._point.places())
        more = not (after is None and self._rows(self._paged.nulls()))
        if not more:
            raise ValueError(NO_KEY)
        while more:
            page, more = self._page(self._rows(self._next(after)))
            if not page:
                return
            yield page
            after = self._leave()
            self._point.commit()
            self._learn(len(page))
            if self._may_go_on(more=more) and self._asks():
                self._end_if(stands_still(self._access.connection, self._run.task.queue))

    async def __aiter__(self) -> AsyncIterator[list[Any]]:
        """Do the same in an async handler."""
        if not self._access.is_async:
            raise TypeError("In plain handlers use: for page in ctx.chunks(...)")
        after = self._opened(await self._point.places())
        more = not (after is None and await self._arows(self._paged.nulls()))
        if not more:
            raise ValueError(NO_KEY)
        while more:
            page, more = self._page(await self._arows(self._next(after)))
            if not page:
                return
            yield page
            after = self._leave()
            await self._point.commit()
            self._learn(len(page))
            if self._may_go_on(more=more) and self._asks():
                connection = await self._access.session.connection()
                self._end_if(await connection.run_sync(stands_still, self._run.task.queue))

    def _opened(self, places: Mapping[str, Any]) -> KeysetKey | None:
        place = places.get(self._name)
        return None if place is None else unpack_keyset(place)

    def _next(self, after: KeysetKey | None) -> tuple[Any, dict[str, Any]]:
        self._began = time.monotonic()
        return self._paged.page(after, self._size + 1)

    def _rows(self, asked: tuple[Any, dict[str, Any]]) -> list[Any]:
        if self._paged.of_entities:
            return list(self._access.session.scalars(*asked))
        by = self._access.session if self._paged.of_classes else self._access.connection
        return list(by.execute(*asked))

    async def _arows(self, asked: tuple[Any, dict[str, Any]]) -> list[Any]:
        session = self._access.session
        if self._paged.of_entities:
            return list(await session.scalars(*asked))
        return list(await session.execute(*asked))

    def _page(self, rows: list[Any]) -> tuple[list[Any], bool]:
        """Return the page, and whether there is more behind it."""
        page, more = rows[: self._size], len(rows) > self._size
        if page:
            self._last = pack_keyset(self._paged.key_of(page[-1]))  # before the handler changes it
        if more and self._last == pack_keyset(self._paged.key_of(rows[self._size])):
            raise ValueError(NOT_UNIQUE)
        return page, more

    def _leave(self) -> KeysetKey:
        self._point.go_on_behind(self._name, self._last)
        return unpack_keyset(self._last)

    def _learn(self, rows: int) -> None:
        """Size the next page by the time of this one, to at most twice as many rows."""
        if self._max_s is not None:
            took = max(time.monotonic() - self._began, 1e-6)
            fits = min(rows * self._max_s / took, 2 * self._size)
            self._size = max(1, min(self._most, int(fits)))

    def _may_go_on(self, *, more: bool) -> bool:
        """End here if that is wanted; a loop without more pages may end well all the same."""
        if not more:
            return False
        if self._run.cancelled:
            raise Cancel("It was cancelled between two pages.")
        if self._run.stops:
            raise Snooze(0, "Its worker stopped between two pages.")
        return True

    def _asks(self) -> bool:
        """Whether it is time to ask whether the queue is paused or outside its windows."""
        now = time.monotonic()
        if now < self._ask_at:
            return False
        self._ask_at = now + LOOK_EVERY_S
        return True

    @staticmethod
    def _end_if(still: bool) -> None:  # noqa: FBT001  the answer that was asked for
        if still:
            raise Snooze(0, "Its queue stood still between two pages.")
