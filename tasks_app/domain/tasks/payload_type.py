"""What a handler takes as its payload: whatever pydantic can check, kept in the pool as an object.

The pool holds JSON objects. No payload at all is the empty one, and a value that is no object, such
as a list, stands under one key: ``{"value": […]}``.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tasks_app.domain.errors import InvalidTaskError, UnreadableTaskError
from tasks_app.domain.tasks.payload import encode, encode_object, encode_plain
from tasks_app.domain.tasks.payload_checks import ToJson, dump_model

if TYPE_CHECKING:
    from pydantic import TypeAdapter

VALUE = "value"
_WRAPPED = f'{{"{VALUE}":%s}}'
_UNCHECKED = (inspect.Parameter.empty, Any, object, dict, Mapping, MutableMapping)
_SCALARS = frozenset({str, int, bool, type(None)})
_MODULES = re.compile(r"(?:[A-Za-z_<][\w<>]*\.)+")


class PayloadType:
    """An annotation that payloads must fit.

    Raises:
        pydantic.errors.PydanticUserError: it cannot be checked, or not be written as JSON.
    """

    def __init__(self, annotation: Any) -> None:
        from pydantic import TypeAdapter  # noqa: PLC0415  many producers declare no handler

        self.name = shown(annotation)
        self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        self.is_object, self.is_optional = True, False
        if _is_model(annotation):  # which may not be complete yet
            self._fields = annotation.model_fields
            return
        with warnings.catch_warnings(action="ignore"):  # of defaults, which say nothing here
            schema = self._adapter.json_schema()
        self._fields = schema.get("properties", {})
        kinds = _branches(schema, schema.get("$defs", {}))
        self.is_object = all(kind in {"object", "null"} for kind in kinds)
        self.is_optional = "null" in kinds

    @property
    def fields(self) -> frozenset[str]:
        """What it calls the parts of a payload, where it has names for them."""
        return frozenset(self._fields)

    def write(self, payload: Any, limit: int, to_json: ToJson | None) -> str:
        """Return a payload as the pool keeps it; one that is kept in this form is taken, too.

        Raises:
            InvalidTaskError: it does not fit, or JSON cannot hold it.
        """
        if not self.is_object:
            limit -= len(_WRAPPED)
            payload = payload[VALUE] if _is_wrapped(payload) else payload
        text = encode_plain(payload, limit)
        if text is None and type(payload) not in _SCALARS and to_json is None:
            payload = self._plain(payload, limit)
        if payload is None and self.is_object and not self.is_optional:
            payload = {}
        self._checked(payload)
        if payload is None and self.is_optional:
            return "{}"
        if self.is_object:
            return text or encode_object(payload, "payload", limit, to_json)
        return _WRAPPED % (text or encode(payload, "payload", limit, to_json))

    def read(self, kept: Any) -> Any:
        """Return what the handler is called with.

        Raises:
            pydantic.ValidationError: it does not fit.
            UnreadableTaskError: it is not kept as such values are.
        """
        if self.is_optional and kept == {}:
            return self._adapter.validate_python(None)
        if self.is_object:
            return self._adapter.validate_python(kept)
        if not _is_wrapped(kept):
            raise UnreadableTaskError(
                f'The payload is not kept as {{"{VALUE}": …}}, as a {self.name} is. '
                "Create the task with its handler, or write it so."
            )
        return self._adapter.validate_python(kept[VALUE])

    def _plain(self, payload: Any, limit: int) -> Any:
        """Return objects as JSON, written by their types."""
        if isinstance(payload, BaseModel):
            return dump_model(payload, "payload", round_trip=True)
        if isinstance(payload, dict | list | tuple | float):  # no type makes a number of NaN
            encode(payload, "payload", limit, lambda _: None)
        value = self._checked(payload)
        try:
            return self._adapter.dump_python(
                value, mode="json", by_alias=True, round_trip=True, warnings=False
            )
        except (ValueError, RecursionError):
            return value  # whoever writes it says where it is no JSON

    def _checked(self, payload: Any) -> Any:
        try:
            return self._adapter.validate_python(payload)
        except ValidationError as error:
            path, problem = explain(error)
            raise InvalidTaskError(path, problem, f"what {self.name} takes") from None


def payload_type_of(annotation: Any) -> PayloadType | None:
    """Return what checks payloads of this annotation; None: any object fits, as a dict.

    Raises:
        pydantic.errors.PydanticUserError: as :class:`PayloadType`.
    """
    kind, parts = get_origin(annotation) or annotation, get_args(annotation)
    if any(kind is each for each in _UNCHECKED) and parts in [(), (str, Any), (str, object)]:
        return None
    return PayloadType(annotation)


def explain(error: ValidationError) -> tuple[str, str]:
    """Return path and problem of the first fault, without the value itself."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
    return f"payload{path}", f"is refused: {first['msg']}"


def shown(annotation: Any) -> str:
    """Write an annotation without the modules, as code does."""
    return _MODULES.sub("", inspect.formatannotation(annotation))


def _is_model(annotation: Any) -> bool:
    """Whether it is a model that is an object."""
    if not isinstance(annotation, type) or not issubclass(annotation, BaseModel):
        return False
    return not annotation.__pydantic_root_model__


def _is_wrapped(payload: Any) -> bool:
    return type(payload) is dict and payload.keys() == {VALUE}


def _branches(schema: Mapping[str, Any], named: Mapping[str, Any]) -> set[str | None]:
    """Return the kinds of JSON that a schema admits; None: any."""
    if "$ref" in schema:
        return _branches(named[schema["$ref"].rpartition("/")[2]], named)
    branches = schema.get("anyOf") or schema.get("oneOf")
    if branches:
        return set[str | None]().union(*(_branches(each, named) for each in branches))
    return {schema.get("type")}
