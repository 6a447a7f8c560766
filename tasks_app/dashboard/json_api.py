"""The API described as OpenAPI 3.1, made of what each route says of itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter

from tasks_app.dashboard.security import Role
from tasks_app.dashboard.security.same_site import API, JSON

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
    role: Role = handler.role
    asked = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name, _ in _IDS.findall(path)
    ]
    asked += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in handler.query]
    answers: dict[str, Any] = {
        "200": {
            "description": "What was asked for, or what came of it.",
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
        "description": f"Needs the role {role.name.lower()}.",
        "parameters": asked,
        "responses": answers,
    }
    if method == "POST":
        body = {"type": "object"}
        if handler.takes:
            body = _schema(handler.takes, "validation", schemas)
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return operation


def _schema(model: Any, mode: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a dataclass; what it refers to is added to ``schemas``.

    Names are those of the classes behind that of the model: two pages may each have a Line.
    """
    prefix = f"{getattr(model, '__name__', 'Any')}."
    template = REF.format(model=f"{prefix}{{model}}")
    found = TypeAdapter(model).json_schema(mode=mode, ref_template=template)
    schemas.update({prefix + name: each for name, each in found.pop("$defs", {}).items()})
    return found
