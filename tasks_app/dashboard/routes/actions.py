"""What operators do to one task: a verb of the runtime, noted in the audit with who asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tasks_app.dashboard.routes.desk import Desk
from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.guard import RefusedError, requires
from tasks_app.domain.errors import TasksError
from tasks_app.pool.tasks.cancel import Cancelled
from tasks_app.pool.tasks.requeue import Requeued
from tasks_app.runtime.api.limits import unblock_task
from tasks_app.runtime.api.tasks import cancel_task, requeue_task, run_task_now

Verb = Callable[..., Any]
_DONE = frozenset({Cancelled.CANCELLED, Cancelled.REQUESTED, Requeued.REQUEUED, True})
ACTIONS: dict[str, Verb] = {
    "requeue": requeue_task,
    "cancel": cancel_task,
    "unblock": unblock_task,
    "run-now": run_task_now,
}


@requires(Role.OPERATOR)
async def act_on_task(request: Request, desk: Desk) -> Response:
    task_id, name = int(request.path_params["task_id"]), request.path_params["action"]
    verb = ACTIONS.get(name)
    if verb is None or task_id > 2**63 - 1:
        raise RefusedError(404, "There is no such action. Go back to the task.")
    who = f"{request.state.identity.who} (dashboard)".strip()
    try:
        answer = await run_in_threadpool(_carry_out, desk, verb, task_id, who)
    except TasksError as error:
        raise RefusedError(409, str(error)) from error
    desk.reader.forget()
    done = name if answer in _DONE else f"no {name}"
    root = request.scope.get("root_path", "")
    return RedirectResponse(f"{root}/tasks/{task_id}?done={done.replace(' ', '+')}", 303)


def _carry_out(desk: Desk, verb: Verb, task_id: int, who: str) -> Any:
    with desk.database.begin() as connection:
        return verb(connection, task_id, by=who)
