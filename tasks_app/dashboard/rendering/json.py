"""The JSON of a read model, the same dataclass as the page's."""

from __future__ import annotations

import json
from functools import lru_cache
from hashlib import sha256
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response


@lru_cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def answer(request: Request, model: Any) -> Response:
    """Return a dataclass as JSON, as its schema says; 304 if the caller has the same already."""
    body = _adapter(type(model)).dump_json(model)  # type: ignore[arg-type]
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


def problem(status: int, title: str) -> Response:
    """Return what is wrong, as RFC 9457 wants it."""
    body = json.dumps({"type": "about:blank", "title": title, "status": status})
    headers = {"Cache-Control": "no-store"}
    return Response(body, status, headers=headers, media_type="application/problem+json")
