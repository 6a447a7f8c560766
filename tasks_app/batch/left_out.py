"""Left out: the rows that a run of a partition could not do, within the limit of its step."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from tasks_app.batch.chunk_context import ChunkContext
from tasks_app.batch.step import Step
from tasks_app.domain.errors import ChunkRowError
from tasks_app.pool.batch import skips


class LeftOut:
    """Of one run. Other runs of the step leave out rows at the same time."""

    def __init__(self, step: Step, ctx: ChunkContext) -> None:
        self._step = step
        self._ctx = ctx
        self._newest = ("", "")

    def so_far(self, connection: Connection) -> int:
        """Return how many rows of the step are left out, as far as this transaction sees."""
        if not self._step.skip_limit:
            return 0
        return skips.count(connection, self._ctx.batch_id, self._step.name)

    def add(self, connection: Connection, rows: Sequence[tuple[str, str]]) -> None:
        """Write down keys with their reasons."""
        ctx = self._ctx
        skips.add(connection, ctx.batch_id, self._step.name, ctx.partition_no, rows)
        self._newest = rows[-1]
        ctx.log.warning("left out %d rows", len(rows))

    def check(self, connection: Connection) -> None:
        """Pass if all fits into the limit, and let nobody else add to it until the commit.

        Raises:
            ChunkRowError: others, who have committed meanwhile, took the room.
        """
        left_out = skips.count_alone(connection, self._ctx.batch_id, self._step.name)
        if left_out > self._step.skip_limit:
            raise self.one_too_many(*self._newest)

    def one_too_many(self, name: str, why: str) -> ChunkRowError:
        """Return the error of a row that may not be left out."""
        return ChunkRowError(name, self._ctx.partition_no, why, self._step.skip_limit)
