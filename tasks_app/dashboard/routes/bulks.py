"""Bulks: requeue, cancel or amend many tasks in stages, with a look after each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.actions.tasks import BY_WORD
from tasks_app.dashboard.html import render
from tasks_app.dashboard.json_api import answer
from tasks_app.dashboard.reader import Desk
from tasks_app.dashboard.routes.actions import ActionAnswer, carried_out, go_to, who
from tasks_app.dashboard.routes.pages import read_bulk
from tasks_app.dashboard.routes.parameters import fields, query, row_id
from tasks_app.dashboard.security import HttpError, Role, is_api, requires
from tasks_app.domain.durations import count
from tasks_app.domain.errors import TasksError
from tasks_app.domain.operations import WORDS
from tasks_app.monitor.pages.errors import BulkPage
from tasks_app.pool.error_groups import find_error_groups
from tasks_app.pool.tables import database_now
from tasks_app.runtime.api.bulk import Foreseen, foresee_bulk, run_bulk, start_bulk

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
    """An action and the tasks that it means: all given fields must fit."""

    action: Literal[tuple(BY_WORD)]  # type: ignore[valid-type]
    pool: Word = None
    state: Word = None
    name: Word = None
    queue: Word = None
    biz_key: Word = None
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
    def is_told(self) -> bool:
        """Whether it says what to make of the tasks."""
        return not (WORDS - {"why"}).isdisjoint(self.selection())


_SOME: dict[str, dict[str, Any]] = {
    "reschedule": {"delay": "0s"},
    "reprioritise": {"to_priority": 0},
    "move": {"to_queue": "default"},
}
"""Which tasks are meant can be seen before it is said what to make of them."""


@dataclass(frozen=True, slots=True)
class StageSize:
    first: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)] | None = None
    """None: all the rest, at most 5,000 at a time."""


async def _checked(verb: Callable[[], Any]) -> Any:
    """Call what looks at a selection; a wrong one is the caller's mistake."""
    try:
        return await run_in_threadpool(verb)
    except TasksError as error:
        raise HttpError(400, str(error)) from error


@requires(Role.OPERATOR)
async def foresee(request: Request, desk: Desk) -> Response:
    """Show what a bulk would do, before there is one."""
    new = query(request, NewBulk)

    def look() -> tuple[Foreseen, Any, str | None]:
        engine = desk.reader.engine
        words = {} if new.is_told else _SOME.get(new.action, {})
        seen = foresee_bulk(engine, new.action, most=MOST_COUNTED, **words, **new.selection())
        with engine.connect() as connection:
            cause = (
                find_error_groups(connection, fingerprint=new.fingerprint)
                if new.fingerprint
                else ()
            )
            return seen, database_now(connection), cause[0].error if cause else None

    seen, at, error = await _checked(look)
    parts = {"new": new, "what": new.selection(), "seen": seen, "error": error}
    return render(request, "bulks/new.html", at=at, **parts)


@requires(Role.OPERATOR, answers=BulkPage, takes=NewBulk)
async def open_bulk(request: Request, desk: Desk) -> Response:
    """Open a bulk; no task is changed yet."""
    new, by = await fields(request, NewBulk), who(request)
    engine = desk.database.engine
    token = await _checked(lambda: start_bulk(engine, new.action, by=by, **new.selection()))
    if is_api(request):
        return answer(request, await run_in_threadpool(read_bulk, token, desk))
    return go_to(request, f"/bulks/{token}")


@requires(Role.OPERATOR, answers=BulkPage, takes=StageSize)
async def run_stage(request: Request, desk: Desk) -> Response:
    """Act on the next tasks of a bulk."""
    token, stage = row_id(request.path_params["token"]), await fields(request, StageSize)
    done = (await run_in_threadpool(read_bulk, token, desk)).done
    first = stage.first or MOST_AT_ONCE
    if request.state.identity.role < Role.ADMIN:
        left = MOST_OF_OPERATORS - done
        if left <= 0 or (stage.first or 0) > left:
            raise HttpError(403, f"More than {MOST_OF_OPERATORS} tasks of a bulk need an admin.")
        first = min(first, left)
    engine, by = desk.database.engine, who(request)
    ran = await carried_out(lambda: run_bulk(engine, token, first=first, by=by))
    desk.reader.forget()
    if is_api(request):
        return answer(request, await run_in_threadpool(read_bulk, token, desk))
    number = len(ran.ids) if ran else 0
    said = (
        ActionAnswer(f"Done to {count(number, 'task')}.")
        if number
        else ActionAnswer("There was nothing left.", changed=False)
    )
    return go_to(request, f"/bulks/{token}", said)


ROUTES = (
    ("/bulks/new", foresee, "GET"),
    ("/bulks", open_bulk, "POST"),
    ("/bulks/{token}/run", run_stage, "POST"),
    ("/api/bulks", open_bulk, "POST"),
    ("/api/bulks/{token}/run", run_stage, "POST"),
)
