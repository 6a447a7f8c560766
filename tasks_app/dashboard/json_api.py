"""The JSON API: a read model as JSON, CSV or JSON lines, and its OpenAPI description."""

from __future__ import annotations

import csv
import inspect
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from functools import lru_cache
from hashlib import sha256
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from tasks_app.dashboard.security import API, JSON

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with these a formula of a spreadsheet begins


@lru_cache
def adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def answer(request: Request, model: Any) -> Response:
    """Return a dataclass as JSON; 304 if the caller has the same already."""
    body = adapter(type(model)).dump_json(model)  # type: ignore[arg-type]
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


def problem(status: int, title: str) -> Response:
    """Return an error in the format of RFC 9457."""
    body = json.dumps({"type": "about:blank", "title": title, "status": status})
    headers = {"Cache-Control": "no-store"}
    return Response(body, status, headers=headers, media_type="application/problem+json")


def as_csv(row: Any, pages: Iterable[list[Any]]) -> Iterator[bytes]:
    """Yield a header, and a line for each row, while they are read."""
    yield _lines([[each.name for each in fields(row)]])
    for page in pages:
        yield _lines(map(_escape_formula, asdict(each).values()) for each in page)


def as_json_lines(row: Any, pages: Iterable[list[Any]]) -> Iterator[bytes]:
    for page in pages:
        yield b"".join(adapter(row).dump_json(each) + b"\n" for each in page)


def _escape_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _lines(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


EXPORTS = {
    "csv": (as_csv, "text/csv; charset=utf-8"),
    "jsonl": (as_json_lines, "application/jsonl"),
}
REF = "#/components/schemas/{model}"
_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string", "description": "What is wrong, and what to do."},
        "status": {"type": "integer"},
    },
}
_REFUSALS = (400, 401, 403, 404, 409, 413, 503)
_IDS = re.compile(r"\{(\w+?)(?::(\w+))?\}")
Routes = Iterable[tuple[str, Any, str]]


def describe(routes: Routes, root: str) -> dict[str, Any]:
    """Return the document; ``root`` is where the application is mounted."""
    schemas: dict[str, Any] = {"Problem": _PROBLEM}
    paths: dict[str, dict[str, Any]] = {}
    for path, handler, method in routes:
        if path.startswith(API):
            place = paths.setdefault(_IDS.sub(r"{\1}", path), {})
            place[method.lower()] = _operation(path, handler, method, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tasks_app", "version": "1", "description": "What the dashboard shows."},
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "password": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{"password": []}, {"token": []}, {}],
    }


def _operation(path: str, handler: Any, method: str, schemas: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name, _ in _IDS.findall(path)
    ]
    parameters += [
        {"name": name, "in": "query", "schema": {"type": "string"}} for name in handler.query
    ]
    answers: dict[str, Any] = {
        "200": {
            "description": "The page, or the result of the action.",
            "content": {JSON: {"schema": _schema(handler.answers, "serialization", schemas)}},
        }
    }
    if method == "GET":
        answers["304"] = {"description": "The caller has it already."}
    for status in _REFUSALS:
        content = {"application/problem+json": {"schema": {"$ref": REF.format(model="Problem")}}}
        answers[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()} {path}",
        "summary": (inspect.getdoc(handler) or "").partition("\n")[0],
        "description": f"Needs the role {handler.role.name.lower()}.",
        "parameters": parameters,
        "responses": answers,
    }
    if method == "POST":
        body = {"type": "object"}
        if handler.takes:
            body = _schema(handler.takes, "validation", schemas)
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return operation


def _schema(model: Any, mode: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a dataclass; nested ones go to ``schemas``, named Model.Class."""
    prefix = f"{getattr(model, '__name__', 'Any')}."
    template = REF.format(model=f"{prefix}{{model}}")
    found = TypeAdapter(model).json_schema(mode=mode, ref_template=template)
    schemas.update({prefix + name: each for name, each in found.pop("$defs", {}).items()})
    return found
