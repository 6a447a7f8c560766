"""A read model as JSON, the same dataclass as the page's; many rows as CSV or JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from functools import lru_cache
from hashlib import sha256
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


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


def as_csv(row: Any, pages: Iterable[list[Any]]) -> Iterator[bytes]:
    """Yield a header, and a line for each row, written while they are read."""
    yield _lines([[each.name for each in fields(row)]])
    for page in pages:
        yield _lines([[_cell(value) for value in asdict(each).values()] for each in page])


def as_json_lines(row: Any, pages: Iterable[list[Any]]) -> Iterator[bytes]:
    for page in pages:
        yield b"".join(_adapter(row).dump_json(each) + b"\n" for each in page)


def _lines(rows: list[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


EXPORTS = {
    "csv": (as_csv, "text/csv; charset=utf-8"),
    "jsonl": (as_json_lines, "application/jsonl"),
}
