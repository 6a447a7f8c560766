"""Chunks: a loop over a long SELECT, whose pages are committed each with its place."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tasks_app.domain.handlers.outcomes import Cancel, Snooze
from tasks_app.domain.partition.keyset import Key, pack, unpack
from tasks_app.pool.fragments.conditions import LOOK_EVERY_S
from tasks_app.pool.fragments.conditions import stands_still
from tasks_app.pool.tasks.paging import Paged
from tasks_app.runtime.db.transaction import Access

if TYPE_CHECKING:
    from tasks_app.runtime.handlers.active_run import ActiveRun

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

    def _opened(self, places: Mapping[str, Any]) -> Key | None:
        place = places.get(self._name)
        return None if place is None else unpack(place)

    def _next(self, after: Key | None) -> tuple[Any, dict[str, Any]]:
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
            self._last = pack(self._paged.key_of(page[-1]))  # before the handler changes it
        if more and self._last == pack(self._paged.key_of(rows[self._size])):
            raise ValueError(NOT_UNIQUE)
        return page, more

    def _leave(self) -> Key:
        self._point.go_on_behind(self._name, self._last)
        return unpack(self._last)

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
