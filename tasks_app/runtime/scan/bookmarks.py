"""Bookmarks: how far the due rows of each queue are in messages, so that nobody reads them again.

A pass that only fills up goes on from there. Rows that came in before the bookmark meanwhile are
found by the next whole pass, which begins at the front. Each priority has a bookmark of its own:
what is more urgent is found by every pass.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from tasks_app.pool.dispatch.scan import Due
from tasks_app.pool.fragments.scan_position import Place


class QueuePositions:
    """The places of one dispatcher."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], Place] = {}

    @property
    def places(self) -> Mapping[tuple[str, int], Place]:
        """Where to go on, by queue and priority; none: at the front."""
        return self._places

    def cover(self, queue: str) -> bool:
        """Whether what is out of this queue lies before its bookmarks."""
        return any((queue, priority) in self._places for priority in range(10))

    def forget(self) -> None:
        """Begin at the front again."""
        self._places = {}

    def move(self, found: Due, last_id: int) -> None:
        """Remember that all rows up to this one need not be read again for now."""
        number = found.ids.index(last_id) + 1
        at = 0
        while at < number:  # the last row of each priority among them
            priority = found.priorities[at]
            at = bisect_right(found.priorities, priority, at, number)
            self._places[found.queue, priority] = (found.scan_at[at - 1], found.ids[at - 1])
