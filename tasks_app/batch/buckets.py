"""Bucket columns: made, dropped, and given another modulus while the table is in use.

``rebalance`` computes a column anew in the caller's transaction and locks the table meanwhile;
``rebalance_online`` does it in small commits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import Connection, Engine

from tasks_app.batch.job import JOBS
from tasks_app.domain.batch.policies import ChunkPace, CommitEvery
from tasks_app.domain.errors import PlanError
from tasks_app.domain.partition.records import Table
from tasks_app.pool.batch.sources import buckets
from tasks_app.pool.batch.sources.buckets import (
    BucketColumn,
    BucketReader,
    add_bucket,
    drop_bucket,
    rebalance,
)

__all__ = ["BucketColumn", "add_bucket", "drop_bucket", "rebalance", "rebalance_online"]

EACH = CommitEvery(10_000, timedelta(milliseconds=500))
"""Blocks of a commit, and how long it may hold the locks of its rows."""


def rebalance_online(
    engine: Engine,
    new: BucketColumn,
    told: Callable[[int], None] = lambda _: None,
    each: CommitEvery = EACH,
) -> int:
    """Give a bucket column another modulus; return how many rows were written.

    After an interruption the next call goes on where this one was. The last step locks the table
    for a moment; until then the old column stays as it was. ``told`` is called with the rows so far
    after each commit. Raises PlanError if an instance that is not complete reads by the column, or
    there is no such.
    """
    with engine.begin() as connection:
        _refuse_readers(connection, new)
        buckets.begin_rebucket(connection, new)
    written = 0
    while True:
        while passed := _fill(engine, new, each, told, written):
            written += passed  # rows that were changed meanwhile lie elsewhere
        with engine.connect() as connection:
            buckets.build_bucket_index(
                connection.execution_options(isolation_level="AUTOCOMMIT"), new
            )
            connection.invalidate()
        with engine.begin() as connection:
            buckets.lock_table(connection, new)
            _refuse_readers(connection, new)
            if buckets.replace_column(connection, new):
                return written


def _fill(
    engine: Engine, new: BucketColumn, each: CommitEvery, told: Callable[[int], None], before: int
) -> int:
    """Go through the table once; return how many rows had no bucket."""
    pace, first, written = ChunkPace(each), 0, 0
    with engine.begin() as connection:
        blocks = buckets.count_blocks(connection, new)
    while first < blocks:
        began, number = time.monotonic(), pace.size
        with engine.begin() as connection:
            written += buckets.fill_blocks(connection, new, first, number)
        first += number
        pace.learn(number, time.monotonic() - began)
        told(before + written)
    return written


def _refuse_readers(connection: Connection, new: BucketColumn) -> None:
    found = [
        each
        for each in buckets.find_bucket_readers(connection, new.column)
        if _reads(each, new.table)
    ]
    if found:
        named = ", ".join(f"{each.batch_id} ({each.job}, {each.step})" for each in found[:5])
        raise PlanError(
            f"Batches read {new.table} by {new.column} and are not complete: {named}. Let them "
            "come to their end, or abandon them; another modulus would move rows under them."
        )


def _reads(reader: BucketReader, table: Table) -> bool:
    """Whether a step may read this table; a job that this process does not know may."""
    job = JOBS.get(reader.job)
    step = None if job is None else job.steps.get(reader.step)
    if job is None or step is None:
        return True
    source = step.source_of(job.given(reader.params))
    return isinstance(source, Table) and source.name == table.name
