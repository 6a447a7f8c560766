"""Start, stop, restart, divide, abandon and read instances of jobs. Nothing here commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from sqlalchemy import Connection

from tasks_app.batch.job import JOBS, BatchJob, known_job
from tasks_app.batch.progress import JobProgress, drop_views_and_marks
from tasks_app.domain.batch.policies import steps_to_rerun
from tasks_app.domain.batch.records import (
    Batch,
    BatchStatus,
    BatchView,
    JobRun,
    StepStatus,
    checked_params,
    identity,
)
from tasks_app.domain.errors import BatchStateError
from tasks_app.domain.operations import Author
from tasks_app.pool.batch import instances, partition_runs
from tasks_app.pool.operations.audit import note
from tasks_app.pool.tables import database_now
from tasks_app.pool.tasks.cancel import cancel_these
from tasks_app.runtime.db.connections import Sync, connection_of, made_async

Params = Mapping[str, Any] | BaseModel | None


def start_job(
    session: Sync, job: BatchJob | str, params: Params = None, *, restart: bool = True
) -> JobRun:
    """Start an instance of a job in the caller's transaction: it runs if and only if that commits.

    Return the instance's id and run, and whether it is new. The identifying parameters name it.
    With ``restart`` one that failed or was stopped continues where it was.

    >>> start_job(session, payroll, {"month": "2030-01"}).run
    1

    Raises:
        InvalidJobError: this process knows no such job, or the parameters do not fit.
        BatchStateError: the instance is complete, runs, or exists and ``restart`` is False.
    """
    known = known_job(job) if isinstance(job, str) else job
    given = checked_params(known.name, known.params, params)
    same = identity(known.given(given), known.identified_by)
    connection = connection_of(session)
    made = instances.add(connection, known.name, same, given)
    if made is not None:
        return _begin(session, known, made, new=True)
    old = instances.lock_same(connection, known.name, same)
    if old is None:  # abandoned between the two
        return start_job(session, known, params, restart=restart)
    _check_may_restart(connection, old)
    if not restart:
        raise BatchStateError(
            old.id, f"Batch {old.id} has these parameters, and is {old.status}. Restart it."
        )
    return _begin(session, known, instances.restart(connection, old.id, given), new=False)


def restart_job(session: Sync, batch_id: int, *, divide: int | None = None, by: str = "") -> JobRun:
    """Continue an instance that failed, was stopped, or lost its tasks.

    ``divide``: divide each partition that has not started into so many.

    >>> restart_job(session, stopped_id, by="anna").run
    2

    Raises:
        InvalidJobError: this process does not know its job.
        BatchStateError: the instance does not exist, runs, or is complete.
    """
    connection = connection_of(session)
    batch = _locked(connection, batch_id)
    _check_may_restart(connection, batch)
    job = known_job(batch.job)
    begun = instances.restart(connection, batch_id, batch.params)
    note(connection, "restart batch", {"batch": batch_id, "divide": divide}, who=by)
    return _begin(session, job, begun, new=False, divide=divide)


def replan_job(session: Sync, batch_id: int, step: str, *, divide: int, by: str = "") -> int:
    """Divide each partition of a running step that has not started; return how many were added.

    Other decisions about the instance wait meanwhile.

    >>> replan_job(session, running_id, "pay", divide=4)
    3

    Raises:
        InvalidJobError: this process does not know its job.
        BatchStateError: there is no such instance or step, or its partitions do not run.
        PlanError: a partition is not a range of keys.
    """
    connection = connection_of(session)
    batch = _locked(connection, batch_id)
    job, stored = known_job(batch.job), instances.find_steps(connection, batch_id).get(step)
    if stored is None or step not in job.steps:
        names = ", ".join(job.steps)
        raise BatchStateError(batch_id, f"{batch.job} has no step {step}. Name one of: {names}.")
    if batch.status is not BatchStatus.RUNNING or stored.status is not StepStatus.RUNNING:
        raise BatchStateError(
            batch_id,
            f"Batch {batch_id} is {batch.status}, its step {step} {stored.status}: no partition "
            f"runs. When it has ended: tasks-app batch restart {batch_id} --divide {divide}",
        )
    made = JobProgress(job, session, batch).divide_waiting(job.steps[step], divide)
    about = {"batch": batch_id, "step": step, "divide": divide}
    note(connection, "replan batch", about, who=by, number=made)
    return made


def stop_job(session: Sync, batch_id: int, *, by: str = "") -> int:
    """Stop an instance: cancel what waits; return how many tasks still run, to their next chunk.

    >>> stop_job(session, running_id, by="anna")
    0

    Raises:
        BatchStateError: the instance does not exist, or does not run.
    """
    connection = connection_of(session)
    batch = _locked(connection, batch_id)
    if batch.status not in {BatchStatus.RUNNING, BatchStatus.STOPPING}:
        raise BatchStateError(batch_id, f"Batch {batch_id} does not run: it is {batch.status}.")
    instances.set_status(connection, batch_id, BatchStatus.STOPPING)
    note(connection, "stop batch", {"batch": batch_id}, who=by)
    for step in instances.find_steps(connection, batch_id):
        partition_runs.lock_tasks(connection, batch_id, step)
    cancel_these(connection, instances.waiting_tasks(connection, batch_id), by=Author(by))
    if not instances.unfinished_tasks(connection, batch_id, 1):
        instances.set_status(connection, batch_id, BatchStatus.STOPPED)
    return instances.count_running(connection, batch_id)


def abandon_job(session: Sync, batch_id: int, *, by: str = "") -> None:
    """End an instance for ever. Its work stays; its parameters are free for a new instance.

    >>> abandon_job(session, stopped_id, by="anna")
    >>> print(get_job(session, stopped_id).batch.status)
    ABANDONED

    Raises:
        BatchStateError: the instance does not exist, is complete, or still has tasks.
    """
    connection = connection_of(session)
    batch = _locked(connection, batch_id)
    if batch.status is BatchStatus.COMPLETED:
        raise BatchStateError(batch_id, f"Batch {batch_id} is complete. It cannot be abandoned.")
    if instances.unfinished_tasks(connection, batch_id, 1):
        raise BatchStateError(
            batch_id, f"Batch {batch_id} still runs. Stop it first: tasks-app batch stop {batch_id}"
        )
    instances.set_status(connection, batch_id, BatchStatus.ABANDONED, batch.error)
    for step in instances.find_steps(connection, batch_id):
        drop_views_and_marks(connection, batch_id, step)
    note(connection, "abandon batch", {"batch": batch_id}, who=by)


def get_job(session: Sync, batch_id: int) -> BatchView | None:
    """Return an instance with its steps and counts of their partitions; None: there is none.

    Steps are in the job's order if this process knows the job; otherwise in that of their starts.

    >>> print(get_job(session, running_id).batch.status)
    RUNNING
    """
    connection = connection_of(session)
    batch = instances.get(connection, batch_id)
    if batch is None:
        return None
    found = instances.find_steps(connection, batch_id)
    job = JOBS.get(batch.job)
    planned = [name for name in job.steps if name in found] if job is not None else []
    return BatchView(
        batch,
        tuple(found[name] for name in dict.fromkeys([*planned, *found])),
        partition_runs.tallies(connection, batch_id),
        len(instances.unfinished_tasks(connection, batch_id)),
        database_now(connection),
    )


def list_jobs(
    session: Sync, *, job: str | None = None, status: str | None = None, most: int = 50
) -> list[Batch]:
    """Return instances, newest first.

    >>> [batch.id == stopped_id for batch in list_jobs(session, job="payroll", status="STOPPED")]
    [True]
    """
    return instances.find(connection_of(session), job=job, status=status, most=most)


astart_job: Final = made_async(start_job)
astop_job: Final = made_async(stop_job)
arestart_job: Final = made_async(restart_job)
aabandon_job: Final = made_async(abandon_job)
areplan_job: Final = made_async(replan_job)
aget_job: Final = made_async(get_job)
alist_jobs: Final = made_async(list_jobs)


def _begin(
    session: Sync, job: BatchJob, batch: Batch, *, new: bool, divide: int | None = None
) -> JobRun:
    connection = connection_of(session)
    instances.add_steps(connection, batch.id, list(job.steps), batch.run)
    if not new:
        found = instances.find_steps(connection, batch.id)
        statuses = {name: each.status for name, each in found.items()}
        instances.reset_steps(connection, batch.id, steps_to_rerun(statuses), batch.run)
    JobProgress(job, session, batch).start_ready(divide)
    return JobRun(batch.id, batch.run, new)


def _locked(connection: Connection, batch_id: int) -> Batch:
    if (batch := instances.lock(connection, batch_id)) is None:
        raise BatchStateError(batch_id, f"There is no batch {batch_id}. Run: tasks-app batch list")
    return batch


def _check_may_restart(connection: Connection, batch: Batch) -> None:
    """A RUNNING instance without tasks may: its last join failed, and its end was not written."""
    match batch.status:
        case BatchStatus.COMPLETED:
            why = (
                f"Batch {batch.id} of {batch.job} is complete with these parameters. "
                "Use other parameters for another instance."
            )
        case BatchStatus.ABANDONED:
            why = f"Batch {batch.id} was abandoned. Start the job again instead."
        case BatchStatus.RUNNING | BatchStatus.STOPPING if instances.unfinished_tasks(
            connection, batch.id, 1
        ):
            why = (
                f"Batch {batch.id} of {batch.job} is {batch.status}. Wait until it ends, "
                f"or stop it: tasks-app batch stop {batch.id}"
            )
        case _:
            return
    raise BatchStateError(batch.id, why)
