"""Read for a page, and answer as page, as its live part, as JSON or as rows to export."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tasks_app.actions.action import Role
from tasks_app.dashboard.html import is_part, render
from tasks_app.dashboard.json_api import EXPORTS, answer
from tasks_app.dashboard.reader import AppState
from tasks_app.dashboard.routes.actions import redirect_to
from tasks_app.dashboard.routes.parameters import filters, named, row_id
from tasks_app.dashboard.security import HttpError, requires

Model = TypeVar("Model")


class Filter(NamedTuple):
    """A parameter that narrows a list, and its field in the form."""

    name: str
    label: str
    choices: tuple[str, ...] = ()  # others are refused; none: any text
    every: str = "all"  # the label of no choice
    labels: tuple[str, ...] = ()  # of the choices
    kind: str = "text"  # ``id``: a whole number
    rare: bool = False  # the form shows it under *More*


@dataclass(frozen=True, slots=True)
class Visit:
    request: Request
    state: AppState
    filters: dict[str, str]

    def id(self, part: str) -> int:
        return row_id(self.request.path_params[part])

    def name(self, part: str) -> str:
        return named(self.request, part)

    def given(self, *names: str) -> dict[str, str]:
        """Return parameters of the address that are not empty."""
        return filters(self.request, names)

    @property
    def before(self) -> int | None:
        before = self.request.query_params.get("before")
        return None if before is None else row_id(before)

    def read(
        self,
        reads: Callable[..., Model],
        *values: Any,
        settings: bool = False,
        keep_s: float = 2.0,
        pause: float = 0.0,
        **options: Any,
    ) -> Model:
        """Call ``reads`` with a connection; equal requests share its result for ``keep_s``."""
        key = (reads.__qualname__, repr(values), repr(options))
        if settings:
            options["settings"] = self.state.settings
        return self.state.reader.read(key, lambda c: reads(c, *values, **options), keep_s, pause)


@dataclass(frozen=True)
class Page:
    """A GET of the dashboard: what it reads, and the template that shows it."""

    path: str
    template: str
    read: Callable[[Visit], Any]
    role: Role = Role.VIEWER
    api: str | None = ""  # the address of the JSON; empty: /api + path; None: there is none
    filters: tuple[Filter, ...] = ()
    query: tuple[str, ...] = ()  # other parameters
    live: str = ""  # the template of the part that is read again every few seconds
    parts: tuple[str, ...] = ()  # templates beside ``template``, shown alone by ``?part=``
    missing: str = ""  # the message of the 404
    more: Callable[[Visit], dict[str, Any]] = field(default=lambda _: {})  # for the template
    leads: Callable[[Any], str | None] = field(default=lambda _: None)  # where to redirect
    # A dataclass, and a function that yields all rows of it that fit the filters.
    export: tuple[Any, Callable[[Engine, dict[str, str]], Iterable[list[Any]]]] | None = None

    @property
    def routes(self) -> list[tuple[str, Any, str]]:
        found: list[tuple[str, Any, str]] = [(self.path, self._handler(self.show), "GET")]
        if self.export:
            found.insert(0, (f"{self.path}/export.{{kind}}", self._handler(self.send_rows), "GET"))
        if self.api is not None:
            found.append((self.api or f"/api{self.path}", self._handler(self.answer_json), "GET"))
        return found

    def _handler(self, method: Any) -> Any:
        async def handler(request: Request, state: AppState) -> Response:
            return await method(request, state)  # type: ignore[no-any-return]

        handler.__doc__ = self.read.__doc__
        returns = get_type_hints(self.read)["return"]
        answers = next(iter(get_args(returns)), returns)  # without None
        query = (*(each.name for each in self.filters), *self.query)
        return requires(self.role, answers=answers, query=query)(handler)

    async def show(self, request: Request, state: AppState) -> Response:
        def read() -> tuple[Any, dict[str, Any]]:
            visit = self._visit(request, state)
            return self._model(visit), self.more(visit)

        model, more = await run_in_threadpool(read)
        if place := self.leads(model):
            return redirect_to(request, place)
        part = request.query_params.get("part", "")
        template = (is_part(request) and self.live) or self.template
        if part in self.parts:
            template = f"{self.template.rpartition('/')[0]}/{part}.html"
        status = 400 if getattr(model, "refused", None) else 200
        given = {"model": model, "at": model.at, "fields": self.filters, **more}
        return render(request, template, status=status, parameters=request.query_params, **given)

    async def answer_json(self, request: Request, state: AppState) -> Response:
        model = await run_in_threadpool(lambda: self._model(self._visit(request, state)))
        if refused := getattr(model, "refused", None):
            raise HttpError(400, refused)
        return answer(request, model)

    async def send_rows(self, request: Request, state: AppState) -> Response:
        given, kind = self._visit(request, state).filters, request.path_params["kind"]
        if kind not in EXPORTS or self.export is None:
            raise HttpError(404, f"It is exported as {' or '.join(EXPORTS)}. Correct the address.")
        row, read = self.export
        write, media_type = EXPORTS[kind]
        name = f"{self.path.strip('/')}.{kind}"
        headers = {
            "Content-Disposition": f'attachment; filename="{name}"',
            "Cache-Control": "no-store",
        }
        rows = write(row, read(state.reader.engine, given))
        return StreamingResponse(rows, media_type=media_type, headers=headers)

    def _visit(self, request: Request, state: AppState) -> Visit:
        """Return the request with its filters; a 400 if a value is not one of the choices."""
        given = filters(request, [each.name for each in self.filters])
        for each in self.filters:
            name, choices = each.name, each.choices
            if choices and given.get(name, choices[0]) not in choices:
                allowed = ", ".join(choices)
                raise HttpError(400, f"{name} is not one of {allowed}. Correct the address.")
            if each.kind == "id" and name in given:
                row_id(given[name])
        return Visit(request, state, given)

    def _model(self, visit: Visit) -> Any:
        model = self.read(visit)
        if model is None:
            raise HttpError(404, self.missing.format(**visit.request.path_params))
        return model


PAGES: list[Page] = []


def page(path: str, template: str, **more: Any) -> Callable[[Callable[[Visit], Any]], Page]:
    """Make a page of a function that reads its model, and add it to PAGES."""

    def made(read: Callable[[Visit], Any]) -> Page:
        PAGES.append(Page(path, template, read, **more))
        return PAGES[-1]

    return made
