"""Read for a page, and answer as page, as its live part, as JSON or as rows to export."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tasks_app.dashboard.html import is_part, render
from tasks_app.dashboard.json_api import EXPORTS, answer
from tasks_app.dashboard.reader import Desk
from tasks_app.dashboard.routes.actions import go_to
from tasks_app.dashboard.routes.parameters import filters, named, row_id
from tasks_app.dashboard.security import HttpError, Role, requires

Model = TypeVar("Model")
KEEP_S = 2.0


class Filter(NamedTuple):
    """A parameter that narrows a list, and its field in the form."""

    name: str
    label: str
    choices: tuple[str, ...] = ()  # others are refused; none: any text
    every: str = "all"  # what the form calls no choice
    labels: tuple[str, ...] = ()  # of the choices, in the form
    kind: str = "text"  # ``id``: a whole number
    rare: bool = False  # the form shows it under *More*


@dataclass(frozen=True, slots=True)
class Visit:
    request: Request
    desk: Desk
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
        look: Callable[..., Model],
        *asked: Any,
        settings: bool = False,
        keep_s: float = KEEP_S,
        rest: float = 0.0,
        **named: Any,
    ) -> Model:
        """Call ``look`` with a connection; all who ask the same share what it returns."""
        key = (look.__qualname__, repr(asked), repr(named))
        if settings:
            named["settings"] = self.desk.settings
        return self.desk.reader.read(key, lambda c: look(c, *asked, **named), keep_s, rest)


@dataclass(frozen=True)
class Page:
    """A GET of the dashboard: what it reads, and the template that shows it."""

    path: str
    template: str
    read: Callable[[Visit], Any]
    role: Role = Role.VIEWER
    api: str | None = ""
    """The address of the JSON; empty: that of the page under /api; None: there is none."""
    filters: tuple[Filter, ...] = ()
    query: tuple[str, ...] = ()  # other parameters
    live: str = ""  # the template of the part that is read anew every few seconds
    parts: tuple[str, ...] = ()
    """Templates beside ``template``, each shown alone if ``part`` names it."""
    missing: str = ""  # what is said where there is no such thing
    more: Callable[[Visit], dict[str, Any]] = field(default=lambda _: {})
    """What the template is given besides the model."""
    leads: Callable[[Any], str | None] = field(default=lambda _: None)
    """To which other page the model leads at once."""
    export: tuple[Any, Callable[[Engine, dict[str, str]], Iterable[list[Any]]]] | None = None
    """A dataclass, and what yields all rows of it that fit the filters."""

    def model(self, request: Request, desk: Desk) -> Any:
        return self._model(self._visit(request, desk))

    def _model(self, visit: Visit) -> Any:
        model = self.read(visit)
        if model is None:
            raise HttpError(404, self.missing.format(**visit.request.path_params))
        return model

    def _visit(self, request: Request, desk: Desk) -> Visit:
        """Return the request with its filters.

        Raises:
            HttpError: one is none of its choices.
        """
        given = filters(request, [each.name for each in self.filters])
        for each in self.filters:
            name, choices = each.name, each.choices
            if choices and given.get(name, choices[0]) not in choices:
                raise HttpError(
                    400, f"{name} is none of {', '.join(choices)}. Correct the address."
                )
            if each.kind == "id" and name in given:
                row_id(given[name])
        return Visit(request, desk, given)

    async def show(self, request: Request, desk: Desk) -> Response:
        def look() -> tuple[Any, dict[str, Any]]:
            visit = self._visit(request, desk)
            return self._model(visit), self.more(visit)

        model, more = await run_in_threadpool(look)
        if place := self.leads(model):
            return go_to(request, place)
        return render(
            request,
            self._template(request),
            status=400 if getattr(model, "refused", None) else 200,
            model=model,
            at=model.at,
            fields=self.filters,
            asked=request.query_params,
            **more,
        )

    def _template(self, request: Request) -> str:
        part = request.query_params.get("part", "")
        if part in self.parts:
            return f"{self.template.rpartition('/')[0]}/{part}.html"
        return (is_part(request) and self.live) or self.template

    async def tell(self, request: Request, desk: Desk) -> Response:
        model = await run_in_threadpool(self.model, request, desk)
        if refused := getattr(model, "refused", None):
            raise HttpError(400, refused)
        return answer(request, model)

    async def send(self, request: Request, desk: Desk) -> Response:
        given, kind = self._visit(request, desk).filters, request.path_params["kind"]
        if kind not in EXPORTS or self.export is None:
            raise HttpError(404, f"It is exported as {' or '.join(EXPORTS)}. Correct the address.")
        row, read = self.export
        write, media_type = EXPORTS[kind]
        name = f"{self.path.strip('/')}.{kind}"
        return StreamingResponse(
            write(row, read(desk.reader.engine, given)),
            media_type=media_type,
            headers={
                "Content-Disposition": f'attachment; filename="{name}"',
                "Cache-Control": "no-store",
            },
        )

    @property
    def routes(self) -> list[tuple[str, Any, str]]:
        found: list[tuple[str, Any, str]] = [(self.path, self._for(self.show), "GET")]
        if self.export:
            found.insert(0, (f"{self.path}/export.{{kind}}", self._for(self.send), "GET"))
        if self.api is not None:
            found.append((self.api or f"/api{self.path}", self._for(self.tell), "GET"))
        return found

    def _for(self, method: Any) -> Any:
        """Return a handler that says who may use it, and what it answers with."""

        async def handler(request: Request, desk: Desk) -> Response:
            return await method(request, desk)  # type: ignore[no-any-return]

        handler.__doc__ = self.read.__doc__
        said = get_type_hints(self.read)["return"]
        answers = next(iter(get_args(said)), said)  # without None
        query = (*(each.name for each in self.filters), *self.query)
        return requires(self.role, answers=answers, query=query)(handler)


PAGES: list[Page] = []


def page(path: str, template: str, **more: Any) -> Callable[[Callable[[Visit], Any]], Page]:
    """Make a page of a function that reads its model, and add it to all there are."""

    def made(read: Callable[[Visit], Any]) -> Page:
        PAGES.append(Page(path, template, read, **more))
        return PAGES[-1]

    return made
