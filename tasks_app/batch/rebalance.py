"""Rebalance: a bucket column gets another modulus in small commits, while the table is in use."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Connection, Engine

from tasks_app.batch.job import JOBS
from tasks_app.domain.batch.chunk_size import ChunkPace
from tasks_app.domain.batch.policies import CommitEvery
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.sources import Table
from tasks_app.pool.batch import rebucket
from tasks_app.pool.batch.rebucket import Bucket, Reader

EACH = CommitEvery(10_000, timedelta(milliseconds=500))
"""Blocks of a batch, and how long it may hold the locks of its rows."""


def rebalance(engine: Engine, new: Bucket, told: Callable[[int], None] = lambda _: None) -> int:
    """Let a bucket column be by another modulus; return how many rows were written.

    Interrupted, it goes on where it was when it is called again. The last step locks the table for
    a moment; until then the old column is there as it was. ``told`` hears of the rows so far.

    Raises:
        PlanError: an instance that is not complete reads by the column, or there is no such.
    """
    with engine.begin() as connection:
        _refuse_readers(connection, new)
        rebucket.begin(connection, new)
    written = 0
    while True:
        while passed := _fill(engine, new, written, told):
            written += passed  # rows that were changed meanwhile lie elsewhere
        with engine.connect() as connection:
            rebucket.index(connection.execution_options(isolation_level="AUTOCOMMIT"), new)
            connection.invalidate()
        with engine.begin() as connection:
            rebucket.lock(connection, new)
            _refuse_readers(connection, new)
            if rebucket.switch(connection, new):
                return written


def _fill(engine: Engine, new: Bucket, before: int, told: Callable[[int], None]) -> int:
    """Go through the table once; return how many rows had no bucket."""
    pace, first, written = ChunkPace(EACH), 0, 0
    with engine.begin() as connection:
        blocks = rebucket.blocks(connection, new)
    while first < blocks:
        began, number = time.monotonic(), pace.size
        with engine.begin() as connection:
            written += rebucket.fill(connection, new, first, number)
        first += number
        pace.learn(number, time.monotonic() - began)
        told(before + written)
    return written


def _refuse_readers(connection: Connection, new: Bucket) -> None:
    found = [each for each in rebucket.readers(connection, new.column) if _reads(each, new.table)]
    if found:
        named = ", ".join(f"{each.batch_id} ({each.job}, {each.step})" for each in found[:5])
        raise PlanError(
            f"Batches read {new.table} by {new.column} and are not complete: {named}. Let them "
            "come to their end, or abandon them; another modulus would move rows under them."
        )


def _reads(reader: Reader, table: Table) -> bool:
    """Whether a step may read this table: what nobody here knows might."""
    job = JOBS.get(reader.job)
    step = None if job is None else job.steps.get(reader.step)
    if job is None or step is None:
        return True
    source = step.source_of(job.given(reader.params))
    return isinstance(source, Table) and source.name == table.name
