"""How many rows the next chunk may have, so that none takes longer than it may."""

from __future__ import annotations

from tasks_app.domain.batch.policies import CommitEvery

FIRST = 100
"""Rows of the first chunk: nobody knows yet what a row costs."""
GROWTH = 4
MARGIN = 0.8
"""Of the time that a chunk may take: rows are not all alike."""


class ChunkPace:
    """The size of chunks of one run, learned from those before."""

    def __init__(self, bounds: CommitEvery) -> None:
        self._most = bounds.rows
        self._span_s = bounds.span.total_seconds()
        self.size = min(FIRST, self._most)

    def learn(self, rows: int, took_s: float) -> None:
        """Set the size by what a chunk took; it grows four times at most, and shrinks at once."""
        if rows < 1:
            return
        fitting = int(self._span_s * MARGIN / max(took_s / rows, 1e-9))
        self.size = max(1, min(self._most, self.size * GROWTH, fitting))
