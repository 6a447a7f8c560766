"""The parameters of a request: filters and ids of its address, fields of its form or JSON.

Each function raises HttpError 400 for a value that does not fit.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from tasks_app.dashboard.json_api import adapter
from tasks_app.dashboard.security import FIELD, HttpError, is_api
from tasks_app.domain.tasks.error_text import parse_fingerprint

Fields = TypeVar("Fields")
LONGEST = 300  # characters of a filter; the rest is cut off
_MOST_ID = 2**63 - 1


def row_id(text: str) -> int:
    if re.fullmatch("[0-9]{1,19}", text) and int(text) <= _MOST_ID:
        return int(text)
    raise HttpError(400, "An id is a whole number. Correct the address.")


def named(request: Request, part: str) -> str:
    name = str(request.path_params[part])
    if "\0" in name:
        raise HttpError(400, "A name has a NUL character. Correct the address.")
    return name


def cause(request: Request) -> str:
    """Return the fingerprint in the path."""
    try:
        return parse_fingerprint(request.path_params["fingerprint"]).hex()
    except ValueError as error:
        raise HttpError(400, str(error)) from None


def filters(request: Request, names: Iterable[str]) -> dict[str, str]:
    """Return those that are given and not empty."""
    given = {name: request.query_params.get(name, "").strip() for name in names}
    if any("\0" in value for value in given.values()):
        raise HttpError(400, "A filter has a NUL character. Leave it out.")
    return {name: value[:LONGEST] for name, value in given.items() if value}


async def fields(request: Request, model: type[Fields]) -> Fields:
    """Return the fields of a page's form or of the API's JSON object, checked by ``model``.

    An empty field of a form takes its default.
    """
    if is_api(request):
        try:
            given = json.loads(await request.body() or b"{}")
        except (ValueError, RecursionError):
            raise HttpError(400, "The body is not JSON, or is too deep. Send an object.") from None
    else:
        given = _singled(await request.form())
    return _checked(model, given)


def query(request: Request, model: type[Fields]) -> Fields:
    """Return the parameters of an address, checked by ``model``; an empty one takes its default."""
    return _checked(model, _singled(request.query_params))


def _singled(given: ImmutableMultiDict[str, Any]) -> dict[str, Any]:
    lists = {name: given.getlist(name) for name in given if name != FIELD}
    return {k: v[0] if len(v) == 1 else v for k, v in lists.items() if v not in ([""], [])}


def _checked(model: type[Fields], given: Any) -> Fields:
    try:
        if _is_unstorable(given):
            raise HttpError(400, "A field has a NUL or half a character. Leave it out.")
        known = {field.name for field in dataclasses.fields(model)}  # type: ignore[arg-type]
        if isinstance(given, dict) and (strange := sorted(given.keys() - known)):
            allowed = ", ".join(sorted(known)) or "none"
            raise HttpError(400, f"There is no field {strange[0]:.40}. It has: {allowed}.")
        return adapter(model).validate_python(given)  # type: ignore[no-any-return,arg-type]
    except RecursionError:
        raise HttpError(400, "The fields are nested too deep. Send less.") from None
    except ValidationError as error:
        # The field and its error, without its value.
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the body"
        why = f"{place}: {first['msg']}. Correct it and send it again."
        raise HttpError(400, why) from None


def _is_unstorable(value: Any) -> bool:
    """Whether it has a NUL character or half a surrogate pair, which PostgreSQL refuses."""
    match value:
        case str():
            return "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value)
        case dict():
            return any(map(_is_unstorable, (*value, *value.values())))
        case list():
            return any(map(_is_unstorable, value))
        case _:
            return False
