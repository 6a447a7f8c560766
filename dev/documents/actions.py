"""docs/reference/actions.md: what people do, where it is offered, and who may."""

from __future__ import annotations

import inspect

from dev.documents.source import cell, generated
from tasks_app.actions.action import Action, taken
from tasks_app.actions.table import ACTIONS

ABOUT = """
What people do to tasks, queues, schedules and the rest. A route also exists below `/api`, where it
takes JSON and answers `{"said": …, "changed": …}` ([dashboard](../operations/dashboard.md)). A
command has the rights of its database role and asks for no other. Each action is one transaction,
with its line in the audit. On many tasks at once the same words start a
[bulk](../operations/bulk.md).
"""
HOW = """
## Add one

An action is a function with a record, in `tasks_app/actions`, in the file of what it is for:

```text
@action(Role.OPERATOR, "Unblock", "/tasks/{task_id}/unblock", command="unblock")
def unblock(connection: Connection, task_id: int, _: Nothing, by: str) -> ActionResult:
    \"\"\"Let the tasks behind a failed one of their order key go on.\"\"\"
    if unblock_task(connection, task_id, by=by):
        return ActionResult("The tasks behind it go on.", {"id": task_id, "unblocked": True})
    text = f"Task {task_id} holds no order key. Run: tasks-app show {task_id}"
    return ActionResult(text, changed=False)
```

1. **A verb** in `tasks_app/runtime/api`, in the caller's transaction: it changes rows by a
   statement of `tasks_app/pool` and writes the line of the audit (`note`). Where programs may
   call it, too, its async twin is one line, `aunblock_task = made_async(unblock_task)`; both
   names stand in `tasks_app/__init__.py`, its `.pyi` and `SUBJECTS` of `dev/documents/api.py`,
   and each has an example in its docstring. What may meet very many rows is a bulk, not an
   action.
2. **A function** that calls it. Its docstring is the help of the command and the summary in
   OpenAPI. It returns `ActionResult`: a sentence, what `--json` prints, and whether anything
   changed. Without fields the command says the sentence and exits with 1: the answer is no.
   Where there is nothing to act on it raises `NotThereError`.
3. **The record** is the decorator: role, label, the path of the route with the name of what it
   is for (one that ends with `_id` is a number), and `command`, its words behind `tasks-app`.
   What it must be told is a dataclass, `takes`; `param()` behind each field says its option, its
   help, and its label in a form. `takes=Why` asks for a reason at every door; a command always
   takes `--why`, which reaches the audit in `by`. A path that another one matches, too, stands
   before it.
4. **The command.** With `command="queues weigh"` it joins the group `queues` by itself. A new
   first word needs a line in `SECTIONS` (`tasks_app/cli/group.py`).
5. **The button.** On a page: `{{ button("tasks/unblock", task.id) }}`, or `{{ form(…) }}` where
   it asks for something. Who may not, does not see it.
6. **What is done to tasks** one by one and in bulks is a line of `OF_TASKS` and a word of
   `BulkAction`.
7. **Tests** of what it does and of the click (`@posts`,
   `tests/dashboard/test_browser_actions.py`). Roles, the security matrix, OpenAPI and this page
   (`make docs`) follow the record; a test asks for a line in `TYPED` of
   `tests/cli/test_listing.py`, and for a page of docs that names the command.
"""


def page() -> str:
    """Return the page."""
    lines = generated("Actions", "tasks_app/actions", ABOUT)
    lines += ["| action | command | route | role | is told |", "|---|---|---|---|---|"]
    lines += [_line(each) for each in ACTIONS]
    return "\n".join(lines) + "\n" + HOW


def _line(action: Action) -> str:
    what = (inspect.getdoc(action.run) or "").partition("\n")[0]
    command = f"`{action.command}`" if action.command else ""
    route = f"`{action.path.replace(':path', '')}`" if action.path else ""
    told = ", ".join(f"`{each.name}`" for each in taken(action.takes) if each.name != "page")
    return f"| {cell(what)} | {command} | {route} | {action.role.name.lower()} | {told} |"
