"""Patches of payloads: objects are merged, null removes, everything else replaces (RFC 7396)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tasks_app.domain.creation.new_task import NewTask
from tasks_app.domain.creation.validation import validate
from tasks_app.domain.errors import InvalidSelectionError, InvalidTaskError
from tasks_app.domain.handlers.spec import HandlerSpec

LONGEST_STEP = 40


def patched(payload: Any, patch: Any) -> Any:
    """Return a payload as the patch makes it; neither of the two is changed."""
    if not isinstance(patch, Mapping):
        return patch
    new = dict(payload) if isinstance(payload, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = patched(new.get(key), value)
    return new


def patch_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that sets each path, such as ``customer.name``, to its value.

    Raises:
        InvalidSelectionError: two of them are in each other's way.
    """
    patch: dict[str, Any] = {}
    for path, value in settings.items():
        *outer, last = path.split(".")
        inner: Any = patch
        for step in outer:
            inner = inner.setdefault(step, {})
            if not isinstance(inner, dict):
                break
        if not isinstance(inner, dict) or last in inner or not all((*outer, last)):
            raise InvalidSelectionError(f"The path {path!r:.60} cannot be set beside the others.")
        inner[last] = value
    return patch


def paths_of(patch: Mapping[str, Any], outer: str = "payload") -> Iterator[str]:
    """Yield what a patch touches, without the values."""
    for key, value in patch.items():
        path = f"{outer}.{key:.{LONGEST_STEP}}"
        if isinstance(value, Mapping) and value:
            yield from paths_of(value, path)
        else:
            yield path


def accepted(name: str, payload: Any, spec: HandlerSpec, limit: int) -> str:
    """Return a payload as it is to be stored.

    Raises:
        InvalidSelectionError: its handler's model refuses it; says where and no value, since what a
            validator says of one may repeat it.
    """
    try:
        return validate(NewTask(name, payload), spec, limit).payload
    except InvalidTaskError as error:
        where = _field(error.path, spec)
        raise InvalidSelectionError(f"its handler refuses {where}") from None


def _field(path: str, spec: HandlerSpec) -> str:
    """Keep of a path what the model itself says: further steps may be keys of the payload."""
    _, *steps = path.replace("[", ".").split(".")
    names = spec.payload_type.fields if spec.payload_type else ()
    return f"payload.{steps[0]}" if steps and steps[0] in names else "the payload"
