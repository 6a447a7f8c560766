"""Batch jobs with their steps, and groups with their members."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy import Connection, text

from tasks_app.batch.control import get_job, list_jobs
from tasks_app.batch.job import JOBS
from tasks_app.domain.batch.records import Batch, BatchStep, BatchView, Skipped, figures_of
from tasks_app.domain.groups import GroupProgress
from tasks_app.domain.partition.records import Status, StoredPartition
from tasks_app.pool import task_groups
from tasks_app.pool.batch import partition_progress, partitions
from tasks_app.pool.tables import ERROR, PARTITION, database_now
from tasks_app.runtime.api.tasks import masked_errors

MOST_BATCHES, MOST_SKIPPED, MOST_FAILED_PARTS = 100, 50, 50
MOST_MEASURED = 2_000  # partitions; with more, speed and skew are not worked out
MOST_CELLS = 1_000  # of one step


@dataclass(frozen=True, slots=True)
class Cell:
    """Consecutive partitions of a step."""

    low: int  # number of the first
    high: int
    number: int
    completed: int
    failed: int
    running: int
    read: int
    estimated: int | None  # rows that the planner expects; None: it does not know

    @property
    def fraction(self) -> float:
        """The share that is done, 0 to 1."""
        if self.estimated and self.completed < self.number:
            return min(1.0, self.read / self.estimated)
        return self.completed / self.number

    @property
    def kind(self) -> str:
        """The worst that is true of one of them."""
        if self.failed:
            return "bad"
        if self.running:
            return "run"
        return "ok" if self.completed == self.number else "wait"


@dataclass(frozen=True, slots=True)
class Batches:
    at: datetime
    filters: dict[str, str]
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class StepLine:
    step: BatchStep
    after: tuple[str, ...] | None  # steps that it waits for; None: this process lacks the job
    total: int
    completed: int
    failed: int
    running: int
    read: int
    skipped: int
    per_second: float | None  # rows read; None: nothing was, or there are too many partitions
    left: timedelta | None  # how much longer it takes at this speed
    skew: float | None  # the largest partition / the mean; 1: all alike
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class FailedPart:
    step: str
    number: int
    task_id: int | None
    error: str


@dataclass(frozen=True, slots=True)
class BatchPage:
    at: datetime
    batch: Batch
    alive: int  # how many of its tasks wait or run
    lost: bool  # it should run, and none of its tasks is left
    steps: tuple[StepLine, ...]
    failed: tuple[FailedPart, ...]
    skipped: tuple[Skipped, ...]

    @property
    def may_stop(self) -> bool:
        return self.batch.status == "RUNNING" and not self.lost

    @property
    def may_restart(self) -> bool:
        return self.batch.status in ("FAILED", "STOPPED") or self.lost

    @property
    def may_abandon(self) -> bool:
        return self.may_restart


def batches(connection: Connection, filters: dict[str, str]) -> Batches:
    job, status = filters.get("job"), filters.get("status")
    found = list_jobs(connection, job=job, status=status, most=MOST_BATCHES)
    return Batches(database_now(connection), filters, tuple(found))


# Some joins mark failed partitions only when the others have ended: their tasks show it before.
_FAILED = f"""CASE WHEN p.status = '{Status.RUNNING}' AND EXISTS (
    SELECT FROM {ERROR} e WHERE e.id = p.task_id) THEN '{Status.FAILED}' ELSE p.status END"""
_CELLS = text(f"""
    SELECT n.step, min(n.partition_no) AS low, max(n.partition_no) AS high,
        CAST(count(*) AS integer) AS number,
        CAST(count(*) FILTER (WHERE n.status = '{Status.COMPLETED}') AS integer) AS completed,
        CAST(count(*) FILTER (WHERE n.status = '{Status.FAILED}') AS integer) AS failed,
        CAST(count(*) FILTER (WHERE n.status = '{Status.RUNNING}') AS integer) AS running,
        CAST(sum(n.read_rows) AS bigint) AS read, CAST(sum(n.estimated_rows) AS bigint) AS estimated
    FROM (
        SELECT p.step, p.partition_no, {_FAILED} AS status, p.read_rows, p.estimated_rows,
            row_number() OVER (PARTITION BY p.step ORDER BY p.partition_no) - 1 AS place,
            count(*) OVER (PARTITION BY p.step) AS total
        FROM {PARTITION} p WHERE p.batch_id = :batch_id) AS n
    GROUP BY n.step, n.place * {MOST_CELLS} / greatest(n.total, {MOST_CELLS})
    ORDER BY n.step, low
