"""tasks_app: durable jobs for people who already have PostgreSQL and Celery.

Importing this package imports nothing: each name is fetched from its room when it is first used.
So every start of ``celery``, which looks at our commands, and every probe costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know the name; the module typing would cost 5 ms
if TYPE_CHECKING:
    from tasks_app.batch.chunk_context import ChunkContext
    from tasks_app.batch.control import (
        abandon_job,
        get_job,
        list_jobs,
        replan_job,
        restart_job,
        start_job,
        stop_job,
    )
    from tasks_app.batch.job import BatchJob
    from tasks_app.batch.step import Step
    from tasks_app.domain.batch.records import BatchView, JobRun, PartResult
    from tasks_app.domain.breaker import Breaker
    from tasks_app.domain.errors import (
        BatchStateError,
        ChunkRowError,
        HandlerTimeoutError,
        InvalidJobError,
        InvalidScheduleError,
        InvalidSelectionError,
        InvalidTaskError,
        LeaseLostError,
        PlanError,
        TaskBufferFullError,
        TasksError,
        UniqueKeyTakenError,
    )
    from tasks_app.domain.explain.explanation import Explanation
    from tasks_app.domain.finding import Finding
    from tasks_app.domain.gates import Limit
    from tasks_app.domain.group import Ended, Group, GroupProgress
    from tasks_app.domain.handler import Handler
    from tasks_app.domain.missed import FireAll, fire_all
    from tasks_app.domain.outcome import Cancel, DependencyDown, Fail, Retry, Skip, Snooze
    from tasks_app.domain.partition.sources import File, Table
    from tasks_app.domain.queue import Queue, QueueOptions
    from tasks_app.domain.retry import Exponential, Fixed, Levels
    from tasks_app.domain.schedule import Schedule
    from tasks_app.domain.settings import Settings
    from tasks_app.domain.task import NewTask, Task, TaskId, TaskOptions
    from tasks_app.domain.unique import CreateOutcome
    from tasks_app.domain.window import Window
    from tasks_app.pool.batch.relation import Query
    from tasks_app.pool.cancel import Cancelled
    from tasks_app.pool.requeue import Requeued
    from tasks_app.runtime.async_operator import (
        acancel_task,
        aexplain_task,
        aget_task,
        arequeue_task,
    )
    from tasks_app.runtime.buffer import TaskBuffer
    from tasks_app.runtime.bulk import Done, run_bulk, start_bulk
    from tasks_app.runtime.context import AsyncTaskContext, TaskContext
    from tasks_app.runtime.declared import schedule
    from tasks_app.runtime.foreseen import Foreseen, foresee_bulk, foresee_rest
    from tasks_app.runtime.groups import (
        acreate_group,
        cancel_group,
        create_group,
        get_group,
        group_results,
    )
    from tasks_app.runtime.hooks import Notice, subscribe
    from tasks_app.runtime.middleware import middleware
    from tasks_app.runtime.operator import (
        cancel_task,
        cancel_tasks,
        drop_limit,
        explain_task,
        get_task,
        list_limits,
        pause_queue,
        requeue_task,
        resume_queue,
        set_limit,
        unblock_task,
    )
    from tasks_app.runtime.producer import (
        acreate_task,
        acreate_tasks,
        create_task,
        create_tasks,
        hint_tasks,
    )
    from tasks_app.runtime.queues import (
        change_queue,
        get_queue,
        list_calendars,
        list_queues,
        remove_calendar,
        reset_queue,
        set_calendar,
    )
    from tasks_app.runtime.registry import handler
    from tasks_app.runtime.rehearsal import Preview, backfill_schedule, preview, preview_schedule
    from tasks_app.runtime.schedules import (
        change_schedule,
        create_schedule,
        disable_schedule,
        enable_schedule,
        get_schedule,
        list_schedules,
        remove_schedule,
    )

__all__ = [
    "AsyncTaskContext",
    "BatchJob",
    "BatchStateError",
    "BatchView",
    "Breaker",
    "Cancel",
    "Cancelled",
    "ChunkContext",
    "ChunkRowError",
    "CreateOutcome",
    "DependencyDown",
    "Done",
    "Ended",
    "Explanation",
    "Exponential",
    "Fail",
    "File",
    "Finding",
    "FireAll",
    "Fixed",
    "Foreseen",
    "Group",
    "GroupProgress",
    "Handler",
    "HandlerTimeoutError",
    "InvalidJobError",
    "InvalidScheduleError",
    "InvalidSelectionError",
    "InvalidTaskError",
    "JobRun",
    "LeaseLostError",
    "Levels",
    "Limit",
    "NewTask",
    "Notice",
    "PartResult",
    "PlanError",
    "Preview",
    "Query",
    "Queue",
    "QueueOptions",
    "Requeued",
    "Retry",
    "Schedule",
    "Settings",
    "Skip",
    "Snooze",
    "Step",
    "Table",
    "Task",
    "TaskBuffer",
    "TaskBufferFullError",
    "TaskContext",
    "TaskId",
    "TaskOptions",
    "TasksError",
    "UniqueKeyTakenError",
    "Window",
    "abandon_job",
    "acancel_task",
    "acreate_group",
    "acreate_task",
    "acreate_tasks",
    "aexplain_task",
    "aget_task",
    "arequeue_task",
    "backfill_schedule",
    "cancel_group",
    "cancel_task",
    "cancel_tasks",
    "change_queue",
    "change_schedule",
    "create_group",
    "create_schedule",
    "create_task",
    "create_tasks",
    "disable_schedule",
    "drop_limit",
    "enable_schedule",
    "explain_task",
    "fire_all",
    "foresee_bulk",
    "foresee_rest",
    "get_group",
    "get_job",
    "get_queue",
    "get_schedule",
    "get_task",
    "group_results",
    "handler",
    "hint_tasks",
    "list_calendars",
    "list_jobs",
    "list_limits",
    "list_queues",
    "list_schedules",
    "middleware",
    "pause_queue",
    "preview",
    "preview_schedule",
    "remove_calendar",
    "remove_schedule",
    "replan_job",
    "requeue_task",
    "reset_queue",
    "restart_job",
    "resume_queue",
    "run_bulk",
    "schedule",
    "set_calendar",
    "set_limit",
    "start_bulk",
    "start_job",
    "stop_job",
    "subscribe",
    "unblock_task",
]

_ROOMS = {
    "batch.chunk_context": "ChunkContext",
    "batch.control": "abandon_job get_job list_jobs replan_job restart_job start_job stop_job",
    "batch.job": "BatchJob",
    "batch.step": "Step",
    "domain.batch.records": "BatchView JobRun PartResult",
    "domain.partition.sources": "File Table",
    "pool.batch.relation": "Query",
    "domain.breaker": "Breaker",
    "domain.errors": "BatchStateError ChunkRowError HandlerTimeoutError InvalidJobError"
    " InvalidScheduleError InvalidSelectionError InvalidTaskError LeaseLostError PlanError"
    " TaskBufferFullError TasksError UniqueKeyTakenError",
    "domain.explain.explanation": "Explanation",
    "domain.finding": "Finding",
    "domain.gates": "Limit",
    "domain.group": "Ended Group GroupProgress",
    "domain.handler": "Handler",
    "domain.missed": "FireAll fire_all",
    "domain.outcome": "Cancel DependencyDown Fail Retry Skip Snooze",
    "domain.queue": "Queue QueueOptions",
    "domain.retry": "Exponential Fixed Levels",
    "domain.schedule": "Schedule",
    "domain.settings": "Settings",
    "domain.task": "NewTask Task TaskId TaskOptions",
    "domain.unique": "CreateOutcome",
    "domain.window": "Window",
    "pool.cancel": "Cancelled",
    "pool.requeue": "Requeued",
    "runtime.async_operator": "acancel_task aexplain_task aget_task arequeue_task",
    "runtime.buffer": "TaskBuffer",
    "runtime.bulk": "Done run_bulk start_bulk",
    "runtime.context": "AsyncTaskContext TaskContext",
    "runtime.declared": "schedule",
    "runtime.foreseen": "Foreseen foresee_bulk foresee_rest",
    "runtime.groups": "acreate_group cancel_group create_group get_group group_results",
    "runtime.hooks": "Notice subscribe",
    "runtime.middleware": "middleware",
    "runtime.operator": "cancel_task cancel_tasks drop_limit explain_task get_task list_limits"
    " pause_queue requeue_task resume_queue set_limit unblock_task",
    "runtime.producer": "acreate_task acreate_tasks create_task create_tasks hint_tasks",
    "runtime.queues": "change_queue get_queue list_calendars list_queues remove_calendar"
    " reset_queue set_calendar",
    "runtime.registry": "handler",
    "runtime.rehearsal": "Preview backfill_schedule preview preview_schedule",
    "runtime.schedules": "change_schedule create_schedule disable_schedule enable_schedule"
    " get_schedule list_schedules remove_schedule",
}
"""The imports above once more, for the running program."""
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}

if not TYPE_CHECKING:  # or every misspelt name would pass their checks

    def __getattr__(name: str) -> object:
        """Fetch a public name from its room, once."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415  not before a name is wanted

        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Show the names that were not fetched yet, too."""
        return sorted({*globals(), *__all__})
