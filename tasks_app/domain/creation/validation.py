"""Who may enter the pool: from a NewTask to a checked TaskRow, or an InvalidTaskError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks_app.domain.creation.new_task import NewTask
from tasks_app.domain.creation.row_template import terms_of
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.option_checks import key
from tasks_app.domain.tasks.payload import encode_object, encode_plain
from tasks_app.domain.tasks.records import KEYS, RowTemplate, TaskRow

_NO_OPTIONS: Mapping[str, Any] = {}
_KEYS = frozenset(KEYS)
_NO_KEYS: tuple[str | None, ...] = (None,) * len(KEYS)


def validate(new: NewTask, spec: HandlerSpec | None, limit: int) -> TaskRow:
    """Return the row to insert; ``spec`` is the handler's where this process knows it.

    Raises:
        InvalidTaskError: with the path of the bad value and what is allowed.
    """
    name = new.task if spec is None else spec.name
    if new.options:
        keys, terms = _keys_and_terms(name, spec, new.options)
    else:
        keys, terms = _NO_KEYS, terms_of(name, spec, _NO_OPTIONS)
    payload = _payload(_given(new, spec), spec, limit)
    return tuple.__new__(TaskRow, (payload, *keys, terms))  # the class takes longer


def admit_alike(new: NewTask, terms: RowTemplate, limit: int) -> TaskRow | None:
    """Return the same row at half of the price, if the task has nothing but a plain payload.

    ``terms`` are those of a task of the same name, with no options, whose handler asks nothing of
    payloads. None: look closer.
    """
    if new.options or new.args is not None or new.kwargs is not None:
        return None
    payload = new.payload
    text = encode_plain(payload, limit) if type(payload) is dict else None
    return None if text is None else tuple.__new__(TaskRow, (text, *_NO_KEYS, terms))


def _keys_and_terms(
    name: Any, spec: HandlerSpec | None, options: Mapping[str, Any]
) -> tuple[tuple[str | None, ...], RowTemplate]:
    keys = _NO_KEYS
    if not _KEYS.isdisjoint(options):
        keys = tuple([key(options, name) for name in KEYS])
        options = {k: v for k, v in options.items() if k not in _KEYS}
    terms = terms_of(name, spec, options)
    _, unique_key, order_key, _ = keys
    if unique_key is None and terms.rule is not None:
        raise InvalidTaskError("options.unique_key", "is None, yet has a scope or policy", "a key")
    if order_key is None and (terms.order_skips or terms.strict_order):
        raise InvalidTaskError(
            "options.order_key", "is None, yet has a policy or is strict", "a key"
        )
    return keys, terms


def check_call(new: NewTask) -> None:
    """Pass if ``args`` and ``kwargs`` are something to call a function with.

    Raises:
        InvalidTaskError: they are not.
    """
    if not isinstance(new.args, list | tuple | None):
        raise InvalidTaskError("args", f"is of type {type(new.args).__name__}", "a list or tuple")
    if not isinstance(new.kwargs, Mapping | None):
        raise InvalidTaskError("kwargs", f"is of type {type(new.kwargs).__name__}", "a dict")


def _given(new: NewTask, spec: HandlerSpec | None) -> Any:
    """Return the payload; ``args`` and ``kwargs`` make that of a task with Python arguments."""
    if new.args is None and new.kwargs is None:
        return new.payload
    if new.payload is not None:
        raise InvalidTaskError("payload", "is given together with args or kwargs", "one of them")
    from tasks_app.domain.tasks.call_payload import CALL  # noqa: PLC0415  the first model is slow to make

    if spec is not None and spec.payload_type is not CALL:
        raise InvalidTaskError("args", f"is given to the handler {spec.name}", "a payload")
    check_call(new)
    return {"args": new.args or [], "kwargs": new.kwargs or {}}


def _payload(payload: Any, spec: HandlerSpec | None, limit: int) -> str:
    if spec is None:
        return encode_object(payload, "payload", limit)
    if spec.payload_type is None:
        return encode_object(payload, "payload", limit, spec.to_json)
    return spec.payload_type.write(payload, limit, spec.to_json)
