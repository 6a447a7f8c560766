"""The handlers of a step: what its tasks do. A step has names of its own, so that limits have.

Tasks of an instance carry its id and run; one of a run that is over changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from tasks_app.batch.chunk_context import ChunkContext
from tasks_app.batch.partition_run import PartitionRun, status_after
from tasks_app.batch.progress import Progress
from tasks_app.batch.split import split
from tasks_app.batch.steal import Stealing
from tasks_app.batch.step import Step
from tasks_app.domain.batch.decisions import Move
from tasks_app.domain.batch.records import Batch, BatchStatus, StepStatus
from tasks_app.domain.errors import PlanError
from tasks_app.domain.handlers.outcomes import Cancel, Skip
from tasks_app.domain.handlers.spec import Handler
from tasks_app.domain.partition.records import Plan, Status
from tasks_app.pool.batch import instances, partition_progress, partition_runs, partitions, steps
from tasks_app.pool.batch.partition_progress import Word
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.registry import Registry, handler

if TYPE_CHECKING:
    from tasks_app.batch.job import BatchJob

CONTROL_RETRY = "1s,5s,30s,1m,5m"
"""Of what is around the partitions: short, and nothing but the database can be in its way."""
Declared = Handler[Any, Any]


@dataclass(frozen=True, slots=True)
class StepHandlers:
    """The handlers of one step."""

    partition: Declared
    plan: Declared
    join: Declared
    reduce: Declared | None
    compensate: Declared | None


def declare(job: BatchJob, step: Step, registry: Registry) -> StepHandlers:
    """Enter the handlers of a step.

    Raises:
        HandlerError: they cannot work.
    """
    name, queue = f"{job.name}:{step.name}", step.options["queue"]

    def enter(word: str, function: Callable[..., Any], **options: Any) -> Declared:
        return handler(name + word, registry=registry, **options)(function)

    def partition(ctx: TaskContext, payload: dict[str, Any]) -> Any:
        return run_partition(job, step, ctx, payload)

    def plan(ctx: TaskContext, payload: dict[str, Any]) -> Any:
        return run_plan(job, step, ctx, payload)

    def join(ctx: TaskContext, payload: dict[str, Any]) -> Any:
        return run_join(job, step, ctx, payload)

    def reduce(ctx: TaskContext, payload: dict[str, Any]) -> Any:
        return run_reduce(job, step, ctx, payload)

    def compensate(ctx: TaskContext, payload: dict[str, Any]) -> Any:
        return run_compensate(job, step, ctx, payload)

    own = {**step.options, "depends_on": step.depends_on}
    return StepHandlers(
        partition=enter("", partition, **own),
        plan=enter(":plan", plan, queue=queue, hard_timeout=step.options["hard_timeout"]),
        join=enter(":join", join, queue=queue, retry=CONTROL_RETRY),
        reduce=enter(":reduce", reduce, **step.options) if step.reduce else None,
        compensate=enter(":compensate", compensate, **step.options) if step.compensate else None,
    )


def run_partition(
    job: BatchJob, step: Step, ctx: TaskContext, payload: dict[str, Any]
) -> dict[str, Any]:
    """Run one partition, from its checkpoint on."""
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
    run = PartitionRun(ctx, step, chunk_ctx, stored, stealing)
    ctx.commit()  # nobody shall wait for its row
    return run.run()


def run_plan(job: BatchJob, step: Step, ctx: TaskContext, payload: dict[str, Any]) -> Any:
    """Split the source unless it is split already, and start what is not done, in one commit.

    The source is looked at before the instance is locked: that may take long.
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
    progress = Progress(job, ctx.session, locked)
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


def run_join(job: BatchJob, step: Step, ctx: TaskContext, payload: dict[str, Any]) -> Any:
    """Decide what follows now that the tasks of a step have ended, or enough of them."""
    batch = _mine(ctx.session.connection(), instances.lock, payload)
    return {"move": Progress(job, ctx.session, batch).follow(step)}


def run_reduce(job: BatchJob, step: Step, ctx: TaskContext, payload: dict[str, Any]) -> Any:
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
    Progress(job, ctx.session, locked).carry_out(step, Move.COMPLETE, result=result)
    return result


def run_compensate(job: BatchJob, step: Step, ctx: TaskContext, payload: dict[str, Any]) -> None:
    """Undo what a failed partition had committed; it is as if never started, in the same commit."""
    assert step.compensate is not None  # noqa: S101  as above
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
    """Return the instance if this task is of its run, and its step waits for it.

    ``status``: in which the step does; None: in that which the task was created in.

    Raises:
        Skip: nothing is to be decided any more. An operator requeued the task, say.
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
