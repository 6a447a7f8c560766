"""Which parameters make the same instance of a job: those with the same canonical form."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

from pydantic import BaseModel, RootModel, ValidationError

from tasks_app.domain.errors import InvalidJobError
from tasks_app.domain.tasks.payload import encode_object
from tasks_app.domain.tasks.payload_checks import dump_model
from tasks_app.domain.tasks.payload_losses import check_read_back
from tasks_app.domain.tasks.payload_type import explain

LONGEST_PARAMS = 16 * 1024
"""Bytes of JSON."""
_ALL_DIGITS = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
_A_DAY = date(2000, 1, 2)
"""Of times with a zone: days before and after it are there."""


def checked_params(
    job: str, model: type[BaseModel] | None, given: Mapping[str, Any] | BaseModel | None
) -> dict[str, Any]:
    """Return the parameters as plain JSON, defaults filled in.

    Raises:
        InvalidJobError: they do not fit the job's model, as given or as read from what is stored.
        InvalidTaskError: they are not JSON, or would be read as others.
    """
    plain: Any = {} if given is None else given
    if model is not None:
        foreign = isinstance(plain, BaseModel) and not isinstance(plain, model)
        plain = _checked(job, model.model_validate, plain.model_dump() if foreign else plain)
    elif plain and not isinstance(plain, Mapping | BaseModel):
        raise InvalidJobError(f"params of job {job} are no dict. Give a dict or a pydantic model.")
    text = encode_object(plain, "params", LONGEST_PARAMS)
    if model is not None:
        check_read_back(plain, _checked(job, model.model_validate_json, text), "params")
    params: dict[str, Any] = json.loads(text)
    return params


def _checked(job: str, check: Callable[[Any], Any], value: Any) -> Any:
    try:
        return check(value)
    except ValidationError as error:
        path, problem = explain(error)
        where = path.replace("payload", "params", 1)
        raise InvalidJobError(f"{where} of job {job} {problem}.") from None


def identity(
    params: Mapping[str, Any] | BaseModel, identifying: Sequence[str] | None = None
) -> str:
    """Return a hash of the identifying parameters; ``identifying`` None: all.

    ``params`` are those that the handlers see: read back from what is stored.
    """
    plain = params if isinstance(params, Mapping) else dump_model(params, "params", round_trip=True)
    chosen = {k: v for k, v in _parts(params, plain) if identifying is None or k in identifying}
    return hashlib.sha256(_braced(chosen).encode()).hexdigest()


def _canonical(value: Any, plain: Any) -> str:
    """Return the text that all equal values have; ``plain`` is this one as JSON has it.

    A set has no order, a number no digits that do not count, an instant no zone.
    """
    match value:
        case RootModel():
            return _canonical(value.root, plain)
        case bool():
            return json.dumps(plain)
        case int() | float() | Decimal():
            exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
            return str(_ALL_DIGITS.normalize(exact) or 0)
        case time() if value.utcoffset() is not None:
            return _canonical(datetime.combine(_A_DAY, value), plain)
        case datetime() if value.utcoffset() is not None:
            return json.dumps(value.astimezone(UTC).isoformat())
        case list() | tuple() | set() | frozenset() | deque() if _fits(value, plain, list):
            items = map(_canonical, value, plain)
            return f"[{','.join(sorted(items) if isinstance(value, set | frozenset) else items)}]"
        case _ if isinstance(plain, dict):
            return _braced(dict(_parts(value, plain)))
        case _:
            return json.dumps(plain)


def _parts(value: Any, plain: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names and canonical values of a dict, a model or a dataclass."""
    if isinstance(value, Mapping) and _fits(value, plain, dict):
        for key, item, name in zip(value, value.values(), plain, strict=True):
            yield (
                (name if isinstance(key, str) else _canonical(key, name)),
                _canonical(item, plain[name]),
            )
        return
    fields = getattr(value, "__pydantic_fields__", {})
    names = {each.serialization_alias or each.alias or name: name for name, each in fields.items()}
    for name, item in plain.items():
        yield name, _canonical(getattr(value, names.get(name, name), item), item)


def _fits(value: Any, plain: Any, kind: type[list[Any] | dict[str, Any]]) -> bool:
    """Whether it was written item by item; else a serializer of the user's did."""
    return isinstance(plain, kind) and len(plain) == len(value)


def _braced(parts: Mapping[str, str]) -> str:
    return f"{{{','.join(f'{json.dumps(k)}:{v}' for k, v in sorted(parts.items()))}}}"
