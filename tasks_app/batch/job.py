"""Batch jobs as code declares them, and the handlers that run the tasks of each step."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Connection

from tasks_app.batch.execution.chunk_context import ChunkContext
from tasks_app.batch.execution.partition_run import PartitionRun, status_after
from tasks_app.batch.progress import JobProgress
from tasks_app.batch.step import RUN_TUNING, Declared, Job, RunTuning, Step, checked
from tasks_app.batch.validate import split
from tasks_app.domain.batch.policies import Move
from tasks_app.domain.batch.records import Batch, BatchStatus, StepStatus
from tasks_app.domain.errors import InvalidJobError, PlanError
from tasks_app.domain.handlers.outcomes import Cancel, Skip
from tasks_app.domain.partition.records import Plan, Status, StoredPartition
from tasks_app.pool.batch import instances, partition_progress, partition_runs, partitions
from tasks_app.pool.batch.partition_progress import RunSignal
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.registry import HANDLERS, Registry, handler

JOBS: dict[str, BatchJob] = {}  # what this process declares, by name


class BatchJob:
    """Steps in an order, and the parameters that tell one instance from another.

    Declaring it registers handlers for each step: ``payroll:extract`` runs partitions, and
    ``payroll:extract:plan``, ``:join``, ``:reduce`` and ``:compensate`` do the rest. So limits,
    breakers, pauses and Flower know steps by name, and a worker that does not know the job claims
    none of its tasks.

    >>> def pay(ctx, rows):
    ...     for row in rows:
    ...         create_task(ctx.session, send_mail, {"to": row.address})
    >>> salaries = BatchJob("salaries", [Step("pay", Table("employee"), chunk=pay)])
    >>> start_job(session, salaries, {"month": "2030-01"}).new
    True

    Args:
        name: keep it, or instances are not found again.
        steps: each runs after the one before it, unless it says ``after``.
        params: the pydantic model of the parameters; None: a dict, unchecked.
        identified_by: the parameters that identify an instance; default: all.
        registry: for tests.
        tuning: for tests: how often its runs wait and check.

    Raises:
        InvalidJobError: the declaration is not valid.
    """

    def __init__(
        self,
        name: str,
        steps: Sequence[Step],
        *,
        params: type[BaseModel] | None = None,
        identified_by: Sequence[str] | None = None,
        registry: Registry = HANDLERS,
        tuning: RunTuning = RUN_TUNING,
    ) -> None:
        self.name: str = checked("Job", name)
        self.steps: dict[str, Step] = {step.name: step for step in steps}
        if not steps or len(self.steps) != len(steps):
            raise InvalidJobError(
                f"Job {name} has no steps, or two with the same name. Give each its own name."
            )
        self.params = params
        self.tuning = tuning
        self.identified_by: tuple[str, ...] | None = (
            None if identified_by is None else tuple(identified_by)
        )
        self.after: dict[str, tuple[str, ...]] = _order(name, steps)
        known = JOBS.get(name) if registry is HANDLERS else None
        if known is not None and known.where != self.where:
            raise InvalidJobError(
                f"Job {name} is already declared with {known.where}. "
                f"Give the one with {self.where} another name."
            )
        self.handlers: dict[str, dict[str, Declared]] = {
            step.name: declare(self, step, registry) for step in steps
        }
        if registry is HANDLERS:
            JOBS[name] = self

    @property
    def where(self) -> str:
        chunk: Any = next(iter(self.steps.values())).chunk
        return f"{chunk.__module__}.{chunk.__qualname__}"

    def given(self, params: dict[str, Any]) -> Any:
        if self.params is None:
            return params
        return self.params.model_validate_json(json.dumps(params))  # as JSON: it may be strict

    def __repr__(self) -> str:
        return f"<job {self.name}>"


def known_job(name: str) -> BatchJob:
    """Return a job that this process declares. Raises InvalidJobError if it declares none."""
    job = JOBS.get(name)
    if job is None:
        known = ", ".join(sorted(JOBS)) or "none"
        raise InvalidJobError(
            f"There is no job {name} here (known: {known}). "
            "Name the module that declares it in TASKS_APP_IMPORTS."
        )
    return job


def _order(job: str, steps: Sequence[Step]) -> dict[str, tuple[str, ...]]:
    """Return what each step waits for. Raises InvalidJobError if one can never start."""
    names = [step.name for step in steps]
    after: dict[str, tuple[str, ...]] = {}
    for place, step in enumerate(steps):
        before = tuple(names[max(0, place - 1) : place]) if step.after is None else step.after
        unknown = [name for name in before if name not in names]
        if unknown:
            raise InvalidJobError(
                f"Step {step.name} of job {job} is after {', '.join(unknown)}, which is no step. "
                f"Name some of: {', '.join(names)}."
            )
        after[step.name] = before
    done: set[str] = set()
    while left := [name for name in names if name not in done]:
        free = [name for name in left if done.issuperset(after[name])]
        if not free:
            raise InvalidJobError(
                f"Steps {', '.join(left)} of job {job} wait for each other. Remove one `after`."
            )
        done.update(free)
    return after


def declare(job: Job, step: Step, registry: Registry) -> dict[str, Declared]:
    name, queue = f"{job.name}:{step.name}", step.options["queue"]

    def register(suffix: str, work: Callable[..., Any], **options: Any) -> Declared:
        def run(ctx: TaskContext, payload: dict[str, Any]) -> Any:
            return work(job, step, ctx, payload)

        return handler(name + suffix, registry=registry, **options)(run)

    limit = step.options["hard_timeout"]
    found = {
        "partition": register(
            "", run_partition, **step.options, depends_on=step.depends_on, locks=step.locks
        ),
        "plan": register(":plan", run_plan, queue=queue, hard_timeout=limit),
        # Short waits, as only the database can make a join fail.
        "join": register(":join", run_join, queue=queue, retry="1s,5s,30s,1m,5m"),
    }
    if step.reduce:
        found["reduce"] = register(":reduce", run_reduce, **step.options)
    if step.compensate:
        found["compensate"] = register(":compensate", run_compensate, **step.options)
    return found


def run_partition(
    job: Job, step: Step, ctx: TaskContext, payload: dict[str, Any]
) -> dict[str, Any]:
    connection = ctx.connection
    signal = partition_progress.start(connection, payload["partition"], ctx.fence)
    stored = partitions.get(connection, payload["partition"])
    batch = instances.get(connection, payload["batch"])
    if signal is None or stored is None or batch is None:
        raise Skip("another task has the partition, or it is over")
    if signal is not RunSignal.CONTINUE:
        partition_progress.finish(connection, stored.id, ctx.fence, status_after(signal))
        ctx.commit()
        raise Cancel("the instance was stopped, or the step ended without this partition")
    run = PartitionRun(ctx, job, step, _context(job, step, ctx, batch, stored), stored)
    ctx.commit()  # so that no one waits for its row
    return run.run()


def run_plan(job: Job, step: Step, ctx: TaskContext, payload: dict[str, Any]) -> Any:
    """Split the source unless it is split already, and start what is not done, in one commit."""
    # The source is read before the instance is locked, as that may take long.
    connection = ctx.session.connection()
    seen = _instance_of(connection, instances.get, payload, StepStatus.PLANNING)
    planned = partition_runs.tallies(connection, seen.id).get(step.name)
    made: Plan | PlanError | None = None
    if planned is None:
        try:
            with ctx.session.begin_nested():
                made = split(ctx.session.connection(), step, job.given(seen.params))
        except PlanError as error:
            made = error
    connection = ctx.session.connection()
    locked = _instance_of(connection, instances.lock, payload, StepStatus.PLANNING)
    progress = JobProgress(job, ctx.session, locked)
    if planned is not None and "divide" in payload:
        try:
            with ctx.session.begin_nested():
                progress.divide(step, payload["divide"])
        except PlanError as error:
            made = error
    if isinstance(made, PlanError):
        progress.carry_out(step, Move.FAIL, error=str(made))
        return {"refused": str(made)}
    if made is not None:
        progress.insert_plan(step, made)
    return progress.start_partitions(step)


def run_join(job: Job, step: Step, ctx: TaskContext, payload: dict[str, Any]) -> Any:
    batch = _instance_of(ctx.session.connection(), instances.lock, payload)
    return {"move": JobProgress(job, ctx.session, batch).follow(step)}


def run_reduce(job: Job, step: Step, ctx: TaskContext, payload: dict[str, Any]) -> Any:
    assert step.reduce is not None  # noqa: S101  or it would not have been declared
    connection = ctx.session.connection()
    batch = _instance_of(connection, instances.get, payload, StepStatus.REDUCING)
    parts = partition_runs.results(connection, batch.id, step.name, Status.COMPLETED)
    result = step.reduce(_context(job, step, ctx, batch), parts)
    ctx.session.flush()
    locked = _instance_of(ctx.session.connection(), instances.lock, payload, StepStatus.REDUCING)
    JobProgress(job, ctx.session, locked).carry_out(step, Move.COMPLETE, result=result)
    return result


def run_compensate(job: Job, step: Step, ctx: TaskContext, payload: dict[str, Any]) -> None:
    """Undo what a failed partition had committed, and reset the partition in the same commit."""
    assert step.compensate is not None  # noqa: S101  or it would not have been declared
    connection = ctx.session.connection()
    batch = _instance_of(connection, instances.get, payload, StepStatus.COMPENSATING)
    stored = partitions.get(connection, payload["partition"])
    if stored is None or stored.status is not Status.FAILED:
        raise Skip("the partition has not failed")
    step.compensate(_context(job, step, ctx, batch, stored))
    ctx.session.flush()
    if not partition_runs.undo(ctx.session.connection(), stored.id):
        raise Skip("the partition was started again meanwhile")


def _context(
    job: Job, step: Step, ctx: TaskContext, batch: Batch, stored: StoredPartition | None = None
) -> ChunkContext:
    params = job.given(batch.params)
    if stored is None:
        return ChunkContext(ctx, batch, step.name, params)
    state = (stored.checkpoint or {}).get("state")
    return ChunkContext(ctx, batch, step.name, params, stored.partition, state)


def _instance_of(
    connection: Connection,
    read: Callable[[Connection, int], Batch | None],
    payload: dict[str, Any],
    status: StepStatus | None = None,
) -> Batch:
    """Return the instance if this task belongs to its run, and its step waits for the task.

    ``status``: in which the step waits; None: in the one that the task was created in. Raises Skip
    if nothing is left to decide, for example when an operator requeued the task.
    """
    batch = read(connection, payload["batch"])
    if batch is None or batch.run != payload["run"]:
        raise Skip("the instance has a later run, or is gone")
    if batch.status is BatchStatus.ABANDONED:
        raise Skip("the instance was abandoned")
    step = instances.find_steps(connection, batch.id)[payload["step"]]
    waits = payload.get("of", step.phase) == step.phase if status is None else step.status is status
    if not waits:
        raise Skip(f"the step is {step.status}; to continue: tasks-app batch restart {batch.id}")
    return batch
