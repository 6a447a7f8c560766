"""Merge patches of payloads: objects are merged, null removes, all else replaces (RFC 7396)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from tasks_app.domain.creation import NewTask
from tasks_app.domain.creation import validate
from tasks_app.domain.errors import InvalidSelectionError, InvalidTaskError, UnreadableTaskError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.payload_type import explain

LONGEST_STEP = 40


def patched(payload: Any, patch: Any) -> Any:
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
    """Return the patch that sets each path, as in ``{"customer.name": "A"}``, to its value.

    Raises:
        InvalidSelectionError: two paths conflict.
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
    """Yield the paths that a patch touches, without their values."""
    for key, value in patch.items():
        path = f"{outer}.{key:.{LONGEST_STEP}}"
        if isinstance(value, Mapping) and value:
            yield from paths_of(value, path)
        else:
            yield path


def accepted(name: str, payload: Any, spec: HandlerSpec, limit: int) -> str:
    """Return the JSON text of a payload that is given as it is stored.

    Raises:
        InvalidSelectionError: the handler's model refuses it. The message says where and omits the
            validator's own text, which may repeat the value.
    """
    try:
        text = validate(NewTask(name, payload), None, limit).payload
        spec.payload(text)
    except (InvalidTaskError, ValidationError, UnreadableTaskError) as error:
        where = _field(error, spec)
        raise InvalidSelectionError(f"its handler refuses {where}") from None
    return text


def _field(error: Exception, spec: HandlerSpec) -> str:
    """Return the first step if the model names it: further steps may be keys of the payload."""
    path = explain(error)[0] if isinstance(error, ValidationError) else "payload"
    _, *steps = path.replace("[", ".").split(".")
    names = spec.payload_type.fields if spec.payload_type else ()
    return f"payload.{steps[0]}" if steps and steps[0] in names else "the payload"
