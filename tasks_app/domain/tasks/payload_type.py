"""The type of a handler's payload: anything that pydantic can check, stored as a JSON object.

No payload is the empty object. Where a type admits more than objects, for instance a list, all its
values are stored under one key: ``{"value": […]}``.
"""

from __future__ import annotations

import inspect
import json
import re
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tasks_app.domain.errors import InvalidTaskError, UnreadableTaskError
from tasks_app.domain.tasks.payload import decode, encode, encode_object, encode_plain
from tasks_app.domain.tasks.payload_checks import (
    STARS,
    ToJson,
    check_read_back,
    check_secrets,
    dump_model,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter

VALUE = "value"
WRAPPED = f'{{"{VALUE}":%s}}'
_UNCHECKED = (inspect.Parameter.empty, Any, object, dict, Mapping, MutableMapping)
_SCALARS = frozenset({str, int, bool, type(None)})
_AS_WRITTEN = object()  # a payload that is JSON already: its type may read it in any way
# Keys in pydantic's schemas whose values are not schemas, but may look like one.
_NO_SCHEMAS = frozenset({"default", "expected", "metadata", "serialization"})
_LAZY = "an Iterable or Generator is checked only when it is read, and a list at once"
_MODULES = re.compile(r"(?:[A-Za-z_<][\w<>]*\.)+")


class PayloadType:
    """An annotation that payloads must fit.

    Raises:
        pydantic.errors.PydanticUserError: it cannot be checked, or cannot be written as JSON.
    """

    def __init__(self, annotation: Any) -> None:
        from pydantic import TypeAdapter  # noqa: PLC0415  many producers declare no handler
        from pydantic.errors import PydanticUserError  # noqa: PLC0415

        self.name: str = shown(annotation)
        self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        complete = isinstance(self._adapter.core_schema, dict)  # a model's class may not be yet
        if complete and _is_lazy(self._adapter.core_schema):
            raise PydanticUserError(_LAZY, code=None)
        self.is_object: bool = True
        self.is_optional: bool = False
        self._may_be_object = True
        is_class = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        if is_class and not annotation.__pydantic_root_model__:
            self._fields = annotation.model_fields
            return
        with warnings.catch_warnings(action="ignore"):  # about defaults
            schema = self._adapter.json_schema()
        self._fields = schema.get("properties", {})
        kinds = _branches(schema, schema.get("$defs", {}))
        self.is_object = all(kind in {"object", "null"} for kind in kinds)
        self.is_optional = "null" in kinds
        self._may_be_object = bool(kinds & {"object", None})

    @property
    def fields(self) -> frozenset[str]:
        """The names of its fields, if it has any."""
        return frozenset(self._fields)

    def wraps(self, payload: Any) -> bool:
        """Whether it is stored under a key, and not given in that form already."""
        return not self.is_object and (self._may_be_object or not _is_wrapped(payload))

    def write(self, payload: Any, limit: int, to_json: ToJson | None) -> str:
        """Return the stored JSON text of a payload.

        If the type itself admits no object, a payload in the stored form is accepted, too.

        Raises InvalidTaskError: it does not fit, JSON cannot hold it, or it reads back differently.
        """
        if payload is None and (self.is_object or self.is_optional):
            self._checked(self.read, "{}")
            return "{}"
        if self.is_object:
            text, wanted = self._text(payload, limit, to_json)
            if text == "{}" and self.is_optional:
                wanted = payload  # and this is read as None
        else:
            payload = payload if self.wraps(payload) else payload[VALUE]
            text, wanted = self._text(payload, limit - len(WRAPPED), to_json)
            text = WRAPPED % text
        back = self._checked(self.read, text)
        if wanted is not _AS_WRITTEN:
            check_read_back(wanted, back, "payload")
        return text

    def read(self, text: str) -> Any:
        """Return the handler's argument; raises pydantic.ValidationError or UnreadableTaskError."""
        if self.is_optional and text == "{}":
            return self._adapter.validate_python(None)
        if not self.is_object:
            kept = decode(text, "payload")
            if not _is_wrapped(kept):
                raise UnreadableTaskError(
                    f'The payload is not stored as {{"{VALUE}": …}}, as a {self.name} is. '
                    "Create the task with its handler, or write it in this form."
                )
            text = json.dumps(kept[VALUE])
        return self._adapter.validate_json(text)

    def _text(self, payload: Any, limit: int, to_json: ToJson | None) -> tuple[str, Any]:
        """Return its JSON, and the value that should be read back."""
        text, plain, wanted = encode_plain(payload, limit), payload, _AS_WRITTEN
        if text is not None:
            return text, wanted
        typed = self.is_object or type(payload) not in _SCALARS
        if typed and (to_json is None or isinstance(payload, BaseModel)):
            plain, wanted = self._plain(payload, limit)
        write = encode_object if self.is_object else encode
        text = write(plain, "payload", limit, to_json)
        if STARS in text:
            check_secrets(payload if wanted is _AS_WRITTEN else wanted, text, "payload")
        return text, wanted

    def _plain(self, payload: Any, limit: int) -> tuple[Any, Any]:
        """Return an object as JSON values, written by its type, and the value to be read back."""
        if isinstance(payload, BaseModel):
            plain = dump_model(payload, "payload", round_trip=True)
            try:
                self._adapter.validate_python(payload)
            except ValidationError:  # of another class: it counts as what it writes
                return plain, _AS_WRITTEN
            return plain, payload
        if isinstance(payload, dict | list | tuple | float):  # no type can write NaN
            encode(payload, "payload", limit, lambda _: None)
        value = self._checked(self._adapter.validate_python, payload)
        try:
            plain = self._adapter.dump_python(
                value, mode="json", by_alias=True, round_trip=True, warnings=False
            )
        except (ValueError, RecursionError):
            return value, value  # the encoder names the value that is not JSON
        return plain, value

    def _checked(self, check: Callable[[Any], Any], payload: Any) -> Any:
        try:
            return check(payload)
        except ValidationError as error:
            path, problem = explain(error)
            raise InvalidTaskError(path, problem, f"what {self.name} takes") from None


def payload_type_of(annotation: Any) -> PayloadType | None:
    """Return the type of an annotation; None: any object fits, as a dict.

    Raises PydanticUserError, see :class:`PayloadType`.
    """
    kind, parts = get_origin(annotation) or annotation, get_args(annotation)
    if any(kind is each for each in _UNCHECKED) and parts in [(), (str, Any), (str, object)]:
        return None
    return PayloadType(annotation)


@lru_cache(256)
def own_type(kind: type) -> PayloadType | None:
    """Return the type of a class that pydantic writes and reads as an object, else None."""
    if not (issubclass(kind, BaseModel) or is_dataclass(kind)):
        return None
    from pydantic.errors import PydanticUserError  # noqa: PLC0415  as above

    try:
        found = PayloadType(kind)
    except PydanticUserError:
        return None
    return found if found.is_object else None


def explain(error: ValidationError) -> tuple[str, str]:
    """Return path and problem of the first error, without the value."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
    return f"payload{path}", f"is refused: {first['msg']}"


def shown(annotation: Any) -> str:
    """Return an annotation as written in code, without modules."""
    return _MODULES.sub("", inspect.formatannotation(annotation))


def _is_lazy(schema: Any) -> bool:
    """Whether pydantic checks a part only when it is read, which is possible once."""
    match schema:
        case {"type": "generator"}:
            return True
        case {"type": str()}:
            parts = [part for key, part in schema.items() if key not in _NO_SCHEMAS]
        case dict():  # parts by the user's names
            parts = list(schema.values())
        case list() | tuple():
            parts = list(schema)
        case _:
            return False
    return any(map(_is_lazy, parts))


def _is_wrapped(payload: Any) -> bool:
    return type(payload) is dict and payload.keys() == {VALUE}


def _branches(schema: Mapping[str, Any], named: Mapping[str, Any]) -> set[str | None]:
    """Return the JSON types that a schema admits; None: any."""
    if "$ref" in schema:
        return _branches(named[schema["$ref"].rpartition("/")[2]], named)
    branches = schema.get("anyOf") or schema.get("oneOf")
    if branches:
        return set[str | None]().union(*(_branches(each, named) for each in branches))
    return {schema.get("type")}
