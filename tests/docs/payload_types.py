"""The page of payload types, each of them written and read back.

``python -m tests.docs.payload_types`` writes it anew.
"""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    AnyUrl,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    PlainSerializer,
    RootModel,
    SecretStr,
    computed_field,
)
from pydantic import dataclasses as checked
from typing_extensions import TypedDict

from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.tasks.payload_type import PayloadType, shown

T = TypeVar("T")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "payload-types.md"
LIMIT = 10_000
BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2031, 1, 1, 12, 0, 0, 250, tzinfo=UTC)


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Word(enum.StrEnum):
    YES = "yes"


class Line(BaseModel):
    price: Decimal


class GiftLine(Line):
    card: str


class Order(BaseModel):
    lines: list[Line]
    at: datetime | None = None


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    amount: Decimal


class Aliased(BaseModel):
    order_id: int = Field(alias="orderId")


class OneWayAlias(BaseModel):
    note: str = Field("", serialization_alias="orderNote")


class Excluded(BaseModel):
    note: str = Field("", exclude=True)


class Computed(BaseModel):
    net: int

    @computed_field
    def gross(self) -> int:
        return self.net * 2


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")


class Base64(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    raw: bytes


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    n: int


class Box(BaseModel, Generic[T]):
    content: T


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    name: str


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


Pet = Annotated[Cat | Dog, Discriminator("kind")]


class Mug(BaseModel):
    name: str


class Cup(BaseModel):
    name: str


class Node(BaseModel):
    next: Node | None = None


class Numbers(RootModel[list[int]]):
    pass


class Login(BaseModel):
    password: SecretStr


class Point(NamedTuple):
    x: int
    y: int


class Visit(TypedDict):
    at: date


@dataclasses.dataclass
class Parcel:
    weight: float


@dataclasses.dataclass(slots=True)
class Slots:
    weight: float


@checked.dataclass
class Checked:
    weight: float


def euros(value: Any) -> int:
    return round(float(value) * 100)


Cents = Annotated[int, BeforeValidator(euros)]
Upper = Annotated[str, AfterValidator(str.upper)]


class Bill(BaseModel):
    amount: Cents


Rounded = Annotated[float, PlainSerializer(round)]
CENTS, UPPER = "Annotated[int, BeforeValidator(euros)]", "Annotated[str, AfterValidator(str.upper)]"

CASES: Sequence[tuple[Any, Any] | tuple[Any, Any, str]] = (
    (dict, {"a": [1, None, "x"]}),
    (int, 5),
    (bool, False),
    (float, 1.5),
    (float, 1e22),
    (str, "text"),
    (bytes, b"ab"),
    (bytes, b"\xff"),
    (Base64, Base64.model_construct(raw=b"\xff")),
    (Decimal, Decimal("1.50")),
    (Fraction, Fraction(1, 3)),
    (UUID, UUID(int=1)),
    (datetime, NOON),
    (datetime, datetime(2031, 1, 1, 12)),  # noqa: DTZ001
    (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)),
    (date, date(2031, 1, 1)),
    (time, time(12, 30)),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (Colour, Colour.RED),
    (Size, Size.BIG),
    (Word, Word.YES),
    (Literal["a", "b"], "a"),
    (PurePosixPath, PurePosixPath("/etc/hosts")),
    (AnyUrl, AnyUrl("https://example.org/a")),
    (ipaddress.IPv4Address, ipaddress.IPv4Address("10.0.0.1")),
    (ipaddress.IPv6Network, ipaddress.IPv6Network("fd00::/8")),
    (re.Pattern[str], re.compile("a+")),
    (ZoneInfo, BERLIN),
    (ByteSize, ByteSize(1024)),
    (list[int], [1, 2]),
    (tuple[int, str], (1, "a")),
    (Point, Point(1, 2)),
    (set[int], {1}),
    (frozenset[str], frozenset("a")),
    (deque[int], deque([1, 2])),
    (dict[str, int], {"value": 1}),
    (dict[int, str], {1: "a"}),
    (dict[UUID, date], {UUID(int=1): date(2031, 1, 1)}),
    (OrderedDict[str, int], OrderedDict(a=1)),
    (defaultdict[str, int], defaultdict(int, a=1)),
    (Mapping[str, Decimal], {"a": Decimal("1.50")}),
    (dict[str, int] | list[int], {"value": 1}),
    (dict[str, int] | None, None),
    (dict[str, int] | None, {}),
    (Order | None, Order(lines=[])),
    (int | None, None),
    (int | str, "5"),
    (str | date, date(2031, 1, 1)),
    (bool | int, 1),
    (JsonValue, {"a": [1]}),
    (Any | None, (1, 2)),
    (Annotated[int, Field(gt=3)], 5, "Annotated[int, Field(gt=3)]"),
    (Upper, "ABC", UPPER),
    (Cents, "12.50", CENTS),
    (Rounded, 1.5, "Annotated[float, PlainSerializer(round)]"),
    (Order, Order(lines=[Line(price=Decimal("1.50"))], at=NOON)),
    (list[Order], [Order(lines=[])]),
    (Order, Order(lines=[GiftLine(price=Decimal(1), card="rose")])),
    (Strict, Strict(day=date(2031, 1, 1), amount=Decimal("1.50"))),
    (Aliased, Aliased(orderId=7)),
    (Bill, Bill(amount=12.5)),  # type: ignore[arg-type]
    (Bill, {"amount": "12.50"}),
    (OneWayAlias, OneWayAlias(note="fragile")),
    (Excluded, Excluded(note="fragile")),
    (Computed, Computed(net=1)),
    (Extra, Extra.model_validate({"more": 1})),
    (Frozen, Frozen(n=1)),
    (Box[date], Box[date](content=date(2031, 1, 1))),
    (Pet, Dog(name="rex"), 'Annotated[Cat | Dog, Discriminator("kind")]'),
    (Mug | Cup, Cup(name="blue")),
    (Node, Node(next=Node())),
    (Numbers, Numbers([1])),
    (Login, Login(password=SecretStr("x"))),
    (Visit, Visit(at=date(2031, 1, 1))),
    (Parcel, Parcel(1.5)),
    (Slots, Slots(1.5)),
    (Checked, Checked(1.5)),
)  # fmt: skip


