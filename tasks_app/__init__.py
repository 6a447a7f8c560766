"""tasks_app: durable jobs for people who already have PostgreSQL and Celery.

Importing this package imports nothing else: each name is fetched from its module on first use. So
every start of ``celery``, which loads our commands, and every probe costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know the name; the module typing would cost 5 ms
if TYPE_CHECKING:  # never run, but read below: this is the only list of the modules
    # isort: off
    # fmt: off
    from tasks_app.batch.control import (
        aabandon_job, abandon_job, aget_job, alist_jobs, areplan_job, arestart_job, astart_job,
        astop_job, get_job, list_jobs, replan_job, restart_job, start_job, stop_job,
    )
    from tasks_app.batch.execution.chunk_context import ChunkContext
    from tasks_app.batch.job import BatchJob
    from tasks_app.batch.step import Step
    from tasks_app.domain.batch.records import BatchView, JobRun, PartResult
    from tasks_app.domain.config.settings import Settings
    from tasks_app.domain.creation import NewTask
    from tasks_app.domain.errors import (
        BatchStateError, ChunkRowError, HandlerTimeoutError, InvalidJobError, InvalidScheduleError,
        InvalidSelectionError, InvalidTaskError, LeaseLostError, PlanError, TaskBufferFullError,
        TasksError, UniqueKeyTakenError, UnknownTaskError, WaitTimeoutError,
    )
    from tasks_app.domain.explain.explanation import Explanation
    from tasks_app.domain.finding import Finding
    from tasks_app.domain.flow_control.circuit_breaker import Breaker
    from tasks_app.domain.flow_control.limits import Limit
    from tasks_app.domain.groups import Ended, Group, GroupProgress
    from tasks_app.domain.handlers.outcomes import Cancel, DependencyDown, Fail, Retry, Skip, Snooze
    from tasks_app.domain.handlers.spec import Handler
    from tasks_app.domain.partition.records import File, Table
    from tasks_app.domain.queues import Queue, QueueOptions, Window
    from tasks_app.domain.schedules.misfire import FireAll, fire_all
    from tasks_app.domain.schedules.schedule import Schedule
    from tasks_app.domain.tasks.options import TaskOptions
    from tasks_app.domain.tasks.records import CreateOutcome, Task, TaskId
    from tasks_app.domain.tasks.retry_policy import Exponential, Fixed, Levels
    from tasks_app.pool.batch.sources.relation import Query
    from tasks_app.pool.error_groups import ErrorGroup
    from tasks_app.pool.tasks.cancel import Cancelled
    from tasks_app.pool.tasks.requeue import Requeued
    from tasks_app.runtime.api.amend_waiting import (
        Changed, adisable_task, aenable_task, ahold_task, amove_task, arelease_task,
        areprioritise_task, areschedule_task, arun_task_now, disable_task, enable_task, hold_task,
        move_task, release_task, reprioritise_task, reschedule_task, run_task_now,
    )
    from tasks_app.runtime.api.buffer import TaskBuffer
    from tasks_app.runtime.api.bulk import (
        Foreseen, RequeueStage, foresee_bulk, foresee_rest, requeue_errors, run_bulk,
        start_bulk,
    )
    from tasks_app.runtime.api.bulk_step import Done
    from tasks_app.runtime.api.errors import (
        afill_fingerprints, alist_errors, amark_error_known, amark_error_unknown, fill_fingerprints,
        list_errors, mark_error_known, mark_error_unknown,
    )
    from tasks_app.runtime.api.groups import (
        acancel_group, acreate_group, aget_group, agroup_results, cancel_group, create_group,
        get_group, group_results,
    )
    from tasks_app.runtime.api.limits import (
        adrop_limit, alist_limits, aset_limit, aunblock_task, drop_limit, list_limits, set_limit,
        unblock_task,
    )
    from tasks_app.runtime.api.producer import (
        acreate_task, acreate_tasks, create_task, create_tasks,
    )
    from tasks_app.runtime.api.queues import (
        achange_queue, aget_queue, alist_calendars, alist_queues, apause_queue, aremove_calendar,
        areset_queue, aresume_queue, aset_calendar, change_queue, get_queue, list_calendars,
        list_queues, pause_queue, remove_calendar, reset_queue, resume_queue, set_calendar,
    )
    from tasks_app.runtime.api.tasks import (
        acancel_task, acancel_tasks, aexplain_task, aget_task, aload_large_values, arequeue_task,
        await_task, cancel_task, cancel_tasks, explain_task, get_task, load_large_values,
        requeue_task, wait_task,
    )
    from tasks_app.runtime.handlers.context import AsyncTaskContext, TaskContext
    from tasks_app.runtime.handlers.middleware import middleware
    from tasks_app.runtime.handlers.registry import handler
    from tasks_app.runtime.handlers.sql_handler import sql_handler
    from tasks_app.runtime.hints import hint_tasks
    from tasks_app.runtime.hooks import Notice, subscribe
    from tasks_app.runtime.schedules.declared import schedule
    from tasks_app.runtime.schedules.preview import (
        Preview, abackfill_schedule, apreview, apreview_schedule, backfill_schedule, preview,
        preview_schedule,
    )
    from tasks_app.runtime.schedules.schedules import (
        achange_schedule, acreate_schedule, adisable_schedule, aenable_schedule, aget_schedule,
        alist_schedules, aremove_schedule, arun_schedule, change_schedule, create_schedule,
        disable_schedule, enable_schedule, get_schedule, list_schedules, remove_schedule,
        run_schedule,
    )
    # fmt: on
    # isort: on

__all__ = [
    "AsyncTaskContext", "BatchJob", "BatchStateError", "BatchView", "Breaker", "Cancel",
    "Cancelled", "Changed", "ChunkContext", "ChunkRowError", "CreateOutcome", "DependencyDown",
    "Done", "Ended", "ErrorGroup", "Explanation", "Exponential", "Fail", "File", "Finding",
    "FireAll", "Fixed", "Foreseen", "Group", "GroupProgress", "Handler", "HandlerTimeoutError",
    "InvalidJobError", "InvalidScheduleError", "InvalidSelectionError", "InvalidTaskError",
    "JobRun", "LeaseLostError", "Levels", "Limit", "NewTask", "Notice", "PartResult", "PlanError",
    "Preview", "Query", "Queue", "QueueOptions", "RequeueStage", "Requeued", "Retry", "Schedule",
    "Settings", "Skip", "Snooze", "Step", "Table", "Task", "TaskBuffer", "TaskBufferFullError",
    "TaskContext", "TaskId", "TaskOptions", "TasksError", "UniqueKeyTakenError", "UnknownTaskError",
    "WaitTimeoutError", "Window",
    "aabandon_job", "abackfill_schedule", "abandon_job", "acancel_group", "acancel_task",
    "acancel_tasks", "achange_queue", "achange_schedule", "acreate_group", "acreate_schedule",
    "acreate_task", "acreate_tasks", "adisable_schedule", "adisable_task", "adrop_limit",
    "aenable_schedule", "aenable_task", "aexplain_task", "afill_fingerprints", "aget_group",
    "aget_job", "aget_queue", "aget_schedule", "aget_task", "agroup_results", "ahold_task",
    "alist_calendars", "alist_errors", "alist_jobs", "alist_limits", "alist_queues",
    "alist_schedules", "aload_large_values", "amark_error_known", "amark_error_unknown",
    "amove_task", "apause_queue", "apreview", "apreview_schedule", "arelease_task",
    "aremove_calendar", "aremove_schedule", "areplan_job", "areprioritise_task", "arequeue_task",
    "areschedule_task", "areset_queue", "arestart_job", "aresume_queue", "arun_schedule",
    "arun_task_now", "aset_calendar", "aset_limit", "astart_job", "astop_job", "aunblock_task",
    "await_task", "backfill_schedule", "cancel_group", "cancel_task", "cancel_tasks",
    "change_queue", "change_schedule", "create_group", "create_schedule", "create_task",
    "create_tasks", "disable_schedule", "disable_task", "drop_limit", "enable_schedule",
    "enable_task", "explain_task", "fill_fingerprints", "fire_all", "foresee_bulk", "foresee_rest",
    "get_group", "get_job", "get_queue", "get_schedule", "get_task", "group_results", "handler",
    "hint_tasks", "hold_task", "list_calendars", "list_errors", "list_jobs", "list_limits",
    "list_queues", "list_schedules", "load_large_values", "mark_error_known", "mark_error_unknown",
    "middleware", "move_task", "pause_queue", "preview", "preview_schedule", "release_task",
    "remove_calendar", "remove_schedule", "replan_job", "reprioritise_task", "requeue_errors",
    "requeue_task", "reschedule_task", "reset_queue", "restart_job", "resume_queue", "run_bulk",
    "run_schedule", "run_task_now", "schedule", "set_calendar", "set_limit", "sql_handler",
    "start_bulk", "start_job", "stop_job", "subscribe", "unblock_task", "wait_task",
]  # fmt: skip

_MODULES: dict[str, str] = {}


def _modules() -> dict[str, str]:
    """Return the module of each public name, as the imports above say."""
    if not _MODULES:
        import re  # noqa: PLC0415  not before a name is wanted
        from pkgutil import get_data  # noqa: PLC0415

        source = (get_data(__name__, "__init__.py") or b"").decode()
        imports = re.findall(r"from (tasks_app\.\S+) import (\([^)]+\)|.+)", source)
        found = {name: module for module, names in imports for name in re.findall(r"\w+", names)}
        _MODULES.update(found)  # at once: other threads read it
    return _MODULES


if not TYPE_CHECKING:  # type checkers would let every misspelt name pass

    def __getattr__(name: str) -> object:
        """Fetch a public name from its module, once."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415  not before a name is wanted

        value = getattr(import_module(_modules()[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """List the names that are not fetched yet, too."""
        return sorted({*globals(), *__all__})
