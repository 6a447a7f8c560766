"""Which parameters make the same instance of a job: those with the same canonical form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from tasks_app.domain.errors import InvalidJobError
from tasks_app.domain.tasks.payload import encode_object
from tasks_app.domain.tasks.payload_type import explain

LONGEST_PARAMS = 16 * 1024
"""Bytes of JSON."""


def checked_params(
    job: str, model: type[BaseModel] | None, given: Mapping[str, Any] | BaseModel | None
) -> dict[str, Any]:
    """Return the parameters as plain JSON, defaults filled in.

    Raises:
        InvalidJobError: they do not fit the job's model, or are not JSON.
    """
    plain: Any = {} if given is None else given
    if model is not None:
        try:
            plain = model.model_validate(
                plain.model_dump() if isinstance(plain, BaseModel) else plain
            )
        except ValidationError as error:
            path, problem = explain(error)
            where = path.replace("payload", "params", 1)
            raise InvalidJobError(f"{where} of job {job} {problem}.") from None
    if model is None and plain and not isinstance(plain, Mapping | BaseModel):
        raise InvalidJobError(f"params of job {job} are no dict. Give a dict or a pydantic model.")
    params: dict[str, Any] = json.loads(encode_object(plain, "params", LONGEST_PARAMS))
    return params


def identity(params: Mapping[str, Any], identifying: Sequence[str] | None = None) -> str:
    """Return a hash of the identifying parameters; ``identifying`` None: all.

    Neither the order of keys matters nor how a number is written: 1 and 1.0 are equal to JSON, to
    the database and to a model, so they are equal here.
    """
    chosen = {
        k: _canonical(v) for k, v in params.items() if identifying is None or k in identifying
    }
    canonical = json.dumps(chosen, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {k: _canonical(v) for k, v in value.items()}
        case list():
            return [_canonical(v) for v in value]
        case _:
            return value
