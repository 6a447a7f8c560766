"""Batch jobs as code declares them, and the handlers that run the tasks of each step."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Connection

from tasks_app.batch.execution.chunk_context import ChunkContext
from tasks_app.batch.execution.partition_run import PartitionRun, Stealing, status_after
from tasks_app.batch.progress import JobProgress
from tasks_app.batch.step import (
    LONGEST_NAME,
    RUN_TUNING,
    Declared,
    Job,
    RunTuning,
    Step,
    StepHandlers,
)
from tasks_app.batch.validate import split
from tasks_app.domain.batch.policies import Move
from tasks_app.domain.batch.records import Batch, BatchStatus, StepStatus
from tasks_app.domain.errors import InvalidJobError, InvalidTaskError, PlanError
from tasks_app.domain.handlers.outcomes import Cancel, Skip
from tasks_app.domain.partition.records import Plan, Status
from tasks_app.domain.tasks.options import check_name
from tasks_app.pool.batch import instances, partition_progress, partition_runs, partitions
from tasks_app.pool.batch.partition_progress import Word
from tasks_app.runtime.handlers.context import TaskContext
from tasks_app.runtime.handlers.registry import HANDLERS, Registry, handler

JOBS: dict[str, BatchJob] = {}  # what this process declares, by name


class BatchJob:
    """Steps in an order, and the parameters that tell one instance from another.

    Declaring it enters handlers for each step: ``payroll:extract`` runs partitions, and
    ``payroll:extract:plan``, ``:join``, ``:reduce`` and ``:compensate`` what is around them. So
    limits, breakers, pauses and Flower know steps by name, and a worker that does not know the job
    claims none of its tasks.

    >>> def pay(ctx, rows):
    ...     for row in rows:
    ...         create_task(ctx.session, send_mail, {"to": row.address})
    >>> salaries = BatchJob("salaries", [Step("pay", Table("employee"), chunk=pay)])
    >>> start_job(session, salaries, {"month": "2030-01"}).new
    True

    Args:
        name: keep it, or instances are not found again.
        steps: each after the one before it, unless it says ``after``.
        params: the pydantic model of the parameters; None: a dict, unchecked.
        identified_by: which of the parameters make two instances the same; default: all.
        registry: for tests.
        tuning: for tests: how its runs wait and look around.

    Raises:
        InvalidJobError: it cannot work.
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
        self.name: str = _checked_name(name)
        self.steps: dict[str, Step] = {step.name: step for step in steps}
        if not steps or len(self.steps) != len(steps):
            raise InvalidJobError(f"Job {name} has no steps, or two of one name. Name each once.")
        self.params = params
        self.tuning = tuning
        self.identified_by: tuple[str, ...] | None = (
            None if identified_by is None else tuple(identified_by)
        )
        self.after: dict[str, tuple[str, ...]] = _order(name, steps)
        self._check_again(registry)
        self.handlers: dict[str, StepHandlers] = {
            step.name: declare(self, step, registry) for step in steps
        }
        if registry is HANDLERS:
            JOBS[name] = self

    def _check_again(self, registry: Registry) -> None:
        known = JOBS.get(self.name) if registry is HANDLERS else None
        if known is not None and known.where != self.where:
            raise InvalidJobError(
                f"Job {self.name} is declared with {known.where} already. "
                f"Give the one with {self.where} another name."
            )

    @property
    def where(self) -> str:
        """The function of its first step, which tells it from another of its name."""
        chunk: Any = next(iter(self.steps.values())).chunk
        return f"{chunk.__module__}.{chunk.__qualname__}"

    def given(self, params: dict[str, Any]) -> Any:
        """Return stored parameters as handlers see them."""
        if self.params is None:
            return params
        return self.params.model_validate_json(json.dumps(params))  # as JSON: it may be strict

    def __repr__(self) -> str:
        return f"<job {self.name}>"


def known_job(name: str) -> BatchJob:
    """Return a job that this process declares.

    Raises InvalidJobError if it declares none of that name.
    """
    job = JOBS.get(name)
    if job is None:
        known = ", ".join(sorted(JOBS)) or "none"
        raise InvalidJobError(
            f"There is no job {name} here (known: {known}). "
            "Name the module that declares it in TASKS_APP_IMPORTS."
        )
    return job


def _checked_name(name: Any) -> str:
    try:
        checked = check_name(name)
    except InvalidTaskError as error:
        raise InvalidJobError(f"Job {name!r} is declared wrongly: {error}") from None
    if len(checked) > LONGEST_NAME or ":" in checked:
        raise InvalidJobError(
            f"Job {name!r} has no good name. Use up to {LONGEST_NAME} characters, no colon."
        )
    return checked


def _order(job: str, steps: Sequence[Step]) -> dict[str, tuple[str, ...]]:
    """Return what each step waits for.

    Raises InvalidJobError if a step waits for one that is not there, or for itself in the end.
    """
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
    while rest := [name for name in names if name not in done]:
        free = [name for name in rest if done.issuperset(after[name])]
        if not free:
            raise InvalidJobError(
                f"Steps {', '.join(rest)} of job {job} wait for each other. Take one `after` away."
            )
        done.update(free)
    return after


CONTROL_RETRY = "1s,5s,30s,1m,5m"
"""Waits between attempts of a join: short, as only the database can make it fail."""


def declare(job: Job, step: Step, registry: Registry) -> StepHandlers:
    """Enter the handlers of a step. Raises HandlerError if they cannot work."""
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

    ``status``: in which the step waits; None: in the one that the task was created in. Raises Skip
    if nothing is left to decide, for example when an operator requeued the task.
    """
    batch = look(connection, payload["batch"])
    if batch is None or batch.run != payload["run"]:
        raise Skip("the instance has a later run, or is gone")
    if batch.status is BatchStatus.ABANDONED:
        raise Skip("the instance was abandoned")
    step = instances.find_steps(connection, batch.id)[payload["step"]]
    waits = payload.get("of", step.phase) == step.phase if status is None else step.status is status
    if not waits:
        raise Skip(f"the step is {step.status}; to go on: tasks-app batch restart {batch.id}")
    return batch