HEAD = """# Types of payloads

Generated from `tests/docs/payload_types.py` by `make docs`: each row is written and read back.

`create_task` reads back what it is about to store. It refuses, with the path, what its type writes
one way and reads another: by an alias, a serializer, an excluded field, or a validator that changes
a value once more. `==` decides.

- JSON that is given (a dict, a list, a text) is stored as it is, and read once, when the task runs:
  see `Bill`.
- An instant keeps its offset; the name of its zone is lost.
- JSON has one kind of list. Where no type says tuple or set, a list arrives.
- jsonb keeps no order of keys: shorter ones come first. A list of pairs keeps one.

| type | given | stored | the handler gets |
|---|---|---|---|
"""


def page() -> str:
    return HEAD + "".join(f"| {' | '.join(_cells(*case))} |\n" for case in CASES)


def _cells(annotation: Any, given: Any, name: str | None = None) -> list[str]:
    kind = PayloadType(annotation)
    cells = [name or shown(annotation), _code(given)]
    try:
        text = kind.write(given, LIMIT, None)
    except InvalidTaskError as error:
        return [*map(_cell, cells), "", f"refused: `{error.path}`"]
    got = kind.read(text)
    same = got == given and type(got) is type(given)
    return [*map(_cell, [*cells, text]), "the same" if same else _cell(_code(got))]


def _code(value: Any) -> str:
    return re.sub(r"datetime\.(?=datetime|date|time)|zoneinfo\.", "", repr(value))


def _cell(code: str) -> str:
    return f"`{code}`".replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
