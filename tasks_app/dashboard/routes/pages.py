"""All pages: the address of each, what it reads, and the template that shows it."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.actions.action import Role
from tasks_app.dashboard.html import place_of
from tasks_app.dashboard.reader import AppState
from tasks_app.dashboard.routes.parameters import cause, row_id
from tasks_app.dashboard.routes.reading import PAGES, Filter, Visit, page
from tasks_app.dashboard.security import HttpError, requires
from tasks_app.domain.batch.records import BatchStatus
from tasks_app.domain.flows import FlowState
from tasks_app.domain.schedules.misfire import Overlap
from tasks_app.domain.tasks.states import Pool, State
from tasks_app.monitor.checks.work import what_runs
from tasks_app.monitor.metric_catalogue import CONTENT_TYPE
from tasks_app.monitor.pages import batches, errors, flows, overview, queues, schedules, tasks
from tasks_app.monitor.pages.history import RANGES, History, task_history
from tasks_app.monitor.pages.task import TaskPage, task_page
from tasks_app.pool.statistics.read import unkept
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.handlers.registry import load_handlers

FINDINGS_S, HISTORY_S = 10.0, 30.0
PAUSE = 100  # an open page takes at most a hundredth of a core of the database for each read


def _within(visit: Visit) -> str:
    within = visit.request.query_params.get("within", "24h")
    if within not in RANGES:
        raise HttpError(400, f"within is not one of {', '.join(RANGES)}. Correct the address.")
    return within


def _beside(visit: Visit) -> dict[str, Any]:
    reader, settings = visit.state.reader, visit.state.settings
    read = partial(overview.findings, reader.engine, settings)
    found = reader.kept_or_stale("findings", read, FINDINGS_S, PAUSE)
    runs = visit.read(what_runs, settings=True, pause=PAUSE)
    return {"findings": found, "runs": runs, "within": _within(visit)}


@page(
    "/", "overview/page.html", api="/api/overview", more=_beside, parts=("now", "queues", "causes")
)
def show_overview(visit: Visit) -> overview.Overview:
    """Pending, due, running and failed tasks by queue and name."""
    return visit.read(overview.overview, settings=True, pause=PAUSE)


@page(
    "/history",
    "overview/history.html",
    query=("within",),
    parts=("names",),
    more=lambda _: {"ranges": list(RANGES)},
)
def show_history(visit: Visit) -> History:
    """How tasks ended within 1h, 24h or 7d, and how long they waited and ran."""
    return visit.read(task_history, _within(visit), keep_s=HISTORY_S)


@page("/find", "find.html", query=("q",), leads=lambda hits: hits.only and place_of(hits.only))
def show_found(visit: Visit) -> overview.Hits:
    """What has this id, key or name, or contains it."""
    return visit.read(overview.find, visit.given("q").get("q", ""))


@page(
    "/tasks",
    "tasks/list.html",
    query=("before",),
    export=(tasks.TaskLine, tasks.page_by_page),
    filters=(
        Filter("pool", "Pool", tuple(Pool)),
        Filter("state", "State", tuple(State)),
        Filter("name", "Name"),
        Filter("queue", "Queue"),
        Filter("biz_key", "Business key"),
        Filter("since", "Created within", tasks.SINCE, every="ever"),
        Filter("error", "Error contains", rare=True),
        Filter("payload", "Payload contains", rare=True),
        Filter("schedule", "Schedule", rare=True),
        Filter("sub_status", "Sub-status", rare=True),
        Filter("group", "Group", kind="id", rare=True),
    ),
)
def show_tasks(visit: Visit) -> tasks.Tasks:
    """Tasks of all pools, the newest first; `before` is `older` of the page before."""
    return visit.read(tasks.tasks, visit.filters, before=visit.before, settings=True)


def _no_task(visit: Visit, task_id: int) -> NoReturn:
    gone = visit.state.reader.read("unkept", unkept)
    words = f" {gone.words}" if gone else ""
    raise HttpError(404, f"There is no task {task_id}. It may have been pruned.{words}")


@page("/tasks/{task_id}", "tasks/task.html", live="tasks/live.html")
def show_task(visit: Visit) -> TaskPage:
    """One task, its failed attempts, and why it does not run."""
    task_id = visit.id("task_id")
    return visit.read(task_page, task_id, settings=True) or _no_task(visit, task_id)


@page("/tasks/{task_id}/decrypted", "tasks/decrypted.html", role=Role.ADMIN, api=None)
def show_decrypted(visit: Visit) -> TaskPage:
    """Show what is encrypted, by the keys of this process; nothing of it is kept."""
    task_id, settings = visit.id("task_id"), visit.state.settings
    with visit.state.reader.engine.connect() as connection:
        found = task_page(connection, task_id, settings=settings, decrypt=True)
    return found or _no_task(visit, task_id)


@page(
    "/errors",
    "errors/list.html",
    filters=(
        Filter("name", "Name"),
        Filter("queue", "Queue"),
        Filter("since", "Failed within", tuple(errors.SINCE), every="ever"),
        Filter("known", "Known", errors.KNOWN),
    ),
)
def show_errors(visit: Visit) -> errors.Errors:
    """The error pool by cause, most tasks first."""
    return visit.read(errors.errors, visit.filters)


def _instant(text: str) -> datetime:
    at: datetime | None = None
    with suppress(ValueError):
        at = datetime.fromisoformat(text.replace(" ", "+"))  # as a + arrives
    if at is None or at.tzinfo is None:
        raise HttpError(400, "before is an instant with a zone. Correct the address.")
    return at


@page(
    "/errors/{fingerprint}",
    "errors/error.html",
    query=("before", "before_id"),
    missing="No failed task has the fingerprint {fingerprint} any more.",
)
def show_error(visit: Visit) -> errors.ErrorPage | None:
    """One cause and its tasks; `older` goes into `before` and `before_id`."""
    fingerprint, before = cause(visit.request), None
    if given := visit.given("before", "before_id"):
        before = _instant(given.get("before", "")), row_id(given.get("before_id", "0"))
    return visit.read(errors.error_page, fingerprint, before=before)


@page("/bulks/{token}", "bulks/page.html", live="bulks/live.html")
def show_bulk(visit: Visit) -> errors.BulkPage:
    """A bulk, what it did, and what became of its tasks."""
    return read_bulk(visit.id("token"), visit.state)


def read_bulk(token: int, state: AppState) -> errors.BulkPage:
    found = state.reader.read(("bulk", token), lambda c: errors.bulk_page(c, token))
    if found is None:
        raise HttpError(404, f"There is no bulk {token}. The audit lists all bulks.")
    return found


@page(
    "/schedules",
    "schedules/list.html",
    live="schedules/lines.html",
    filters=(
        Filter("enabled", "State", schedules.STANDINGS, labels=("enabled", "paused", "broken")),
        Filter("text", "Name or task contains"),
        Filter("queue", "Queue"),
    ),
    query=("after",),
)
def show_schedules(visit: Visit) -> schedules.Schedules:
    """Schedules by name, with their last instants; `after` is `following` of the page before."""
    after = visit.given("after").get("after")
    return visit.read(schedules.schedules, visit.filters, after=after)


@page(
    "/schedules/{name:path}",
    "schedules/schedule.html",
    live="schedules/live.html",
    query=schedules.RULE,
    missing="There is no schedule {name}. It may have been removed.",
    more=lambda _: {"overlaps": list(Overlap)},
)
def show_schedule(visit: Visit) -> schedules.SchedulePage | None:
    """One schedule; with fields of a change, `change` is a preview."""
    name, given = visit.name("name"), visit.given(*schedules.RULE)
    return visit.read(schedules.schedule_page, name, given)


def _its_name(visit: Visit) -> dict[str, Any]:
    """Return the queue to which forms of limits, breakers and locks lead back."""
    return {"queue": visit.request.path_params.get("queue", "")}


@page(
    "/queues",
    "queues/list.html",
    live="queues/live.html",
    filters=(Filter("text", "Name contains"),),
    more=_its_name,
)
def show_queues(visit: Visit) -> queues.Queues:
    """All queues, those that stand still first; breakers, limits and locks."""
    return visit.read(queues.queues, visit.filters, settings=True)


@page(
    "/queues/{queue:path}",
    "queues/queue.html",
    live="queues/queue_live.html",
    more=lambda visit: {**_its_name(visit), "runs": visit.read(what_runs, settings=True)},
)
def show_queue(visit: Visit) -> queues.QueuePage:
    """One queue: its state, tasks by name, workers, limits, shares, breakers and locks."""
    queue = visit.name("queue")
    if queue == EVERY_QUEUE:
        raise HttpError(404, "No queue is called *. See the page Queues.")
    return visit.read(queues.queue_page, queue, settings=True)


@page("/groups", "groups/list.html", query=("open",))
def show_groups(visit: Visit) -> batches.Groups:
    """The newest groups; `open=yes`: those that are not over."""
    return visit.read(batches.groups, only_open=visit.given("open") == {"open": "yes"})


@page(
    "/groups/{group_id}",
    "groups/group.html",
    live="groups/live.html",
    missing="There is no group {group_id}. It may have been pruned.",
    leads=lambda model: f"/flows/{model.group.id}" if model.group.flow else None,
)
def show_group(visit: Visit) -> batches.GroupPage | None:
    """One group, and the first of its members."""
    return visit.read(batches.group_page, visit.id("group_id"))


@page(
    "/flows",
    "flows/list.html",
    filters=(
        Filter("name", "Name"),
        Filter("key", "Key"),
        Filter("state", "State", tuple(FlowState)),
    ),
    query=("before",),
)
def show_flows(visit: Visit) -> flows.Flows:
    """Flows, the newest first; `before` is `older` of the page before."""
    return visit.read(flows.flows, visit.filters, before=visit.before)


@page(
    "/events",
    "flows/events.html",
    filters=(Filter("key", "Key"), Filter("state", "State", ("waiting",))),
    more=lambda visit: {"filters": visit.filters},
)
def show_events(visit: Visit) -> flows.Events:
    """Events that tasks wait for, the longest wait first, then those sent, the newest first."""
    key, waiting = visit.filters.get("key"), "state" in visit.filters
    return visit.read(flows.event_list, key=key, waiting=waiting)


@page(
    "/flows/{flow_id}",
    "flows/flow.html",
    live="flows/live.html",
    missing="There is no flow {flow_id}. It may have been pruned.",
)
def show_flow(visit: Visit) -> flows.FlowPage | None:
    """One flow and its steps."""
    return visit.read(flows.flow_page, visit.id("flow_id"))


@page(
    "/batches",
    "batches/list.html",
    filters=(Filter("job", "Job"), Filter("status", "Status", tuple(BatchStatus))),
)
def show_batches(visit: Visit) -> batches.Batches:
    """The newest instances of batch jobs."""
    return visit.read(batches.batches, visit.filters)


@page(
    "/batches/{batch_id}",
    "batches/batch.html",
    live="batches/live.html",
    missing="There is no batch {batch_id}. It may have been pruned.",
)
def show_batch(visit: Visit) -> batches.BatchPage | None:
    """One instance with its steps and their partitions."""
    load_handlers(visit.state.settings.modules)  # the job's declaration has the order of steps
    return visit.read(batches.batch_page, visit.id("batch_id"))


@page("/workers", "workers/page.html", live="workers/live.html")
def show_workers(visit: Visit) -> overview.Workers:
    """The children of all workers, and what each runs."""
    return visit.read(overview.workers, settings=True)


@page("/workers/stacks", "workers/stacks.html", live="workers/stacks_live.html", query=("worker",))
def show_stacks(visit: Visit) -> overview.StacksPage:
    """What threads and coroutines of `worker` did when somebody last asked."""
    return visit.read(overview.stacks_page, visit.given("worker").get("worker", ""))


@page(
    "/audit",
    "audit/list.html",
    filters=(
        Filter("who", "Who"),
        Filter("action", "Action"),
        Filter("task", "Task id", kind="id"),
    ),
    query=("before",),
)
def show_audit(visit: Visit) -> overview.Audit:
    """What operators did, the newest first; filters look at the newest 100,000 lines."""
    return visit.read(overview.audit, visit.filters, before=visit.before)


@requires(Role.VIEWER, scraped=True)
async def show_metrics(_request: Request, state: AppState) -> Response:
    """Return what ``tasks-app metrics`` shows, for a Prometheus without a process of its own."""
    text = await run_in_threadpool(state.metrics.read)
    return Response(text, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})


ROUTES = (*(route for each in PAGES for route in each.routes), ("/metrics", show_metrics, "GET"))
