"""docs/reference/handler.md, context.md, hooks.md and exports.md: the public face in Python."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Any

from dev.documents.source import (
    Definition,
    cell,
    class_of,
    definitions,
    docstring,
    fields,
    first_sentence,
    generated,
    has_example,
    is_property,
    methods,
    signature,
)
from tasks_app import _MODULES

HANDLERS = "tasks_app.runtime.handlers"
HOOKS = "tasks_app.runtime.hooks"
WHEN = "tasks_app.domain.schedules.timing"
FOR_THE_EXECUTOR = {"check_awaited", "close", "has_locks", "end_locks", "commit_by", "report"}
SUBJECTS = {
    "Declare": "handler Item sql_handler TaskContext AsyncTaskContext Handler middleware subscribe"
    " Notice schedule Exponential Fixed Levels Breaker",
    "End a run": (
        "Retry Snooze Fail Skip Cancel DependencyDown HandlerTimeoutError TaskCancelledError "
        "LeaseLostError"
    ),
    "Create tasks": "create_task create_tasks acreate_task acreate_tasks NewTask TaskOptions TaskId"
    " CreateOutcome hint_tasks TaskBuffer",
    "Look and act": "get_task cancel_task cancel_tasks requeue_task explain_task wait_task"
    " load_large_values Task"
    " Cancelled Requeued Explanation Finding",
    "Change how a task waits": "run_task_now reschedule_task reprioritise_task move_task hold_task"
    " release_task enable_task disable_task Changed",
    "Many at once": "foresee_bulk foresee_rest start_bulk run_bulk Foreseen Done",
    "Errors": "list_errors mark_error_known mark_error_unknown requeue_errors fill_fingerprints"
    " ErrorGroup RequeueStage",
    "Groups": "create_group extend_group get_group cancel_group group_results Group GroupProgress"
    " Ended",
    "Flows": "Flow failed ended create_flow extend_flow get_flow list_flows cancel_flow rerun_flow"
    " undo_flow Need After CreatedFlow FlowProgress FlowStep FlowState StepEnd",
    "Events": "event send_event get_event list_events EventNeed AwaitedEvent StoredEvent",
    "Queues and limits": "change_queue reset_queue get_queue list_queues pause_queue resume_queue"
    " set_calendar remove_calendar list_calendars Queue QueueOptions Window load_gate"
    " set_limit drop_limit list_limits unblock_task Limit",
    "Schedules": "create_schedule change_schedule remove_schedule enable_schedule disable_schedule"
    " get_schedule list_schedules preview preview_schedule backfill_schedule run_schedule"
    " Schedule Preview FireAll fire_all",
    "Batch jobs": "BatchJob Step Table File Query ChunkContext start_job stop_job restart_job"
    " abandon_job replan_job get_job list_jobs BatchView JobRun PartResult",
    "Settings and errors": "Settings TasksError InvalidTaskError InvalidScheduleError"
    " InvalidSelectionError InvalidJobError BatchStateError ChunkRowError PlanError"
    " TaskBufferFullError UniqueKeyTakenError UnknownTaskError WaitTimeoutError",
}
ON_A_PAGE_OF_ITS_OWN = {"TaskContext"}
EXAMPLES = (
    "Examples run as tests, in this world: `session` is an open Session and `engine` its Engine. "
    "`send_mail` handles `mail.send`, and its task `task_id` waits; that of `card.charge`, "
    "`failed_id`, has failed. Of the job `payroll`, the instance `running_id` runs and "
    "`stopped_id` was stopped. `tests/docs/reading.py` makes it."
)
FOR_ASYNC = (
    "`await aget_task(session, …)` is `get_task` on an AsyncSession, AsyncConnection or psycopg's"
    " AsyncConnection: the same arguments, the same answer. So are the others; `agroup_results` is "
    "for `async for`, and `await_task` takes an AsyncEngine, too."
)


def handler_page() -> str:
    """Return the page about ``@handler``."""
    about = docstring(definitions(f"{HANDLERS}.registry")["handler"])
    lines = generated("@handler", "tasks_app/runtime/handlers/options.py", about)
    lines += ["## Options", "", "`None` is as good as leaving an option out.", ""]
    lines += table(fields(class_of(f"{HANDLERS}.options", "HandlerOptions")), "option")
    lines += ["## A schedule of its own", "", "With `cron=`, `every=` or `at=` the handler has a"]
    lines += ["[schedule](../schedules.md) of its own name.", ""]
    lines += [*table(fields(class_of(WHEN, "When")), "option"), "## A task in SQL", ""]
    lines += ["Takes the same options. How to use it: [tasks in SQL](../sql-tasks.md).", ""]
    of_sql: Any = definitions(f"{HANDLERS}.sql_handler")["sql_handler"]
    return "\n".join([*lines, *definition(of_sql, "sql_handler", level=3)]).rstrip() + "\n"


def context_page() -> str:
    """Return the page about what a handler is given."""
    node = class_of(f"{HANDLERS}.context", "TaskContext")
    about = (
        "A handler gets a `TaskContext` as its first argument. An async handler gets an "
        f"`AsyncTaskContext`, whose session is an `AsyncSession`.\n\n{docstring(node)}"
    )
    lines = generated("TaskContext", "tasks_app/runtime/handlers/context.py", about)
    members = {n: d for n, d in methods(node).items() if n not in FOR_THE_EXECUTOR}
    lines += ["## Attributes", "", "| attribute | type | meaning |", "|---|---|---|"]
    init = next(each for each in node.body if getattr(each, "name", "") == "__init__")
    for name, (_, _, meaning) in fields(init).items():
        lines.append(f"| `ctx.{name}` | `float \\| None` | {cell(meaning)} |")
    for name, each in members.items():
        if is_property(each):
            kind = cell(ast.unparse(each.returns)) if each.returns else ""
            kind = kind.replace("SessionT_co", "Session")
            lines.append(f"| `ctx.{name}` | `{kind}` | {_flat(docstring(each))} |")
    lines += ["", "## Methods", ""]
    for name, each in members.items():
        if not is_property(each):
            lines += definition(each, f"ctx.{name}", level=3)
    return "\n".join(lines).rstrip() + "\n"


def hooks_page() -> str:
    """Return the page about subscribers and middleware."""
    about = "How to use them: [hooks and middleware](../operations/hooks.md)."
    lines = generated("Hooks", "tasks_app/runtime/hooks.py", about)
    subscribe = definitions(HOOKS)["subscribe"]
    assert isinstance(subscribe, Definition)  # noqa: S101
    lines += definition(subscribe, "subscribe", level=2)
    lines += ["## Notice", "", docstring(class_of(HOOKS, "Notice")), ""]
    lines += table(fields(class_of(HOOKS, "Notice")), "field")
    lines += ["## Kinds of notices", "", "| kind | meaning |", "|---|---|"]
    for _, default, meaning in fields(class_of(HOOKS, "NoticeKind")).values():
        kind = ast.literal_eval(default)
        lines.append(f"| `{kind}` | {meaning or f'The task is {kind.upper()}.'} |")
    middleware = definitions(f"{HANDLERS}.middleware")
    assert isinstance(middleware["middleware"], Definition)  # noqa: S101
    lines += ["", *definition(middleware["middleware"], "middleware", level=2)]
    return "\n".join(lines).rstrip() + "\n"


def exports_page(exported: Collection[str] = _MODULES.keys()) -> str:
    """Return the page about all names of ``from tasks_app import …``."""
    named = {name for names in SUBJECTS.values() for name in names.split()}
    twins = sorted(name for name in exported if name not in named and name[1:] in named)
    named |= set(twins)
    if missing := named ^ set(exported):
        raise LookupError(f"dev/documents/api.py gives no subject to: {', '.join(sorted(missing))}")
    about = (
        "What `from tasks_app import …` offers, by subject. Locks for code that is no task are in "
        "`tasks_app.locks` ([locks](../locks.md)), help for your tests is in"
        f" `tasks_app.testing` ([test kit](test-kit.md)).\n\n{EXAMPLES}"
    )
    lines = generated("Exported names", "tasks_app/__init__.py", about)
    for subject, names in SUBJECTS.items():
        lines += [f"## {subject}", "", "| name | what it is |", "|---|---|"]
        lines += [f"| `{name}` | {cell(_what(name))} |" for name in names.split()]
        lines.append("")
        for name in names.split():
            node = _node(name)
            if isinstance(node, Definition):
                lines += definition(node, name, level=3)
            elif name not in ON_A_PAGE_OF_ITS_OWN and has_example(node):
                lines += [f"### {name}", "", docstring(node), ""]
    lines += ["## For async callers", "", FOR_ASYNC, "", "| name | of |", "|---|---|"]
    lines += [f"| `{name}` | [`{name[1:]}`](#{name[1:]}) |" for name in twins]
    return "\n".join(lines).rstrip() + "\n"


def _node(name: str) -> ast.AST:
    return definitions(_MODULES[name]).get(name, ast.Pass())


def _what(name: str) -> str:
    if name == "AsyncTaskContext":  # an alias, made for type checkers only
        return "The `TaskContext` of an async handler: its session is an `AsyncSession`."
    return first_sentence(_node(name))


def definition(node: Definition, name: str, *, level: int) -> list[str]:
    """Return a function's heading, signature and docstring."""
    head = f"{'#' * level} {name.removeprefix('ctx.')}"
    return [head, "", "```python", signature(node, name), "```", "", docstring(node), ""]


def table(found: dict[str, tuple[str, str, str]], what: str) -> list[str]:
    """Return a table of fields."""
    lines = [f"| {what} | type | meaning |", "|---|---|---|"]
    for name, (kind, default, meaning) in found.items():
        said = default and default != "None" and not default.startswith("field(")
        more = f" Default: `{default}`." if said else ""
        lines.append(f"| `{name}` | `{cell(kind)}` | {cell(meaning)}{more} |")
    return [*lines, ""]


def _flat(text: str) -> str:
    """A docstring in one cell."""
    return cell(text.replace("Raises:\n\n", "Raises ").replace("\n- ", "; ").replace("- `", "`")
                .replace("\n\n", " "))  # fmt: skip
