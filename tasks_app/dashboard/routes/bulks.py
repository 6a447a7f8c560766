"""Bulks: requeue, cancel or amend many tasks in stages, with a check after each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.actions.action import ActionResult, Role
from tasks_app.actions.tasks import BY_WORD
from tasks_app.dashboard.html import render
from tasks_app.dashboard.json_api import answer
from tasks_app.dashboard.reader import AppState
from tasks_app.dashboard.routes.actions import actor_name, redirect_to, run_action
from tasks_app.dashboard.routes.pages import read_bulk
from tasks_app.dashboard.routes.parameters import fields, query, row_id
from tasks_app.dashboard.security import HttpError, is_api, requires
from tasks_app.domain.durations import count
from tasks_app.domain.operations import AMENDMENT_FIELDS
from tasks_app.monitor.pages.errors import BulkPage
from tasks_app.pool.error_groups import ErrorGroup, find_error_groups
from tasks_app.pool.tables import database_now
from tasks_app.runtime.api.bulk import foresee_bulk, run_bulk, start_bulk

MOST_OF_OPERATORS = 1_000  # tasks of one bulk; more need an admin
MOST_AT_ONCE = 5_000  # tasks of one request, which takes some seconds
MOST_COUNTED = 10_000

Word = Annotated[str, Field(max_length=300)] | None
Ids = Annotated[
    tuple[Annotated[int, Field(ge=1, le=2**63 - 1)], ...],
    BeforeValidator(lambda given: given.split(",") if isinstance(given, str) else given),
    Field(max_length=MOST_OF_OPERATORS),
]


@dataclass(frozen=True, slots=True)
class NewBulk:
    """An action and its selection: tasks that fit all given fields."""

    action: Literal[tuple(BY_WORD)]  # type: ignore[valid-type]
    pool: Word = None
    state: Word = None
    name: Word = None
    queue: Word = None
    biz_key: Word = None
    group: Annotated[int, Field(ge=1, le=2**63 - 1)] | None = None
    error_kind: Word = None
    error_text: Word = None
    fingerprint: Word = None
    older_than: Word = None
    newer_than: Word = None
    rate: Word = None  # of `run-now` and `release`: so many in which time, as `50/1s`
    at: Word = None  # of `reschedule`: an ISO 8601 instant with its zone
    delay: Word = None  # of `reschedule`: from when the bulk is opened, as `6h`
    to_priority: Annotated[int, Field(ge=0, le=9)] | None = None  # of `reprioritise`
    to_queue: Word = None  # of `move`
    why: Word = None
    ids: Ids = ()

    def selection(self) -> dict[str, Any]:
        given = asdict(self)
        del given["action"]
        return {name: value for name, value in given.items() if value not in (None, "", ())}

    @property
    def has_change(self) -> bool:
        """It has the values of the change, beside the selection."""
        return not (AMENDMENT_FIELDS - {"why"}).isdisjoint(self.selection())


# With these the tasks can be shown before the operator has given the values of the change.
_PREVIEW_VALUES: dict[str, dict[str, Any]] = {
    "reschedule": {"delay": "0s"},
    "reprioritise": {"to_priority": 0},
    "move": {"to_queue": "default"},
}


@dataclass(frozen=True, slots=True)
class StageSize:
    first: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)] | None = None
    """None: all the rest, at most 5,000 at a time."""


@requires(Role.OPERATOR)
async def preview(request: Request, state: AppState) -> Response:
    """Show what a bulk would do, before there is one."""
    new = query(request, NewBulk)

    def read() -> dict[str, Any]:
        engine, causes = state.reader.engine, list[ErrorGroup]()
        words = {} if new.has_change else _PREVIEW_VALUES.get(new.action, {})
        seen = foresee_bulk(engine, new.action, most=MOST_COUNTED, **words, **new.selection())
        with engine.connect() as connection:
            if new.fingerprint:
                causes = find_error_groups(connection, fingerprint=new.fingerprint)
            at = database_now(connection)
        return {"seen": seen, "at": at, "error": causes[0].error if causes else None}

    parts = await run_action(read, refused=400)
    return render(request, "bulks/new.html", new=new, what=new.selection(), **parts)


@requires(Role.OPERATOR, answers=BulkPage, takes=NewBulk)
async def open_bulk(request: Request, state: AppState) -> Response:
    """Open a bulk; no task is changed yet."""
    new, by = await fields(request, NewBulk), actor_name(request)

    def start() -> int:
        return start_bulk(state.database.engine, new.action, by=by, **new.selection())

    token = await run_action(start, refused=400)
    if is_api(request):
        return answer(request, await run_in_threadpool(read_bulk, token, state))
    return redirect_to(request, f"/bulks/{token}")


@requires(Role.OPERATOR, answers=BulkPage, takes=StageSize)
async def run_stage(request: Request, state: AppState) -> Response:
    """Act on the next tasks of a bulk."""
    token, stage = row_id(request.path_params["token"]), await fields(request, StageSize)
    done = (await run_in_threadpool(read_bulk, token, state)).done
    first = stage.first or MOST_AT_ONCE
    if request.state.identity.role < Role.ADMIN:
        left = MOST_OF_OPERATORS - done
        if left <= 0 or (stage.first or 0) > left:
            raise HttpError(403, f"More than {MOST_OF_OPERATORS} tasks of a bulk need an admin.")
        first = min(first, left)
    engine, by = state.database.engine, actor_name(request)
    ran = await run_action(lambda: run_bulk(engine, token, first=first, by=by))
    state.reader.forget()
    if is_api(request):
        return answer(request, await run_in_threadpool(read_bulk, token, state))
    number = len(ran.ids) if ran else 0
    done_to = f"Done to {count(number, 'task')}." if number else "No task was left."
    return redirect_to(request, f"/bulks/{token}", ActionResult(done_to, changed=bool(number)))


ROUTES = (
    ("/bulks/new", preview, "GET"),
    ("/bulks", open_bulk, "POST"),
    ("/bulks/{token}/run", run_stage, "POST"),
    ("/api/bulks", open_bulk, "POST"),
    ("/api/bulks/{token}/run", run_stage, "POST"),
)
