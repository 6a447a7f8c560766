"""How an instance moves from step to step, and the tasks that it creates for each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from tasks_app.batch.planners.even import Even
from tasks_app.batch.replan import replan
from tasks_app.batch.step import Job, Step
from tasks_app.domain.batch import policies
from tasks_app.domain.batch.policies import AbortKind, Move
from tasks_app.domain.batch.records import Batch, BatchStatus, PartTally, StepStatus
from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import TasksError
from tasks_app.domain.operations import Author
from tasks_app.domain.partition.records import PartitionKind, Plan, Status, Table
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.domain.tasks.records import TaskId
from tasks_app.pool.batch import instances, partition_progress, partition_runs, partitions
from tasks_app.pool.batch.sources import marks
from tasks_app.pool.batch.sources.predicate import drop_views
from tasks_app.pool.tasks.cancel import cancel_these
from tasks_app.runtime.api.groups import create_group, extend_group
from tasks_app.runtime.db.connections import Sync, connection_of

NAMED = 10  # how many failed partitions an error names
NOT_DONE = (Status.PLANNED, Status.RUNNING, Status.STOPPED, Status.FAILED, Status.COMPENSATED)


class JobProgress:
    def __init__(self, job: Job, session: Sync, batch: Batch) -> None:
        self._job = job
        self._connection = connection_of(session)
        self._batch = batch
        self._id = batch.id
        self._stopping = batch.status is not BatchStatus.RUNNING
        self._tasks = StepTasks(job, session, batch)

    def start_ready(self, divide: int | None = None) -> None:
        """Start the steps that wait for no other; end the instance if none is active."""
        known = instances.find_steps(self._connection, self._id)
        if new := [name for name in self._job.steps if name not in known]:
            instances.add_steps(self._connection, self._id, new, self._batch.run)  # by newer code
        statuses = {
            name: known[name].status if name in known else StepStatus.WAITING
            for name in self._job.steps
        }
        if not self._stopping:
            for name in policies.ready_steps(self._job.after, statuses):
                step = self._job.steps[name]
                self._change(step, StepStatus.PLANNING)
                more = {} if divide is None else {"divide": divide}
                self._tasks.create(step, [self._tasks.new(step, "plan", **more)], then=False)
                statuses[name] = StepStatus.PLANNING
        ended = policies.status_of_batch(statuses, stopping=self._stopping)
        if ended is not None:
            instances.set_status(
                self._connection, self._id, ended, policies.error_of_batch(statuses)
            )

    def insert_plan(self, step: Step, plan: Plan) -> None:
        program = self._program(step)
        partitions.insert(self._connection, program, plan, batch_id=self._id, step=step.name)
        source = self._source_of(step)
        if isinstance(source, Table) and plan.method == "indicator beside":
            marks.fill(self._connection, program, source)
        facts = {
            "method": plan.method,
            "partitions": len(plan.partitions),
            "rows": plan.rows,
            "seconds": round(plan.seconds, 3),
            "warnings": list(plan.warnings),
        }
        self._change(step, StepStatus.PLANNING, plan=facts)

    def divide(self, step: Step, into: int) -> None:
        """Divide each partition that has not started. Raises PlanError if one is no key range."""
        partition_runs.end_partitions(self._connection, self._id, step.name)
        idle = [
            each
            for each in partitions.find_by_batch(self._connection, self._id)
            if each.step == step.name and each.is_untouched and each.status in NOT_DONE
        ]
        if idle:
            ids = [each.id for each in idle]
            partition_progress.set_status(self._connection, ids, Status.PLANNED, those=NOT_DONE)
            numbers = {each.partition.number for each in idle}
            source = self._source_of(step)
            replan(self._connection, idle[0].program, source, Even(into), numbers)

    def divide_waiting(self, step: Step, into: int) -> int:
        made = replan(self._connection, self._program(step), self._source_of(step), Even(into))
        if made:
            self._tasks.add(step, list(made.values()))
        return len(made)

    def start_partitions(self, step: Step, *, rounds: int = 0) -> dict[str, Any]:
        if self._stopping:
            self.carry_out(step, Move.STOP)
            return {"move": Move.STOP}
        partition_runs.end_partitions(self._connection, self._id, step.name)
        parts = partition_runs.find(self._connection, self._id, step.name, *NOT_DONE)
        self._change(step, StepStatus.RUNNING, rounds=rounds)
        enough = step.join.enough
        if not parts or (enough is not None and self._count_completed(step) >= enough):
            return {"move": self.follow(step)}
        ids = [part for part, _ in parts]
        made = self._tasks.create(
            step,
            self._tasks.of_partitions(step, ids),
            enough=enough,
            fail_fast=step.on_abort.kind is AbortKind.FAIL_FAST and step.join.enough is None,
        )
        partition_progress.set_status(self._connection, ids, Status.PLANNED, those=NOT_DONE)
        partitions.assign(self._connection, dict(zip(ids, made, strict=True)))
        return {"started": len(parts)}

    def follow(self, step: Step) -> Move:
        partition_runs.end_partitions(self._connection, self._id, step.name)
        stored = instances.find_steps(self._connection, self._id)[step.name]
        tally = partition_runs.tallies(self._connection, self._id).get(step.name, PartTally())
        given: Any = {"stopping": self._stopping, "reduces": step.reduce is not None}
        match stored.status:
            case StepStatus.RUNNING:
                move = policies.after_partitions(
                    tally, step.join, step.on_abort, rounds=stored.round, **given
                )
            case StepStatus.COMPENSATING:
                move = policies.after_compensation(tally, step.join, **given)
            case StepStatus.PLANNING | StepStatus.REDUCING:
                move = Move.STOP if self._stopping else Move.FAIL
            case _:
                return Move.STOP  # another transaction has decided
        self.carry_out(step, move, error=self._why(step, stored.status, tally))
        return move

    def carry_out(
        self, step: Step, move: Move, *, error: str | None = None, result: Any = None
    ) -> None:
        match move:
            case Move.AGAIN:
                self.start_partitions(step, rounds=1)
            case Move.COMPENSATE:
                parts = partition_runs.find(self._connection, self._id, step.name, Status.FAILED)
                self._change(step, StepStatus.COMPENSATING)
                undo = [self._tasks.new(step, "compensate", partition=part) for part, _ in parts]
                self._tasks.create(step, undo)
            case Move.REDUCE:
                self._end_step(step, StepStatus.REDUCING, Status.ABANDONED)
                self._tasks.create(step, [self._tasks.new(step, "reduce")], then=False)
            case Move.COMPLETE:
                self._end_step(step, StepStatus.COMPLETED, Status.ABANDONED, result=result)
                drop_views_and_marks(self._connection, self._id, step.name)
            case Move.FAIL:
                self._end_step(step, StepStatus.FAILED, Status.STOPPED, error=error)
            case Move.STOP:
                self._end_step(step, StepStatus.STOPPED, Status.STOPPED)
        self.start_ready()

    def _end_step(self, step: Step, status: StepStatus, left: Status, **more: Any) -> None:
        """End a step: cancel what waits; what runs ends at its next chunk."""
        # Rows of partitions are locked before those of tasks, as runs do.
        tasks = partition_runs.lock_tasks(self._connection, self._id, step.name)
        self._change(step, status, **more)
        if tasks:
            cancel_these(self._connection, tasks, by=Author(f"batch {self._id}"))
            partition_runs.end_partitions(self._connection, self._id, step.name, left)

    def _change(self, step: Step, status: StepStatus, **more: Any) -> None:
        instances.change_step(self._connection, self._id, step.name, status, **more)

    def _count_completed(self, step: Step) -> int:
        done = partition_runs.find(self._connection, self._id, step.name, Status.COMPLETED)
        return len(done)

    def _program(self, step: Step) -> str:
        return f"{self._job.name}:{step.name}#{self._id}"

    def _source_of(self, step: Step) -> Any:
        return step.source_of(self._job.given(self._batch.params))

    def _why(self, step: Step, status: StepStatus, tally: PartTally) -> str:
        if status in {StepStatus.PLANNING, StepStatus.REDUCING}:
            cause = partition_runs.find_lost_cause(self._connection, self._id, step.name)
            hint = f"See: tasks-app list --biz-key batch:{self._id}"
            return f"{cause or 'It did not succeed'}. {hint}"
        failed = partition_runs.find(self._connection, self._id, step.name, Status.FAILED)
        numbers = ", ".join(str(number) for _, number in failed[:NAMED])
        more = ", …" if len(failed) > NAMED else ""
        named = f" (failed: {numbers}{more})" if failed else ""
        return (
            f"{tally.completed} of {tally.total} partitions are complete{named}, "
            f"join is {step.join}. See: tasks-app batch partitions {self._id}"
        )


def drop_views_and_marks(connection: Connection, batch_id: int, step: str) -> None:
    for stored in partitions.find_by_batch(connection, batch_id):
        if stored.step != step:
            continue
        if stored.partition.view is not None:
            drop_views(connection, [stored.partition])
        if stored.partition.kind is PartitionKind.MARKED:
            marks.clear(connection, stored.program)


class StepTasks:
    """Creates the tasks of one instance, whose row is locked."""

    def __init__(self, job: Job, session: Sync, batch: Batch) -> None:
        self._job = job
        self._session = session
        self._batch = batch

    def new(self, step: Step, which: str, **payload: Any) -> NewTask:
        options: TaskOptions = {
            "biz_key": instances.biz_key(self._batch.id),
            # Joins go first: after one, much of what waits need not start.
            "priority": 0 if which == "join" else step.priority,
        }
        given = {"batch": self._batch.id, "step": step.name, "run": self._batch.run, **payload}
        return NewTask(self._job.handlers[step.name][which], given, options)

    def of_partitions(self, step: Step, ids: Sequence[int]) -> list[NewTask]:
        return [self.new(step, "partition", partition=part) for part in ids]

    def create(
        self, step: Step, tasks: Sequence[NewTask], *, then: bool = True, **more: Any
    ) -> list[TaskId]:
        """Create tasks whose end calls the join; without ``then`` only a failure calls it."""
        known = instances.find_steps(connection_of(self._session), self._batch.id)
        join = self.new(step, "join", of=known[step.name].phase)
        made = create_group(
            self._session, tasks, then=join if then else None, on_failure=join, **more
        )
        return made.task_ids

    def add(self, step: Step, ids: Sequence[int]) -> None:
        """Start partitions beside those that run: the join waits for them, too."""
        connection = connection_of(self._session)
        _, group_id = partition_runs.count_waiting(connection, self._batch.id, step.name)
        if group_id is None:  # or the join was called, which extend_group refuses: roll back
            raise TasksError(f"No partition of step {step.name} runs. Restart the instance.")
        made = extend_group(self._session, group_id, self.of_partitions(step, ids))
        partitions.assign(connection, dict(zip(ids, made, strict=True)))