""")


def batch_page(connection: Connection, batch_id: int) -> BatchPage | None:
    view = get_job(connection, batch_id)
    if view is None:
        return None
    total = sum(tally.total for tally in view.tallies.values())
    parts = partitions.find_by_batch(connection, batch_id) if total <= MOST_MEASURED else []
    cells: dict[str, list[Cell]] = {}
    for step, *values in connection.execute(_CELLS, {"batch_id": batch_id}):
        cells.setdefault(step, []).append(Cell(*values))
    failed = [part for part in parts if part.status is Status.FAILED][:MOST_FAILED_PARTS]
    job = JOBS.get(view.batch.job)
    after = job.after if job else {}
    return BatchPage(
        at=database_now(connection),
        batch=view.batch,
        alive=view.alive,
        lost=view.is_lost,
        steps=tuple(
            _line(each, after.get(each.step), view, parts, cells.get(each.step, []))
            for each in view.steps
        ),
        failed=tuple(
            FailedPart(part.step or "", part.partition.number, part.task_id, part.error or "")
            for part in failed
        ),
        skipped=tuple(partition_progress.find_skips(connection, batch_id, most=MOST_SKIPPED)),
    )


def _line(
    step: BatchStep,
    after: tuple[str, ...] | None,
    view: BatchView,
    parts: list[StoredPartition],
    cells: list[Cell],
) -> StepLine:
    tally = view.tallies.get(step.step)
    figures = figures_of([part for part in parts if part.step == step.step], view.at)
    return StepLine(
        step=step,
        after=after,
        total=tally.total if tally else 0,
        completed=tally.completed if tally else 0,
        failed=sum(cell.failed for cell in cells),
        running=sum(cell.running for cell in cells),
        read=tally.counts.read if tally else 0,
        skipped=tally.counts.skipped if tally else 0,
        per_second=figures.per_second,
        left=None if step.ended_at else figures.left,
        skew=figures.skew,
        cells=tuple(cells),
    )


MOST_GROUPS, MOST_MEMBERS, MOST_FAILED_MEMBERS = 100, 2_000, 50


@dataclass(frozen=True, slots=True)
class Groups:
    at: datetime
    only_open: bool
    groups: tuple[GroupProgress, ...]


@dataclass(frozen=True, slots=True)
class FailedMember:
    id: int
    state: str
    error: str


@dataclass(frozen=True, slots=True)
class GroupPage:
    at: datetime
    group: GroupProgress
    states: dict[str, int]  # of the first members, at most MOST_MEMBERS
    counted: int  # how many members ``states`` is of
    failed: tuple[FailedMember, ...]


def groups(connection: Connection, *, only_open: bool) -> Groups:
    found = task_groups.newest_groups(connection, MOST_GROUPS, only_open=only_open)
    return Groups(database_now(connection), only_open, tuple(found))


def group_page(connection: Connection, group_id: int) -> GroupPage | None:
    group = task_groups.get_group(connection, group_id)
    if group is None:
        return None
    states: Counter[str] = Counter()
    failed: list[FailedMember] = []
    for ended in islice(task_groups.member_results(connection, group), MOST_MEMBERS):
        states[str(ended.state)] += 1
        if ended.error is not None and len(failed) < MOST_FAILED_MEMBERS:
            failed.append(FailedMember(ended.task_id, str(ended.state), ended.error))
    at = database_now(connection)
    shown = masked_errors(connection, failed)
    return GroupPage(at, group, dict(states), states.total(), tuple(shown))
