"""docs/reference/actions.md: what people do, where it is offered, and who may."""

from __future__ import annotations

import inspect

from documents.source import cell, generated
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
@action(Role.ADMIN, "Share it no more", "/queues/{queue:path}/unshare")
def unshare(connection: Connection, queue: str, _: Nothing, by: str) -> Done:
    \"\"\"Let priority and age alone decide in the queue.\"\"\"
    if limits.unshare_queue(connection, queue, by=by):
        return Done(f"In queue {queue} priority and age decide.")
    return Done("Nothing was changed: it is not shared.", changed=False)
```

1. **A verb** in `tasks_app/runtime/api`, which Python programs call, too. It changes the rows by
   a statement of `tasks_app/pool` and writes the line of the audit (`note`), in the caller's
   transaction. Its async twin is one line: `aunshare_queue = made_async(unshare_queue)`.
2. **A function** that calls it. Its docstring is the help of the command and the summary in
   OpenAPI. It returns `Done`: a sentence, what `--json` prints, and whether anything changed.
   Without fields the command says the sentence and exits with 1. Where there is nothing to act
   on it raises `NotThereError`.
3. **The record** is the decorator: role, label, the path of the route with the name of what it
   is for (one that ends with `_id` is a number), and `command`, its words behind `tasks-app`.
   What it must be told is a dataclass, `takes`; `param()` behind each field says its option, its
   help, and its label in a form.
4. **The command.** With `command="queues weigh"` it joins the group `queues` by itself. A new
   first word needs a line in `COMMANDS` (`tasks_app/cli/group.py`).
5. **The button.** On a page: `{{ button("queues/unshare", queue) }}`, or `{{ form(…) }}` where
   it asks for something.
6. **Tests**: what it does, in the folder of its door or room, and the click (`@posts`,
   `tests/dashboard/test_browser_actions.py`). The security matrix, OpenAPI and this page (`make
   docs`) follow the record.
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
