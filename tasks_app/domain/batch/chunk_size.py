"""How many rows the next chunk may have, so that none takes longer than it may."""

from __future__ import annotations

from tasks_app.domain.batch.policies import CommitEvery

FIRST = 100
"""Rows of the first chunk: nobody knows yet what a row costs."""
GROWTH = 4
MARGIN = 0.8
"""Of the time that a chunk may take: rows are not all alike."""
WORTH_S = 4.0
"""What takes no longer is not divided: another has to be told, and begins with small chunks."""
WORTH_CHUNKS = 4
"""Nor is what is so few chunks."""


class ChunkPace:
    """The size of chunks of one run, learned from those before."""

    def __init__(self, bounds: CommitEvery) -> None:
        self._most = bounds.rows
        self._span_s = bounds.span.total_seconds()
        self.size = min(FIRST, self._most)
        self._row_s = 0.0

    def learn(self, rows: int, took_s: float) -> None:
        """Set the size by what a chunk took; it grows four times at most, and shrinks at once."""
        if rows < 1:
            return
        self._row_s = max(took_s / rows, 1e-9)
        fitting = int(self._span_s * MARGIN / self._row_s)
        self.size = max(1, min(self._most, self.size * GROWTH, fitting))

    def is_worth_dividing(self, rows: int) -> bool:
        """Whether so many rows, at the speed of the last chunk, are work for two."""
        return rows >= WORTH_CHUNKS * self.size and rows * self._row_s >= WORTH_S
