"""Bucket columns: added, dropped, and given another modulus while the table is in use.

``rebalance`` computes a column again in the caller's transaction and locks the table meanwhile;
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
from tasks_app.pool.batch.sources.buckets import BucketColumn, add_bucket, drop_bucket, rebalance

__all__ = ["BucketColumn", "add_bucket", "drop_bucket", "rebalance", "rebalance_online"]

# Blocks of a commit, and how long it may hold the locks of its rows.
EACH = CommitEvery(10_000, timedelta(milliseconds=500))


def rebalance_online(
    engine: Engine,
    new: BucketColumn,
    on_commit: Callable[[int], None] = lambda _: None,
    each: CommitEvery = EACH,
) -> int:
    """Give a bucket column another modulus; return how many rows were written.

    After an interruption the next call continues. The last step locks the table for a moment; until
    then the old column stays as it was. ``on_commit`` gets the rows written so far. Raises
    PlanError if there is no such column, or an unfinished instance reads by it.
    """
    with engine.begin() as connection:
        _refuse_readers(connection, new)
        buckets.begin_rebucket(connection, new)
    written = 0
    while True:
        before = -1
        while before < written:  # rows that were changed meanwhile lie in other blocks
            before, pace, first = written, ChunkPace(each), 0
            with engine.begin() as connection:
                blocks = buckets.count_blocks(connection, new)
            while first < blocks:
                began, number = time.monotonic(), pace.size
                with engine.begin() as connection:
                    written += buckets.fill_blocks(connection, new, first, number)
                first += number
                pace.learn(number, time.monotonic() - began)
                on_commit(written)
        with engine.connect() as connection:
            autocommit = connection.execution_options(isolation_level="AUTOCOMMIT")
            buckets.build_bucket_index(autocommit, new)
            connection.invalidate()
        with engine.begin() as connection:
            buckets.lock_table(connection, new)
            _refuse_readers(connection, new)
            if buckets.replace_column(connection, new):
                return written


def _refuse_readers(connection: Connection, new: BucketColumn) -> None:
    """Refuse while a step may read the table by this column; one of an unknown job may."""
    found = []
    for reader in buckets.find_bucket_readers(connection, new.column):
        job = JOBS.get(reader.job)
        step = None if job is None else job.steps.get(reader.step)
        source = step.source_of(job.given(reader.params)) if job and step else new.table
        if isinstance(source, Table) and source.name == new.table.name:
            found.append(f"{reader.batch_id} ({reader.job}, {reader.step})")
    if found:
        raise PlanError(
            f"Unfinished batches read {new.table} by {new.column}: {', '.join(found[:5])}. Wait "
            "until they end, or abandon them: another modulus would move rows under them."
        )
