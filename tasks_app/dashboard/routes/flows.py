"""Flows: what a rerun or an undo would do, and the rerun, perhaps with another payload."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.actions.action import ActionResult, Role, Short, Why
from tasks_app.dashboard.html import render
from tasks_app.dashboard.reader import AppState
from tasks_app.dashboard.routes.actions import (
    ActionAnswer,
    difference,
    editable_task,
    given_payload,
    payload_text,
    run_action,
    run_and_answer,
)
from tasks_app.dashboard.routes.parameters import fields, query, row_id
from tasks_app.dashboard.security import HttpError, is_api, requires
from tasks_app.domain.durations import count
from tasks_app.domain.errors import NotThereError
from tasks_app.domain.flows import FlowProgress
from tasks_app.domain.rerun import steps_from
from tasks_app.domain.undo import check_undo, steps_to_undo
from tasks_app.pool.flows import get_flow
from tasks_app.runtime.api.flows import rerun_flow
from tasks_app.runtime.handlers.registry import load_handlers


@dataclass(frozen=True, slots=True)
class FromStep:
    step: Short


@dataclass(frozen=True, slots=True)
class Rerun(Why):
    """From which step a flow runs again."""

    step: Short = ""
    payload: Annotated[str, Field(max_length=1_000_000)] | dict[str, Any] | None = None
    """Of the step from now on: a JSON object, or its text. None: its own. Needs an admin."""
    look: bool = False
    """Only show the steps and the difference of the payloads, on a page."""


def _flow(state: AppState, flow_id: int) -> FlowProgress:
    flow = state.reader.read(("raw flow", flow_id), lambda c: get_flow(c, flow_id), keep_s=0)
    if flow is None:
        raise NotThereError(f"There is no flow {flow_id}. It may have been pruned.")
    return flow


@requires(Role.OPERATOR)
async def show_rerun(request: Request, state: AppState) -> Response:
    flow_id, step = row_id(request.path_params["flow_id"]), query(request, FromStep).step
    return await _rerun_page(request, state, flow_id, step)


async def _rerun_page(
    request: Request, state: AppState, flow_id: int, step: str, given: Any = None
) -> Response:
    """Show which steps would run; with a payload, also its difference, or what is wrong with it."""
    may_edit = request.state.identity.role >= Role.ADMIN

    def read() -> dict[str, Any]:
        flow = _flow(state, flow_id)
        found = {"flow": flow, "step": step, "steps": steps_from(flow, step)}
        task_id = next(each.task_id for each in flow.steps if each.name == step)
        parts: dict[str, Any] = {"text": None, "diff": None, "wrong": None}
        if may_edit:
            try:
                task = editable_task(state, task_id)
                parts["text"] = payload_text(task, task.payload)
            except HttpError as error:  # too large, or encrypted: it may run again as it is
                parts["why_not"] = str(error)
                return {**found, **parts}
            if given is not None:
                parts["text"] = given if isinstance(given, str) else json.dumps(given)
                try:
                    payload = given_payload(task, given)
                    parts["text"] = payload_text(task, payload)
                    parts["diff"] = difference(task, payload)
                except HttpError as error:
                    parts |= {"wrong": str(error), "status": error.status}
        return {**found, **parts}

    parts = await run_action(read)
    return render(request, "flows/rerun.html", at=None, **parts)


@requires(Role.OPERATOR, answers=ActionAnswer, takes=Rerun)
async def rerun(request: Request, state: AppState) -> Response:
    """Run a step of a flow again, and all that hang on it; another payload needs an admin."""
    flow_id, new = row_id(request.path_params["flow_id"]), await fields(request, Rerun)
    if new.payload is not None:
        if request.state.identity.role < Role.ADMIN:
            raise HttpError(403, "Another payload needs an admin. Leave it out, or ask one.")
        load_handlers(state.settings.modules)
    if new.look and not is_api(request):
        return await _rerun_page(request, state, flow_id, new.step, new.payload)
    payload = None
    if new.payload is not None:
        payload = await run_action(lambda: _payload(state, flow_id, new))

    def run(connection: Connection, who: str) -> ActionResult:
        steps = rerun_flow(connection, flow_id, new.step, payload, by=who, why=new.why)
        return ActionResult(f"{count(len(steps), 'step')} will run again: {', '.join(steps)}.")

    return await run_and_answer(request, state, run, back=f"/flows/{flow_id}")


def _payload(state: AppState, flow_id: int, new: Rerun) -> dict[str, Any] | None:
    """Return the payload of a step that there is."""
    steps = _flow(state, flow_id).steps
    task_id = next((each.task_id for each in steps if each.name == new.step), None)
    if task_id is None or new.payload is None:
        return None
    return given_payload(editable_task(state, task_id), new.payload)


@requires(Role.OPERATOR)
async def show_undo(request: Request, state: AppState) -> Response:
    flow_id = row_id(request.path_params["flow_id"])

    def read() -> dict[str, Any]:
        flow = _flow(state, flow_id)
        check_undo(flow)
        return {"flow": flow, "steps": steps_to_undo(flow)}

    return render(request, "flows/undo.html", at=None, **await run_action(read))


ROUTES = (
    ("/flows/{flow_id}/rerun", show_rerun, "GET"),
    ("/flows/{flow_id}/rerun", rerun, "POST"),
    ("/api/flows/{flow_id}/rerun", rerun, "POST"),
    ("/flows/{flow_id}/undo", show_undo, "GET"),
)
