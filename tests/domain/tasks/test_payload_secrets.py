"""A secret is stored as it is or refused, and never as pydantic's stars."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Annotated, Any

import pytest
from pydantic import (
    BaseModel,
    Field,
    PlainSerializer,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    field_serializer,
)
from pydantic.dataclasses import dataclass

from tasks_app.domain.batch.records import checked_params
from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.payload import encode_object
from tasks_app.domain.tasks.payload_type import payload_type_of

LIMIT = 1_000
NOON = datetime(2031, 1, 1, 12, tzinfo=UTC)


class Login(BaseModel):
    pw: SecretStr
    at: datetime | None = None


class Aliased(BaseModel):
    note: str = "***"
    pw: SecretBytes = Field(serialization_alias="passWord", validation_alias="passWord")


class Nested(BaseModel):
    logins: dict[str, list[Login]]


class Loose(BaseModel):
    any: Any = None


class HiddenDate(Secret[date]):
    def _display(self) -> str:
        return "****/**/**"


class Born(BaseModel):
    born: HiddenDate


class Words(RootModel[list[SecretStr]]):
    pass


@dataclass
class Checked:
    pw: SecretStr


@dataclasses.dataclass
class Plain:
    pw: SecretStr


class Written(BaseModel):
    """As pydantic's manual has it."""

    pw: SecretStr
    raw: SecretBytes = SecretBytes(b"***")
    none: SecretStr | None = None
    empty: SecretStr = SecretStr("")

    @field_serializer("pw", "raw", when_used="json")
    def shown(self, value: SecretStr | SecretBytes) -> str | bytes:
        return value.get_secret_value()


SHOWN = Annotated[SecretStr, PlainSerializer(lambda secret: secret.get_secret_value())]
X = SecretStr("x")


def typed(annotation: Any, to_json: Callable[[Any], Any] | None = None) -> HandlerSpec:
    return HandlerSpec("t", print, payload_type=payload_type_of(annotation), to_json=to_json)


def kept(payload: Any, spec: HandlerSpec | None) -> Any:
    return json.loads(validate_task(NewTask("t", payload), spec, LIMIT).payload)


@pytest.mark.parametrize(
    ("annotation", "payload", "path"),
    [
        (Login, Login(pw=X), "payload.pw"),
        (Login, {"pw": X}, "payload.pw"),
        (Login, {"pw": "x", "at": NOON}, "payload.pw"),
        (None, Login(pw=X), "payload.pw"),
        (dict, Login(pw=X), "payload.pw"),
        (Aliased, Aliased(passWord=SecretBytes(b"x")), "payload.passWord"),
        (Nested, Nested(logins={"a": [Login(pw=X)]}), "payload.logins.a[0].pw"),
        (Loose, Loose(any=[Login(pw=X)]), "payload.any[0].pw"),
        (None, Born(born=HiddenDate(date(2000, 1, 1))), "payload.born"),
        (Checked, Checked(X), "payload.pw"),
        (Plain, Plain(X), "payload.pw"),
        (None, Checked(X), "payload.pw"),
        (None, Plain(X), "payload.pw"),
        (None, {"a": [1, {"b": Login(pw=X)}]}, "payload.a[1].b.pw"),
        (Words, Words([X]), "payload[0]"),
        (list[SecretStr], [X], "payload[0]"),
        (list[Login], [Login(pw=X)], "payload[0].pw"),
        (dict[str, SecretStr], {"a": X}, "payload.a"),
        (SecretStr, X, "payload"),
    ],
)
def test_a_secret_that_would_be_stars_is_refused_with_its_path(annotation, payload, path) -> None:
    with pytest.raises(InvalidTaskError) as refusal:
        kept(payload, None if annotation is None else typed(annotation))

    assert refusal.value.path == path
    assert str(refusal.value) == (
        f"{path} is a secret, which pydantic writes as stars. Allowed: a reference to the secret, "
        "or a field whose field_serializer writes the real value."
    )


@pytest.mark.parametrize(
    ("annotation", "payload", "stored"),
    [
        (Written, Written(pw=X), {"pw": "x", "raw": "***", "none": None, "empty": ""}),
        (None, Written(pw=X), {"pw": "x", "raw": "***", "none": None, "empty": ""}),
        (Login, {"pw": "x"}, {"pw": "x"}),
        (Login, {"pw": "**********"}, {"pw": "**********"}),
        (None, {"a": "**********", "b": [NOON.year]}, {"a": "**********", "b": [2031]}),
        (Loose, Loose(any="**********"), {"any": "**********"}),
        (list[SHOWN], [SecretStr("***x")], {"value": ["***x"]}),
    ],
)
def test_what_its_own_serializer_writes_is_stored(annotation, payload, stored) -> None:
    assert kept(payload, None if annotation is None else typed(annotation)) == stored


def test_a_handler_with_its_own_to_json_is_no_way_around() -> None:
    with pytest.raises(InvalidTaskError, match=r"^payload\.pw is a secret"):
        kept(Login(pw=X), typed(Login, to_json=str))


def test_parameters_of_a_batch_are_refused_too() -> None:
    with pytest.raises(InvalidTaskError, match=r"^params\.pw is a secret"):
        checked_params("job", Login, {"pw": "x"})


def test_a_checkpoint_is_refused_too() -> None:
    with pytest.raises(InvalidTaskError, match=r"^checkpoint\.pw is a secret"):
        encode_object(Login(pw=X), "checkpoint", LIMIT)
