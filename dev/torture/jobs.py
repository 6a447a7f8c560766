"""A batch job and groups that run during the faults: each row once, each callback once."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, text

from dev.torture.verdict import Check
from tasks_app import BatchJob, NewTask, Step, Table, create_group, restart_job, start_job
from tasks_app.batch.planners.even import Even

ROWS, PARTS = 5_000, 6
GROUPS, MEMBERS = 20, 10
AGAIN = ("retry_partition", 100)
_BOOK = text("INSERT INTO booked SELECT unnest(CAST(:ids AS bigint[]))")
_CLOSE = text("INSERT INTO booked VALUES (0)")
# A group that failed, and was mended, has called twice.
_CALLED = text("""
    INSERT INTO committed SELECT a.id FROM task_all a
    WHERE jsonb_exists(a.headers, 'group_id') AND a.biz_key IS NULL ON CONFLICT DO NOTHING
""")
_MEMBERS = text("INSERT INTO committed SELECT unnest(CAST(:ids AS bigint[]))")
_STOPPED = text("SELECT id FROM task_batch WHERE status IN ('STOPPED', 'FAILED')")
_GOES_ON = text("SELECT count(*) FROM task_batch WHERE status <> 'COMPLETED'")
_FACTS = text("""
    SELECT
        (SELECT count(*) FROM booked WHERE id > 0) AS booked,
        (SELECT count(DISTINCT id) FROM booked WHERE id > 0) AS rows,
        (SELECT count(*) FROM booked WHERE id = 0) AS closed,
        (SELECT string_agg(status, ', ') FROM task_batch) AS status,
        (SELECT result FROM task_batch_step WHERE step = 'book') AS reduced,
        (SELECT CAST(sum(read_rows) AS bigint) FROM task_partition WHERE step = 'book') AS read,
        (SELECT CAST(sum(written_rows) AS bigint) FROM task_partition WHERE step = 'book')
            AS written,
        (SELECT count(*) FROM task_group g WHERE g.outcome IS NULL) AS open,
        (SELECT count(*) FROM task_group g JOIN task_all a ON a.id = g.callback_id
            WHERE a.biz_key IS NULL) AS called,
        (SELECT count(*) FROM task_group g JOIN task_all a ON a.id = g.callback_id
            WHERE a.biz_key IS NULL AND g.succeeded + g.failed = g.total) AS counted
""")


def book(ctx: Any, rows: Sequence[Any]) -> None:
    """Write each row down, with time to be killed before and after it."""
    time.sleep(random.uniform(0, 0.1))
    ctx.connection.execute(_BOOK, {"ids": [row.id for row in rows]})
    time.sleep(random.uniform(0, 0.1))


def add_up(_ctx: Any, parts: Iterator[Any]) -> int:
    """Return how many rows the partitions say that they wrote."""
    return sum(part.counts.written for part in parts)


def close(ctx: Any, _rows: Sequence[Any]) -> None:
    """Write down that all is booked."""
    ctx.connection.execute(_CLOSE)


OFTEN: dict[str, Any] = {
    "retry": "fixed 100ms",
    "max_attempts": 50,
    "priority": 1,  # at work while it hurts
    "turn": "1s",  # and not alone
}
JOB = BatchJob(
    "torture",
    [
        Step(
            *("book", Table("ledger")),
            **OFTEN,
            chunk=book,
            planner=Even(PARTS),
            commit_every=50,
            on_abort=AGAIN,
            reduce=add_up,
        ),
        Step("close", None, **OFTEN, chunk=close, on_abort=AGAIN),
    ],
)


def begin(connection: Connection) -> None:
    """Make the table, start the job, and create the groups, with the tasks of producers."""
    connection.execute(text("CREATE TABLE booked (id bigint)"))
    connection.execute(
        text(f"CREATE TABLE ledger AS SELECT i AS id FROM generate_series(1, {ROWS}) i")
    )
    connection.execute(text("ALTER TABLE ledger ADD PRIMARY KEY (id)"))
    start_job(connection, JOB)
    call = NewTask("torture.quick")
    for _ in range(GROUPS):
        members = [NewTask("torture.steady")] * MEMBERS
        made = create_group(connection, members, then=call, on_failure=call)
        connection.execute(_MEMBERS, {"ids": [int(i) for i in made.task_ids]})


def note_callbacks(connection: Connection) -> None:
    """Write callbacks down with what producers committed: each has an effect to show."""
    connection.execute(_CALLED)


def go_on(connection: Connection, *, restart: bool) -> int:
    """Return how many instances are not complete; ``restart``: those that somebody cancelled."""
    for batch_id in connection.execute(_STOPPED).scalars().all() if restart else ():
        restart_job(connection, batch_id)
    return int(connection.execute(_GOES_ON).scalar_one())


def judge_jobs(connection: Connection, *, cancels: bool) -> list[Check]:
    """Compare what was booked with the table, and calls with groups.

    ``cancels``: members of groups that were over were wanted back, so counts may differ.
    """
    f = connection.execute(_FACTS).one()
    return [
        Check("each row of the job was booked", f.rows == ROWS, f.rows),
        Check("and once", f.booked == ROWS, f.booked),
        Check("its partitions read as many", f.read == ROWS, f.read),
        Check("and say that they wrote as many", f.written == f.reduced == ROWS, f.reduced),
        Check("its last step was done once", f.closed == 1, f.closed),
        Check("its instance is complete", f.status == "COMPLETED", f.status),
        Check("no group is left open", f.open == 0, f.open),
        Check("each group called, once", f.called == GROUPS, f.called),
        Check("and counted all members", f.counted == GROUPS or cancels, f.counted),
    ]
