"""What operators do to schedules."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection

from tasks_app.actions.action import ActionResult, Nothing, Role, action
from tasks_app.domain.durations import to_the_second
from tasks_app.domain.errors import NotThereError
from tasks_app.domain.schedules.schedule import Schedule
from tasks_app.runtime.schedules import schedules as verbs


def _not_there(name: str) -> NotThereError:
    return NotThereError(f"There is no schedule {name}. Run: tasks-app schedules list")


def _get(connection: Connection, name: str) -> Schedule:
    found = verbs.get_schedule(connection, name)
    if found is None:
        raise _not_there(name)
    return found


@dataclass(frozen=True, slots=True)
class Rule:
    """What changes of a schedule; what is left out stays."""

    cron: str | None = None
    every: str | None = None
    timezone: str | None = None
    missed: str | None = None
    overlap: str | None = None
    queue: str | None = None
    priority: int | None = None


@action(Role.ADMIN, "Save the change", "/schedules/{name:path}/change", takes=Rule)
def change(connection: Connection, name: str, rule: Rule, by: str) -> ActionResult:
    """Change the rule, queue or priority. What is left out stays."""
    found = _get(connection, name)
    given: Any = {word: value for word, value in asdict(rule).items() if value is not None}
    changed = verbs.change_schedule(connection, name, by=by, **given)
    if changed is None:
        raise _not_there(name)
    if changed == found:
        return ActionResult("Nothing was changed: it has these values already.", changed=False)
    return ActionResult("Changed. Code that declares the schedule leaves the change alone.")


_REMOVE = {"command": "schedules remove", "page": lambda _: "/schedules"}


@action(Role.ADMIN, "Remove", "/schedules/{name:path}/remove", **_REMOVE)
def remove(connection: Connection, name: str, _: Nothing, by: str) -> ActionResult:
    """Delete a schedule; its tasks stay. One that code declares comes back: disable it."""
    if not verbs.remove_schedule(connection, name, by=by):
        raise _not_there(name)
    return ActionResult(
        f"Schedule {name} was removed. Its tasks stay.", {"name": name, "removed": True}
    )


@action(Role.OPERATOR, "Run now", "/schedules/{name:path}/run", command="schedules run")
def run(connection: Connection, name: str, _: Nothing, by: str) -> ActionResult:
    """Create a task of a schedule now. Its next instant stays."""
    made = verbs.run_schedule(connection, name, by=by)
    if made is None:
        raise _not_there(name)
    fields = {"name": name, "id": int(made), "created": made.created}
    if not made.created:
        return ActionResult(
            f"No task was created: task {made} has its unique_key.", fields, changed=False
        )
    return ActionResult(f"Task {made} was created. The next instants stay as they are.", fields)


@action(Role.OPERATOR, "Pause", "/schedules/{name:path}/pause", command="schedules disable")
def disable(connection: Connection, name: str, _: Nothing, by: str) -> ActionResult:
    """Stop a schedule. The tasks that it would create meanwhile are not created later."""
    fields = {"name": name, "enabled": False}
    if not _get(connection, name).enabled:
        return ActionResult("Nothing was changed: it is paused.", fields, changed=False)
    if not verbs.disable_schedule(connection, name, by=by):
        raise _not_there(name)
    return ActionResult("Paused. Instants until it is resumed create no task.", fields)


@action(Role.OPERATOR, "Resume", "/schedules/{name:path}/resume", command="schedules enable")
def enable(connection: Connection, name: str, _: Nothing, by: str) -> ActionResult:
    """Let a schedule fire again, from now on."""
    found = _get(connection, name)
    fields = {"name": name, "enabled": True, "next_run_at": found.next_run_at}
    if found.enabled and found.remark is None:
        return ActionResult("Nothing was changed: it is not paused.", fields, changed=False)
    if not verbs.enable_schedule(connection, name, by=by):
        raise _not_there(name)
    at = fields["next_run_at"] = _get(connection, name).next_run_at
    return ActionResult(
        f"Resumed, from now on. Next: {to_the_second(at) if at else 'never'}", fields
    )
