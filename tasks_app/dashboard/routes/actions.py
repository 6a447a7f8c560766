"""The routes of all actions and of editing a payload, and how an action is carried out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from difflib import unified_diff
from typing import Annotated, Any, TypeVar

from pydantic import Field
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tasks_app.actions.action import Action, ActionResult, Nothing, Role
from tasks_app.actions.table import ACTIONS
from tasks_app.dashboard.html import render, set_notice
from tasks_app.dashboard.json_api import answer
from tasks_app.dashboard.reader import AppState
from tasks_app.dashboard.routes.parameters import cause, fields, named, row_id
from tasks_app.dashboard.security import Handler, HttpError, is_api, requires
from tasks_app.domain.config.setting_sources import masked
from tasks_app.domain.encryption import token_of
from tasks_app.domain.errors import NotThereError, TasksError
from tasks_app.domain.large_values.store import reference_of
from tasks_app.domain.tasks.masks import MASK
from tasks_app.domain.tasks.records import Task
from tasks_app.pool.tasks import browse
from tasks_app.runtime.api.amend_waiting import check_payload, edit_payload
from tasks_app.runtime.api.tasks import requeue_task
from tasks_app.runtime.encryption.values import masks, opened_task
from tasks_app.runtime.handlers.registry import load_handlers

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ActionAnswer:
    """The result of an action."""

    said: str
    changed: bool = True


def _route(action: Action) -> Handler:
    async def handler(request: Request, state: AppState) -> Response:
        target: Any = None
        if action.has_numeric_target:
            target = row_id(request.path_params[action.on])
        elif action.on == "fingerprint":
            target = cause(request)
        elif action.on:
            target = named(request, action.on)
        given: Any = await fields(request, action.takes)
        if action.needs_handlers:
            load_handlers(state.settings.modules)

        def run(connection: Connection, who: str) -> ActionResult:
            return action.run(connection, target, given, who)

        return await run_and_answer(request, state, run, back=action.next_page(target, given))

    handler.__doc__ = action.run.__doc__
    takes = None if action.takes is Nothing else action.takes
    return requires(action.role, answers=ActionAnswer, takes=takes)(handler)


def actor_name(request: Request) -> str:
    """Return who acts, for the audit."""
    door = "api" if is_api(request) else "dashboard"
    return f"{request.state.identity.who} ({door})".strip()


async def run_action(action: Callable[[], Answer], *, refused: int = 409) -> Answer:
    """Run it in a thread; if the runtime refuses, answer ``refused`` with its message."""
    try:
        return await run_in_threadpool(action)
    except NotThereError as error:
        raise HttpError(404, str(error)) from None
    except TasksError as error:
        raise HttpError(refused, str(error)) from error


async def run_and_answer(
    request: Request, state: AppState, run: Callable[[Connection, str], ActionResult], *, back: str
) -> Response:
    """Call ``run(connection, who)`` in a transaction; then show the page ``back``."""

    def in_transaction() -> ActionResult:
        with state.database.begin() as connection:
            return run(connection, actor_name(request))

    done = await run_action(in_transaction)
    state.reader.forget()
    if is_api(request):
        return answer(request, ActionAnswer(done.text, done.changed))
    return redirect_to(request, back, done)


def redirect_to(request: Request, path: str, done: ActionResult | None = None) -> Response:
    """Redirect to a page of ours, which shows the result."""
    response = RedirectResponse(f"{request.scope.get('root_path', '')}{path}", 303)
    if done:
        set_notice(request, response, done.text, changed=done.changed)
    return response


# A name may hold slashes: the last segment of an action's address is the action.
ROUTES = tuple(
    (start + action.path, handler, "POST")
    for action in ACTIONS
    if action.path
    for handler in [_route(action)]
    for start in ("", "/api")
)


@dataclass(frozen=True, slots=True)
class NewPayload:
    payload: dict[str, Any] | str  # a JSON object, or its text
    requeue: bool = False
    why: Annotated[str, Field(max_length=300)] = ""
    look: bool = False  # only show the difference


def editable_task(state: AppState, task_id: int) -> Task:
    task = state.reader.read(("raw task", task_id), lambda c: browse.get(c, task_id), keep_s=0)
    if task is None:
        raise HttpError(404, f"There is no task {task_id}. It may have been pruned.")
    task = opened_task(task)
    if reference_of(task.payload):
        raise HttpError(409, "Its payload is too large to be edited. Cancel it and create another.")
    if token_of(task.payload):
        raise HttpError(409, "Its payload is encrypted, and this process lacks the key. Set it.")
    return task


def _shown(task: Task, payload: Any) -> Any:
    return masked(masks().value(task.name, payload))


def payload_text(task: Task, payload: Any) -> str:
    """Return a payload of a task as its form has it."""
    return _text(_shown(task, payload))


def given_payload(task: Task, given: dict[str, Any] | str) -> dict[str, Any]:
    """Return a payload from the form or the API, with stored values for masks.

    Raises:
        HttpError: it is no JSON object, or its handler refuses it.
    """
    stored = task.payload
    payload: dict[str, Any] = unmasked(_object(given), stored, _shown(task, stored))
    try:
        check_payload(task.name, payload)
    except TasksError as error:
        raise HttpError(409, str(error)) from error
    return payload


def difference(task: Task, payload: Any) -> list[str]:
    """Return the lines of a diff of the stored payload and this one."""
    before, after = (payload_text(task, each).splitlines() for each in (task.payload, payload))
    return list(unified_diff(before, after, n=2, lineterm=""))[2:]


def _text(payload: Any) -> str:
    return json.dumps(payload, indent=2, ensure_ascii=False)


@requires(Role.ADMIN)
async def show_edit(request: Request, state: AppState) -> Response:
    task = await run_in_threadpool(editable_task, state, row_id(request.path_params["task_id"]))
    text = payload_text(task, task.payload)
    return render(request, "tasks/edit.html", task=task, text=text, diff=None, at=None)


@requires(Role.ADMIN, answers=ActionAnswer, takes=NewPayload)
async def edit_task(request: Request, state: AppState) -> Response:
    """Give a task that waits or has failed another payload; `requeue` returns it to the pool."""
    task_id, new = row_id(request.path_params["task_id"]), await fields(request, NewPayload)
    task = await run_in_threadpool(editable_task, state, task_id)
    load_handlers(state.settings.modules)
    try:
        payload = await run_in_threadpool(given_payload, task, new.payload)
    except HttpError as error:
        if is_api(request):
            raise
        text = new.payload if isinstance(new.payload, str) else _text(new.payload)
        parts = {"task": task, "text": text, "diff": None, "wrong": str(error), "at": None}
        return render(request, "tasks/edit.html", status=error.status, **parts)
    if new.look and not is_api(request):
        after, lines = payload_text(task, payload), difference(task, payload)
        return render(request, "tasks/edit.html", task=task, text=after, diff=lines, at=None)

    def run(connection: Connection, who: str) -> ActionResult:
        if not edit_payload(connection, task_id, payload, by=who, why=new.why):
            unchanged = "Nothing was changed: the task runs or has succeeded."
            return ActionResult(unchanged, changed=False)
        if new.requeue:
            requeue_task(connection, task_id, by=who, why=new.why)
        return ActionResult("Saved and requeued." if new.requeue else "Saved.")

    return await run_and_answer(request, state, run, back=f"/tasks/{task_id}")


def _object(given: dict[str, Any] | str) -> dict[str, Any]:
    try:
        payload = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"The payload is not JSON: {error}. Correct it.") from None
    if not isinstance(payload, dict):
        raise HttpError(400, "The payload is not a JSON object. Begin it with {.")
    return payload


def unmasked(given: Any, stored: Any, shown: Any, name: str = "") -> Any:
    """Return what was given, with the stored values where their masks came back.

    A mask where nothing was masked is answered with a 400.
    """
    if given == shown:
        return stored
    if isinstance(given, dict):
        old, seen = (each if isinstance(each, dict) else {} for each in (stored, shown))
        return {
            key: unmasked(each, old.get(key), seen.get(key), key) for key, each in given.items()
        }
    if isinstance(given, list):
        before, visible = (
            each if isinstance(each, list) and len(each) == len(given) else [None] * len(given)
            for each in (stored, shown)
        )
        return [unmasked(*each, name) for each in zip(given, before, visible, strict=True)]
    if isinstance(given, str) and MASK in given:
        raise HttpError(400, f"{name or 'A value'} is masked. Write it whole, or leave it.")
    return given


EDIT_ROUTES = (
    ("/tasks/{task_id}/edit", show_edit, "GET"),
    ("/tasks/{task_id}/edit", edit_task, "POST"),
    ("/api/tasks/{task_id}/edit", edit_task, "POST"),
)
