"""Payloads: what they may hold, secrets in them, and which paths rules hide."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    ValidationError,
    computed_field,
    field_serializer,
)
from pydantic.dataclasses import dataclass

from tasks_app import Settings
from tasks_app.domain.batch.records import checked_params
from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.errors import InvalidTaskError, UnreadableTaskError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.error_text import cause_of
from tasks_app.domain.tasks.masks import Masks
from tasks_app.domain.tasks.payload import (
    _encode_checked,
    decode,
    encode,
    encode_object,
    encode_plain,
)
from tasks_app.domain.tasks.payload_type import payload_type_of

LIMIT = 64 * 1024


class Color(str, Enum):  # noqa: UP042  the old way, which many code bases still use
    RED = "red"


class Size(StrEnum):
    BIG = "big"


class Number(IntEnum):
    SEVEN = 7


class Line(BaseModel):
    price: int


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    order_id: int = Field(alias="orderId")
    lines: list[Line] = []

    @computed_field
    @property
    def total(self) -> int:
        return sum(line.price for line in self.lines)


class Opaque(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    thing: object


class Measure(BaseModel):
    metres: float


def nested(depth: int, leaf: object = 1) -> object:
    value = leaf
    for _ in range(depth):
        value = [value]
    return value


def cyclic() -> dict:
    value: dict = {}
    value["me"] = value
    return value


REFUSED = [
    ({"a": float("nan")}, "payload.a", "is nan", "finite numbers"),
    ({"a": [1, float("inf")]}, "payload.a[1]", "is inf", "finite numbers"),
    ({"a": -float("inf")}, "payload.a", "is -inf", "finite numbers"),
    ({"a": 2**63}, "payload.a", "beyond 64 bits", "text"),
    ({"a": -(2**63) - 1}, "payload.a", "beyond 64 bits", "text"),
    ({"a": 10**5000}, "payload.a", "beyond 64 bits", "text"),
    ({"a": "x\x00y"}, "payload.a", "NUL", "text without"),
    ({"a": {"b": ["", "\ud800"]}}, "payload.a.b[1]", "lone surrogate", "valid Unicode"),
    ({"a\x00": 1}, r"payload['a\x00']", "NUL", "text without"),
    ({"\udfff": 1}, r"payload['\udfff']", "lone surrogate", "valid Unicode"),
    ({"a": {1: 2}}, "payload.a[int]", "key of type int", "string keys"),
    ({None: 2}, "payload[NoneType]", "key of type NoneType", "string keys"),
    ({10**5000: 2}, "payload[int]", "key of type int", "string keys"),
    ({"a": b"bytes"}, "payload.a", "of type bytes", "dict, list, str"),
    ({"a": {1, 2}}, "payload.a", "of type set", "dict, list, str"),
    ({"a": object()}, "payload.a", "of type object", "dict, list, str"),
    ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, "payload.a", "of type datetime", "dict"),
    ({"a": Decimal("1.5")}, "payload.a", "of type Decimal", "dict, list, str"),
    ({"a": uuid4()}, "payload.a", "of type UUID", "dict, list, str"),
    ({"a": 1j}, "payload.a", "of type complex", "dict, list, str"),
    ({"a": (n for n in (1, 2))}, "payload.a", "of type generator", "dict, list, str"),
    ({"a": [{"b": print}]}, "payload.a[0].b", "builtin_function", "dict, list, str"),
    ({"a": "x" * LIMIT}, "payload", f"has {LIMIT + 8} bytes", f"at most {LIMIT} bytes"),
    ({"a": "é" * (LIMIT // 2)}, "payload", "bytes", f"at most {LIMIT} bytes"),
    ({"a": nested(32)}, "payload.a" + "[0]" * 31, "nested deeper than 32", "depth 32"),
    ({"a": nested(5000)}, "payload.a" + "[0]" * 31, "nested deeper than 32", "depth 32"),
    (cyclic(), "payload" + ".me" * 32, "nested deeper than 32", "depth 32"),
    ({"a": Opaque(thing=object())}, "payload.a", "cannot be written as JSON", "fields"),
    (Opaque(thing=object()), "payload", "cannot be written as JSON", "fields"),
    (Opaque(thing="\ud800"), "payload", "", ""),
    (Measure(metres=float("nan")), "payload.metres", "is nan", "finite numbers"),
    (Opaque(thing=2**64), "payload.thing", "beyond 64 bits", "text"),
    ([], "payload", "of type list", "a dict with string keys, a pydantic model or a dataclass"),
    ("text", "payload", "of type str", "a dict"),
    (7, "payload", "of type int", "a dict"),
    (b"{}", "payload", "of type bytes", "a dict"),
    (Order, "payload", "of type ModelMetaclass", "a dict"),
]


@pytest.mark.parametrize(
    ("payload", "path", "problem", "allowed"), REFUSED, ids=range(len(REFUSED))
)
def test_bad_json_is_refused_with_what_is_allowed(
    payload, path: str, problem: str, allowed: str
) -> None:
    with pytest.raises(InvalidTaskError) as refused:
        encode_object(payload, "payload", LIMIT)
    assert refused.value.path.startswith(path)
    assert problem in str(refused.value)
    assert allowed in str(refused.value).partition("Allowed: ")[2]


def test_a_refusal_does_not_repeat_the_value() -> None:
    with pytest.raises(InvalidTaskError) as refused:
        encode_object({"card": "4111-1111\x00"}, "payload", LIMIT)
    assert "4111" not in str(refused.value)


def test_few_objects_that_unfold_into_billions_are_refused_at_once() -> None:
    value: list = []
    for _ in range(30):
        value = [value] * 10
    with pytest.raises(InvalidTaskError, match="more than 65536 values"):
        encode_object({"bomb": value}, "payload", LIMIT)


ADMITTED = [
    ({}, {}),
    ({"a": None, "b": True, "c": False}, None),
    ({"a": 2**63 - 1, "b": -(2**63)}, None),
    ({"a": 0.1, "b": -0.0, "c": 5e-324, "d": 1e15}, None),
    ({"a": 1e23, "b": 1.7976931348623157e308, "c": -1.2345678901234567e18}, None),
    ({"": "", "a b": "\t\n\"\\'", "é": "😀\u2028\uffff"}, None),
    ({"a": (1, 2)}, {"a": [1, 2]}),
    ({"a": MappingProxyType({"b": 1})}, {"a": {"b": 1}}),
    ({"a": Color.RED, "b": Size.BIG, "c": Number.SEVEN}, {"a": "red", "b": "big", "c": 7}),
    ({Color.RED: 1, Size.BIG: 2}, {"red": 1, "big": 2}),
    ({"a": Line(price=3)}, {"a": {"price": 3}}),
    (Order(orderId=3, lines=[Line(price=5)]), {"orderId": 3, "lines": [{"price": 5}]}),
    ({"a": nested(31)}, None),
    ({"a": "x" * (LIMIT - 8)}, None),
]


@pytest.mark.parametrize(("payload", "read"), ADMITTED, ids=range(len(ADMITTED)))
def test_good_json_is_read_back_as_it_was_written(payload, read) -> None:
    text = encode_object(payload, "payload", LIMIT)
    assert decode(text, "payload") == (payload if read is None else read)


def test_no_payload_is_the_empty_object() -> None:
    assert encode_object(None, "payload", LIMIT) == "{}"


def test_a_result_may_be_any_json_value() -> None:
    assert [encode(value, "result", 99) for value in (None, 7, "x", [1])] == [
        "null",
        "7",
        '"x"',
        "[1]",
    ]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_float_is_written_without_loss_and_without_an_exponent_that_jsonb_rounds(
    value: float,
) -> None:
    text = encode(value, "x", 999)
    found = json.loads(text)
    assert (type(found), found) == (float, value)
    assert "e+" not in text


@pytest.mark.parametrize("text", ["\\u0000123.0", '"\\u0000123.0"', '\\"\\u00001.0', "123.0"])
def test_text_that_looks_like_how_a_float_is_written_stays_text(text: str) -> None:
    value = [text, 1e16, {text: text}, Color.RED]
    assert json.loads(encode(value, "x", 999)) == [text, 1e16, {text: text}, "red"]


@given(st.floats())
def test_a_float_is_refused_exactly_when_it_is_not_finite(value: float) -> None:
    if math.isfinite(value):
        encode(value, "x", 999)
    else:
        with pytest.raises(InvalidTaskError):
            encode(value, "x", 999)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, "9" * 5000, "{'a': 1}", "\x00"],
    ids=["", "{", "[", "9", "'", "0"],
)
def test_what_a_stranger_wrote_and_nobody_can_read_says_what_to_do(text: str) -> None:
    with pytest.raises(UnreadableTaskError, match=r"The payload cannot be read .*create_task"):
        decode(text, "payload")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=4)
    ),
    max_leaves=20,
)


@pytest.mark.test_all
@given(st.dictionaries(st.text(max_size=4), ANY_JSON, max_size=4))
def test_the_short_way_admits_only_what_the_long_way_does_and_writes_the_same(value) -> None:
    short = encode_plain(value, 200)
    if short is None:
        return
    assert json.loads(short) == json.loads(_encode_checked(value, "payload", 200, None))


PLAIN = [
    {"order_id": 1},
    {"a": [1, 2.5, {"b": None}], "c": True, "d": '\\ " \n é 😀 \x7f \u2028'},
    {"a": (1, 2)},
    {"a": nested(31)},
]


@pytest.mark.parametrize("value", PLAIN, ids=range(len(PLAIN)))
def test_usual_payloads_go_the_short_way(value) -> None:
    assert encode_plain(value, LIMIT) is not None


def test_a_huge_value_in_few_objects_is_not_unfolded_by_the_short_way() -> None:
    line = [0] * 60_000
    with pytest.raises(InvalidTaskError, match="more than 65536 values"):
        encode_object({"bomb": [line] * 60_000}, "payload", LIMIT)


class TestToJson:
    """What JSON does not know may be written by somebody who does."""

    @staticmethod
    def written(value: object) -> object:
        if isinstance(value, set):
            return sorted(value)
        raise TypeError

    def test_it_writes_what_is_otherwise_refused(self) -> None:
        text = encode({"a": [{3, 1}], "b": 1}, "payload", LIMIT, self.written)
        assert json.loads(text) == {"a": [[1, 3]], "b": 1}

    def test_what_it_does_not_know_either_is_refused_with_its_path(self) -> None:
        with pytest.raises(InvalidTaskError, match=r"payload\.a\[0\] is of type complex"):
            encode({"a": [1j]}, "payload", LIMIT, self.written)

    def test_what_it_writes_is_checked_too(self) -> None:
        with pytest.raises(InvalidTaskError, match=r"payload\.a\[0\] is nan"):
            encode({"a": {math.nan}}, "payload", LIMIT, self.written)

    def test_one_that_never_ends_is_refused(self) -> None:
        with pytest.raises(InvalidTaskError, match="nested deeper than 32"):
            encode(object(), "payload", LIMIT, lambda value: value)


LIMIT_OF_PAYLOAD_SECRETS = 1_000
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
    return json.loads(validate_task(NewTask("t", payload), spec, LIMIT_OF_PAYLOAD_SECRETS).payload)


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


@pytest.mark.parametrize(
    ("act", "path"),
    [
        (lambda: kept(Login(pw=X), typed(Login, to_json=str)), r"payload\.pw"),
        (lambda: checked_params("job", Login, {"pw": "x"}), r"params\.pw"),
        (lambda: encode_object(Login(pw=X), "checkpoint", LIMIT), r"checkpoint\.pw"),
    ],
    ids=["a handler's own to_json", "parameters of a batch", "a checkpoint"],
)
def test_there_is_no_way_around(act: Callable[[], object], path: str) -> None:
    with pytest.raises(InvalidTaskError, match=f"^{path} is a secret"):
        act()


@pytest.mark.parametrize(
    ("rules", "value", "shown"),
    [
        ("card.number", {"card": {"number": 1, "n": 2}}, {"card": {"number": "***", "n": 2}}),
        ("number", {"card": {"number": 1}}, {"card": {"number": 1}}),
        ("*.pin", {"a": {"pin": 1}, "pin": 2}, {"a": {"pin": "***"}, "pin": 2}),
        (
            "**.pin",
            {"a": [{"b": {"pin": 1}}], "pin": 2},
            {"a": [{"b": {"pin": "***"}}], "pin": "***"},
        ),
        ("a.**", {"a": {"b": 1}, "c": 2}, {"a": "***", "c": 2}),
        ("cards.n", {"cards": [{"n": 1}, {"n": 2}]}, {"cards": [{"n": "***"}, {"n": "***"}]}),
        ("pi?", {"pin": None, "pine": 1}, {"pin": "***", "pine": 1}),
        ("**", [1, 2], "***"),
        ("mail.*:a, shop.pay:b", {"a": 1, "b": 2}, {"a": 1, "b": "***"}),
        ("", {"a": 1}, {"a": 1}),
    ],
)
def test_a_rule_hides_its_path_alone(rules: str, value: Any, shown: Any) -> None:
    assert Masks(rules).value("shop.pay", value) == shown


def test_a_text_loses_what_is_hidden_and_nothing_else() -> None:
    payload = {"card": {"number": 47110815, "owner": "Ann"}, "note": "it's\n"}
    text = "47110815 of Ann: it's"
    assert Masks("card.number").text("t", text, payload) == "*** of Ann: it's"
    assert Masks("x:card.number").text("t", text, payload) == text


@pytest.mark.parametrize(
    "quoted",
    [
        str,
        repr,
        json.dumps,
        partial(json.dumps, ensure_ascii=False),
        lambda each: repr({"k": each}),
    ],
)
def test_it_is_found_in_each_form_of_source_and_of_json(quoted: Callable[[str], str]) -> None:
    secret = 'Zürich "4711"\\\n'
    text = f"refused: {quoted(secret)}!"
    hidden = Masks("a").text("t", text, {"a": secret})
    assert "rich" not in hidden
    assert "***" in hidden


def test_of_a_text_that_was_cut_the_beginning_of_a_value_goes_too() -> None:
    cause = cause_of(ValueError("x" * 1_990 + "4711-0815-secret"))
    hidden = Masks("a").text("t", cause.message, {"a": "4711-0815-secret", "b": "xxx"})
    assert hidden == "x" * 1_990 + "***…"
    assert Masks("a").text("t", "a text…", {"a": "texture", "b": 1}) == "a ***…"
    assert Masks("a").text("t", "a text…", {"a": "another"}) == "a text…"


def test_what_pydantic_quotes_of_a_long_value_goes_too() -> None:
    class Card(BaseModel):
        number: int

    with pytest.raises(ValidationError) as refused:
        Card.model_validate({"number": "secret" * 20})
    text = Masks("a").text("t", str(refused.value), {"a": "secret" * 20})
    assert "secret" not in text
    assert "input_value=***, input_type=str" in text


@pytest.mark.parametrize("rules", ["a b", ".a", "a..b", "x:", ":a", "cards[0].number", "a[*]"])
def test_what_is_no_path_is_refused_at_the_start(rules: str) -> None:
    with pytest.raises(ValidationError, match="use paths"):
        Settings(masked_paths=rules)
