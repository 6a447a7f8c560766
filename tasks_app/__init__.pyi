# What type checkers and editors see of `__init__.py`, which fetches each name on first use.
# fmt: off
# isort: off
from tasks_app.batch.control import (
    aabandon_job as aabandon_job, abandon_job as abandon_job, aget_job as aget_job,
    alist_jobs as alist_jobs, areplan_job as areplan_job, arestart_job as arestart_job,
    astart_job as astart_job, astop_job as astop_job, get_job as get_job, list_jobs as list_jobs,
    replan_job as replan_job, restart_job as restart_job, start_job as start_job,
    stop_job as stop_job,
)
from tasks_app.batch.execution.chunk_context import ChunkContext as ChunkContext
from tasks_app.batch.job import BatchJob as BatchJob
from tasks_app.batch.step import Step as Step
from tasks_app.domain.batch.records import (
    BatchView as BatchView, JobRun as JobRun, PartResult as PartResult,
)
from tasks_app.domain.config.settings import Settings as Settings
from tasks_app.domain.creation import NewTask as NewTask
from tasks_app.domain.errors import (
    BatchStateError as BatchStateError, ChunkRowError as ChunkRowError,
    HandlerTimeoutError as HandlerTimeoutError, InvalidJobError as InvalidJobError,
    InvalidScheduleError as InvalidScheduleError, InvalidSelectionError as InvalidSelectionError,
    InvalidTaskError as InvalidTaskError, LeaseLostError as LeaseLostError, PlanError as PlanError,
    TaskBufferFullError as TaskBufferFullError, TaskCancelledError as TaskCancelledError,
    TasksError as TasksError, UniqueKeyTakenError as UniqueKeyTakenError,
    UnknownTaskError as UnknownTaskError, WaitTimeoutError as WaitTimeoutError,
)
from tasks_app.domain.events import (
    AwaitedEvent as AwaitedEvent, EventNeed as EventNeed, StoredEvent as StoredEvent,
    event as event,
)
from tasks_app.domain.explain.explanation import Explanation as Explanation
from tasks_app.domain.finding import Finding as Finding
from tasks_app.domain.flow_control.circuit_breaker import Breaker as Breaker
from tasks_app.domain.flow_control.limits import Limit as Limit
from tasks_app.domain.flows import (
    After as After, CreatedFlow as CreatedFlow, Flow as Flow, FlowProgress as FlowProgress,
    FlowState as FlowState, FlowStep as FlowStep, Need as Need, StepEnd as StepEnd,
    ended as ended, failed as failed,
)
from tasks_app.domain.groups import Ended as Ended, Group as Group, GroupProgress as GroupProgress
from tasks_app.domain.handlers.outcomes import (
    Cancel as Cancel, DependencyDown as DependencyDown, Fail as Fail, Retry as Retry, Skip as Skip,
    Snooze as Snooze,
)
from tasks_app.domain.handlers.spec import Handler as Handler
from tasks_app.domain.partition.records import File as File, Table as Table
from tasks_app.domain.queues import Queue as Queue, QueueOptions as QueueOptions, Window as Window
from tasks_app.domain.schedules.misfire import FireAll as FireAll, fire_all as fire_all
from tasks_app.domain.schedules.schedule import Schedule as Schedule
from tasks_app.domain.tasks.options import TaskOptions as TaskOptions
from tasks_app.domain.tasks.records import (
    CreateOutcome as CreateOutcome, Task as Task, TaskId as TaskId,
)
from tasks_app.domain.tasks.retry_policy import (
    Exponential as Exponential, Fixed as Fixed, Levels as Levels,
)
from tasks_app.pool.batch.sources.relation import Query as Query
from tasks_app.pool.error_groups import ErrorGroup as ErrorGroup
from tasks_app.pool.tasks.cancel import Cancelled as Cancelled
from tasks_app.pool.tasks.requeue import Requeued as Requeued
from tasks_app.runtime.api.amend_waiting import (
    Changed as Changed, adisable_task as adisable_task, aenable_task as aenable_task,
    ahold_task as ahold_task, amove_task as amove_task, arelease_task as arelease_task,
    areprioritise_task as areprioritise_task, areschedule_task as areschedule_task,
    arun_task_now as arun_task_now, disable_task as disable_task, enable_task as enable_task,
    hold_task as hold_task, move_task as move_task, release_task as release_task,
    reprioritise_task as reprioritise_task, reschedule_task as reschedule_task,
    run_task_now as run_task_now,
)
from tasks_app.runtime.api.buffer import TaskBuffer as TaskBuffer
from tasks_app.runtime.api.bulk import (
    Foreseen as Foreseen, RequeueStage as RequeueStage, foresee_bulk as foresee_bulk,
    foresee_rest as foresee_rest, requeue_errors as requeue_errors, run_bulk as run_bulk,
    start_bulk as start_bulk,
)
from tasks_app.runtime.api.bulk_step import Done as Done
from tasks_app.runtime.api.errors import (
    afill_fingerprints as afill_fingerprints, alist_errors as alist_errors,
    amark_error_known as amark_error_known, amark_error_unknown as amark_error_unknown,
    fill_fingerprints as fill_fingerprints, list_errors as list_errors,
    mark_error_known as mark_error_known, mark_error_unknown as mark_error_unknown,
)
from tasks_app.runtime.api.events import (
    aget_event as aget_event, alist_events as alist_events, asend_event as asend_event,
    get_event as get_event, list_events as list_events, send_event as send_event,
)
from tasks_app.runtime.api.flows import (
    acancel_flow as acancel_flow, acreate_flow as acreate_flow, aextend_flow as aextend_flow,
    aget_flow as aget_flow, alist_flows as alist_flows, arerun_flow as arerun_flow,
    cancel_flow as cancel_flow, create_flow as create_flow, extend_flow as extend_flow,
    get_flow as get_flow, list_flows as list_flows, rerun_flow as rerun_flow,
)
from tasks_app.runtime.api.groups import (
    acancel_group as acancel_group, acreate_group as acreate_group,
    aextend_group as aextend_group, aget_group as aget_group, agroup_results as agroup_results,
    cancel_group as cancel_group, create_group as create_group, extend_group as extend_group,
    get_group as get_group, group_results as group_results,
)
from tasks_app.runtime.api.limits import (
    adrop_limit as adrop_limit, alist_limits as alist_limits, aset_limit as aset_limit,
    aunblock_task as aunblock_task, drop_limit as drop_limit, list_limits as list_limits,
    set_limit as set_limit, unblock_task as unblock_task,
)
from tasks_app.runtime.api.producer import (
    acreate_task as acreate_task, acreate_tasks as acreate_tasks, create_task as create_task,
    create_tasks as create_tasks,
)
from tasks_app.runtime.api.queues import (
    achange_queue as achange_queue, aget_queue as aget_queue, alist_calendars as alist_calendars,
    alist_queues as alist_queues, apause_queue as apause_queue,
    aremove_calendar as aremove_calendar, areset_queue as areset_queue,
    aresume_queue as aresume_queue, aset_calendar as aset_calendar, change_queue as change_queue,
    get_queue as get_queue, list_calendars as list_calendars, list_queues as list_queues,
    pause_queue as pause_queue, remove_calendar as remove_calendar, reset_queue as reset_queue,
    resume_queue as resume_queue, set_calendar as set_calendar,
)
from tasks_app.runtime.api.tasks import (
    acancel_task as acancel_task, acancel_tasks as acancel_tasks, aexplain_task as aexplain_task,
    aget_task as aget_task, aload_large_values as aload_large_values,
    arequeue_task as arequeue_task, await_task as await_task, cancel_task as cancel_task,
    cancel_tasks as cancel_tasks, explain_task as explain_task, get_task as get_task,
    load_large_values as load_large_values, requeue_task as requeue_task, wait_task as wait_task,
)
from tasks_app.runtime.api.undo import aundo_flow as aundo_flow, undo_flow as undo_flow
from tasks_app.runtime.flow_control.load_gates import load_gate as load_gate
from tasks_app.runtime.handlers.bulk import Item as Item
from tasks_app.runtime.handlers.context import (
    AsyncTaskContext as AsyncTaskContext, TaskContext as TaskContext,
)
from tasks_app.runtime.handlers.middleware import middleware as middleware
from tasks_app.runtime.handlers.registry import handler as handler
from tasks_app.runtime.handlers.sql_handler import sql_handler as sql_handler
from tasks_app.runtime.hints import hint_tasks as hint_tasks
from tasks_app.runtime.hooks import Notice as Notice, subscribe as subscribe
from tasks_app.runtime.schedules.declared import schedule as schedule
from tasks_app.runtime.schedules.preview import (
    Preview as Preview, abackfill_schedule as abackfill_schedule, apreview as apreview,
    apreview_schedule as apreview_schedule, backfill_schedule as backfill_schedule,
    preview as preview, preview_schedule as preview_schedule,
)
from tasks_app.runtime.schedules.schedules import (
    achange_schedule as achange_schedule, acreate_schedule as acreate_schedule,
    adisable_schedule as adisable_schedule, aenable_schedule as aenable_schedule,
    aget_schedule as aget_schedule, alist_schedules as alist_schedules,
    aremove_schedule as aremove_schedule, arun_schedule as arun_schedule,
    change_schedule as change_schedule, create_schedule as create_schedule,
    disable_schedule as disable_schedule, enable_schedule as enable_schedule,
    get_schedule as get_schedule, list_schedules as list_schedules,
    remove_schedule as remove_schedule, run_schedule as run_schedule,
)

_MODULES: dict[str, str]
