"""The handlers of a step: what its tasks do. Each step has its own names, so limits can name it.

Tasks carry the id and the run of their instance; a task of an earlier run changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.execution.chunk_context import ChunkContext
from tasks_app.batch.execution.partition_run import PartitionRun, status_after
from tasks_app.batch.execution.stealing import Stealing
from tasks_app.batch.progress import JobProgress
from tasks_app.batch.split import split
from tasks_app.batch.step import Declared, Job, Step, StepHandlers
from tasks_app.domain.batch.decisions import Move
from tasks_app.domain.batch.records import Batch, BatchStatus, StepStatus
from tasks_app.domain.errors import PlanError
from tasks_app.domain.handlers.outcomes import Cancel, Skip
from tasks_app.domain.partition.records import Plan, Status
from tasks_app.pool.batch import instances, partition_progress, partition_runs, partitions, steps
from tasks_app.pool.batch.partition_progress import Word
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.registry import Registry, handler

CONTROL_RETRY = "1s,5s,30s,1m,5m"
"""Waits between attempts of a join: short, as only the database can make it fail."""


def declare(job: Job, step: Step, registry: Registry) -> StepHandlers:
    """Enter the handlers of a step.

    Raises:
        HandlerError: they cannot work.
    """
    name, queue = f"{job.name}:{step.name}", step.options["queue"]

    def enter(word: str, work: Callable[..., Any], **options: Any) -> Declared:
        def run(ctx: TaskContext, payload: dict[str, Any]) -> Any:
            return work(job, step, ctx, payload)

        return handler(name + word, registry=registry, **options)(run)

    own = {**step.options, "depends_on": step.depends_on}
    return StepHandlers(
        partition=enter("", run_partition, **own),
        plan=enter(":plan", run_plan, queue=queue, hard_timeout=step.options["hard_timeout"]),
        join=enter(":join", run_join, queue=queue, retry=CONTROL_RETRY),
        reduce=enter(":reduce", run_reduce, **step.options) if step.reduce else None,
        compensate=enter(":compensate", run_compensate, **step.options)
        if step.compensate
        else None,
    )


def run_partition(
    job: Job, step: Step, ctx: TaskContext, payload: dict[str, Any]
) -> dict[str, Any]:
    connection = ctx.connection
    word = partition_progress.start(connection, payload["partition"], ctx.fence)
    stored = partitions.one(connection, payload["partition"])
    batch = instances.get(connection, payload["batch"])
    if word is None or stored is None or batch is None:
        raise Skip("another task has the partition, or it, or its step, is done with")
    if word is not Word.GO_ON:
        partition_progress.end(connection, stored.id, ctx.fence, status_after(word))
        ctx.commit()
        raise Cancel("its instance was stopped, or the step is done without it")
    params = job.given(batch.params)
    state = (stored.checkpoint or {}).get("state")
    chunk_ctx = ChunkContext(ctx, batch, step.name, params, stored.partition, state)
    stealing = Stealing(job, step, params) if step.steal else None
    run = PartitionRun(ctx, step, chunk_ctx, stored, stealing, job.tuning)
    ctx.commit()  # so that nobody waits for its row
    return run.run()


def run_plan(job: Job, step: Step, ctx: TaskContext, payload: dict[str, Any]) -> Any:
    """Split the source unless it is split already, and start what is not done, in one commit.

    The source is read before the instance is locked, as that may take long.
    """
    connection = ctx.session.connection()
    seen = _mine(connection, instances.get, payload, StepStatus.PLANNING)
    there = partition_runs.tallies(connection, seen.id).get(step.name)
    made: Plan | PlanError | None = None
    if there is None:
        try:
            with ctx.session.begin_nested():
                made = split(ctx.session.connection(), step, job.given(seen.params))
        except PlanError as error:
            made = error
    connection = ctx.session.connection()
    locked = _mine(connection, instances.lock, payload, StepStatus.PLANNING)
    progress = JobProgress(job, ctx.session, locked)
    if there is not None and "divide" in payload:
        try:
            with ctx.session.begin_nested():
                progress.divide(step, payload["divide"])
        except PlanError as error:
            made = error
    if isinstance(made, PlanError):
        progress.carry_out(step, Move.FAIL, error=str(made))
        return {"refused": str(made)}
    if made is not None:
        progress.enter(step, made)
    return progress.launch(step)


def run_join(job: Job, step: Step, ctx: TaskContext, payload: dict[str, Any]) -> Any:
    batch = _mine(ctx.session.connection(), instances.lock, payload)
    return {"move": JobProgress(job, ctx.session, batch).follow(step)}


def run_reduce(job: Job, step: Step, ctx: TaskContext, payload: dict[str, Any]) -> Any:
    """Merge what the partitions left, and complete the step in the same commit."""
    assert step.reduce is not None  # noqa: S101  or it would not have been declared
    connection = ctx.session.connection()
    batch = _mine(connection, instances.get, payload, StepStatus.REDUCING)
    reduce_ctx = ChunkContext(ctx, batch, step.name, job.given(batch.params))
    parts = partition_runs.results(connection, batch.id, step.name, Status.COMPLETED)
    result = step.reduce(reduce_ctx, parts)
    ctx.session.flush()
    connection = ctx.session.connection()
    locked = _mine(connection, instances.lock, payload, StepStatus.REDUCING)
    JobProgress(job, ctx.session, locked).carry_out(step, Move.COMPLETE, result=result)
    return result


def run_compensate(job: Job, step: Step, ctx: TaskContext, payload: dict[str, Any]) -> None:
    """Undo what a failed partition had committed, and reset the partition in the same commit."""
    assert step.compensate is not None  # noqa: S101  or it would not have been declared
    connection = ctx.session.connection()
    batch = _mine(connection, instances.get, payload, StepStatus.COMPENSATING)
    stored = partitions.one(connection, payload["partition"])
    if stored is None or stored.status is not Status.FAILED:
        raise Skip("the partition is not failed")
    state = (stored.checkpoint or {}).get("state")
    params = job.given(batch.params)
    step.compensate(ChunkContext(ctx, batch, step.name, params, stored.partition, state))
    ctx.session.flush()
    if not partition_runs.undo(ctx.session.connection(), stored.id):
        raise Skip("the partition was started again meanwhile")


def _mine(
    connection: Connection,
    look: Callable[[Connection, int], Batch | None],
    payload: dict[str, Any],
    status: StepStatus | None = None,
) -> Batch:
    """Return the instance if this task belongs to its run, and its step waits for the task.

    ``status``: in which the step waits; None: in the one that the task was created in.

    Raises:
        Skip: nothing is left to decide, for example when an operator requeued the task.
    """
    batch = look(connection, payload["batch"])
    if batch is None or batch.run != payload["run"]:
        raise Skip("the instance has a later run, or is gone")
    if batch.status is BatchStatus.ABANDONED:
        raise Skip("the instance was abandoned")
    step = steps.find(connection, batch.id)[payload["step"]]
    waits = payload.get("of", step.phase) == step.phase if status is None else step.status is status
    if not waits:
        raise Skip(f"the step is {step.status}; to go on: tasks-app batch restart {batch.id}")
    return batch
