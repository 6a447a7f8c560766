"""tasks_app: durable jobs on PostgreSQL, with Celery or without.

Importing this package imports nothing else: each name is fetched from its module on first use. So
every start of ``celery``, which loads our commands, and every probe costs next to nothing.
"""

from __future__ import annotations

# The public names of each module. Type checkers read them in `__init__.pyi`.
_NAMES = {
    "tasks_app.batch.control": (
        "aabandon_job abandon_job aget_job alist_jobs areplan_job arestart_job astart_job "
        "astop_job get_job list_jobs replan_job restart_job start_job stop_job"
    ),
    "tasks_app.batch.execution.chunk_context": "ChunkContext",
    "tasks_app.batch.job": "BatchJob",
    "tasks_app.batch.step": "Step",
    "tasks_app.domain.batch.records": "BatchView JobRun PartResult",
    "tasks_app.domain.config.settings": "Settings",
    "tasks_app.domain.creation": "NewTask",
    "tasks_app.domain.errors": (
        "BatchStateError ChunkRowError HandlerTimeoutError InvalidJobError InvalidScheduleError "
        "InvalidSelectionError InvalidTaskError LeaseLostError PlanError TaskBufferFullError "
        "TaskCancelledError TasksError UniqueKeyTakenError UnknownTaskError WaitTimeoutError"
    ),
    "tasks_app.domain.events": "AwaitedEvent EventNeed StoredEvent event",
    "tasks_app.domain.explain.explanation": "Explanation",
    "tasks_app.domain.finding": "Finding",
    "tasks_app.domain.flow_control.circuit_breaker": "Breaker",
    "tasks_app.domain.flow_control.limits": "Limit",
    "tasks_app.domain.flows": (
        "After CreatedFlow Flow FlowProgress FlowState FlowStep Need StepEnd ended failed"
    ),
    "tasks_app.domain.groups": "Ended Group GroupProgress",
    "tasks_app.domain.handlers.outcomes": "Cancel DependencyDown Fail Retry Skip Snooze",
    "tasks_app.domain.handlers.spec": "Handler",
    "tasks_app.domain.partition.records": "File Table",
    "tasks_app.domain.queues": "Queue QueueOptions Window",
    "tasks_app.domain.schedules.misfire": "FireAll fire_all",
    "tasks_app.domain.schedules.schedule": "Schedule",
    "tasks_app.domain.tasks.options": "TaskOptions",
    "tasks_app.domain.tasks.records": "CreateOutcome Task TaskId",
    "tasks_app.domain.tasks.retry_policy": "Exponential Fixed Levels",
    "tasks_app.pool.batch.sources.relation": "Query",
    "tasks_app.pool.error_groups": "ErrorGroup",
    "tasks_app.pool.tasks.cancel": "Cancelled",
    "tasks_app.pool.tasks.requeue": "Requeued",
    "tasks_app.runtime.api.amend_waiting": (
        "Changed adisable_task aenable_task ahold_task amove_task arelease_task "
        "areprioritise_task areschedule_task arun_task_now disable_task enable_task hold_task "
        "move_task release_task reprioritise_task reschedule_task run_task_now"
    ),
    "tasks_app.runtime.api.buffer": "TaskBuffer",
    "tasks_app.runtime.api.bulk": (
        "Foreseen RequeueStage foresee_bulk foresee_rest requeue_errors run_bulk start_bulk"
    ),
    "tasks_app.runtime.api.bulk_step": "Done",
    "tasks_app.runtime.api.errors": (
        "afill_fingerprints alist_errors amark_error_known amark_error_unknown fill_fingerprints "
        "list_errors mark_error_known mark_error_unknown"
    ),
    "tasks_app.runtime.api.events": (
        "aget_event alist_events asend_event get_event list_events send_event"
    ),
    "tasks_app.runtime.api.flows": (
        "acancel_flow acreate_flow aextend_flow aget_flow alist_flows arerun_flow cancel_flow "
        "create_flow extend_flow get_flow list_flows rerun_flow"
    ),
    "tasks_app.runtime.api.groups": (
        "acancel_group acreate_group aextend_group aget_group agroup_results cancel_group "
        "create_group extend_group get_group group_results"
    ),
    "tasks_app.runtime.api.limits": (
        "adrop_limit alist_limits aset_limit aunblock_task drop_limit list_limits set_limit "
        "unblock_task"
    ),
    "tasks_app.runtime.api.producer": "acreate_task acreate_tasks create_task create_tasks",
    "tasks_app.runtime.api.queues": (
        "achange_queue aget_queue alist_calendars alist_queues apause_queue aremove_calendar "
        "areset_queue aresume_queue aset_calendar change_queue get_queue list_calendars "
        "list_queues pause_queue remove_calendar reset_queue resume_queue set_calendar"
    ),
    "tasks_app.runtime.api.tasks": (
        "acancel_task acancel_tasks aexplain_task aget_task aload_large_values arequeue_task "
        "await_task cancel_task cancel_tasks explain_task get_task load_large_values requeue_task "
        "wait_task"
    ),
    "tasks_app.runtime.api.undo": "aundo_flow undo_flow",
    "tasks_app.runtime.flow_control.load_gates": "load_gate",
    "tasks_app.runtime.handlers.bulk": "Item",
    "tasks_app.runtime.handlers.context": "AsyncTaskContext TaskContext",
    "tasks_app.runtime.handlers.middleware": "middleware",
    "tasks_app.runtime.handlers.registry": "handler",
    "tasks_app.runtime.handlers.sql_handler": "sql_handler",
    "tasks_app.runtime.hints": "hint_tasks",
    "tasks_app.runtime.hooks": "Notice subscribe",
    "tasks_app.runtime.schedules.declared": "schedule",
    "tasks_app.runtime.schedules.preview": (
        "Preview abackfill_schedule apreview apreview_schedule backfill_schedule preview "
        "preview_schedule"
    ),
    "tasks_app.runtime.schedules.schedules": (
        "achange_schedule acreate_schedule adisable_schedule aenable_schedule aget_schedule "
        "alist_schedules aremove_schedule arun_schedule change_schedule create_schedule "
        "disable_schedule enable_schedule get_schedule list_schedules remove_schedule "
        "run_schedule"
    ),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)  # noqa: PLE0605  type checkers read the other file


def __getattr__(name: str) -> object:
    """Fetch a public name from its module, once."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  not before a name is wanted

    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the names that are not fetched yet, too."""
    return sorted({*globals(), *__all__})
