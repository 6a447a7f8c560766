"""Types of payloads, retry policies, states."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, Field, PrivateAttr, RootModel, ValidationError
from typing_extensions import TypedDict

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.durations import LONGEST
from tasks_app.domain.errors import IllegalTransitionError, InvalidTaskError, UnreadableTaskError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.payload_type import PayloadType, explain, payload_type_of
from tasks_app.domain.tasks.retry_policy import Exponential, Fixed, Levels, parse_policy
from tasks_app.domain.tasks.states import (
    TERMINAL,
    TRANSITIONS,
    Event,
    Pool,
    State,
    next_state,
    pool_of,
    sources,
    states_in,
)
from tests.cases import in_one_test

LIMIT = 1_000
NOON = datetime(2031, 1, 1, 12, tzinfo=UTC)


class Line(BaseModel):
    price: int


class Order(BaseModel):
    lines: list[Line]
    at: datetime | None = None


class Colour(enum.Enum):
    RED = "red"


class Refund(BaseModel):
    refund: Decimal


class Numbers(RootModel[list[int]]):
    pass


@dataclass
class Parcel:
    weight: float
    due: date | None = None
    lines: list[Line] = field(default_factory=list)


class Visit(TypedDict):
    at: datetime
    who: str


class Node(BaseModel):
    next: Node | None = None


def kept(annotation: Any, payload: Any) -> Any:
    """Return what the pool would keep."""
    spec = HandlerSpec("t", print, payload_type=payload_type_of(annotation)) if annotation else None
    return json.loads(validate_task(NewTask("t", payload), spec, LIMIT).payload)


@pytest.mark.parametrize(
    ("annotation", "payload", "stored"),
    [
        (Order, Order(lines=[Line(price=1)]), {"lines": [{"price": 1}], "at": None}),
        (Order, {"lines": [{"price": 1}]}, {"lines": [{"price": 1}]}),
        (Order, {"lines": [], "at": NOON}, {"lines": [], "at": "2031-01-01T12:00:00Z"}),
        (Node, Node(next=Node()), {"next": {"next": None}}),
        (Parcel, Parcel(1.5, date(2031, 1, 1)), {"weight": 1.5, "due": "2031-01-01", "lines": []}),
        (Parcel, {"weight": 2}, {"weight": 2}),
        (Parcel, {"weight": 2, "lines": [Line(price=1)]}, None),
        (Visit, {"at": NOON, "who": "ann"}, {"at": "2031-01-01T12:00:00Z", "who": "ann"}),
        (Order | None, None, {}),
        (Order | None, Order(lines=[]), {"lines": [], "at": None}),
        (Order | Refund, Refund(refund=Decimal("1.50")), {"refund": "1.50"}),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (dict[str, Colour], {"a": Colour.RED}, {"a": "red"}),
        (int, 5, {"value": 5}),
        (int | None, None, {}),
        (int | None, 5, {"value": 5}),
        (str, "text", {"value": "text"}),
        (float, 1.5, {"value": 1.5}),
        (bool, False, {"value": False}),
        (UUID, UUID(int=1), {"value": "00000000-0000-0000-0000-000000000001"}),
        (datetime, NOON, {"value": "2031-01-01T12:00:00Z"}),
        (list[Order], [Order(lines=[])], {"value": [{"lines": [], "at": None}]}),
        (list[Order], [], {"value": []}),
        (tuple[int, str], (1, "a"), {"value": [1, "a"]}),
        (set[int], {1}, {"value": [1]}),
        (Literal["a", "b"], "a", {"value": "a"}),
        (Annotated[int, Field(gt=3)], 5, {"value": 5}),
        (Numbers, Numbers([1, 2]), {"value": [1, 2]}),
        (Order | int, 5, {"value": 5}),
        (Order | int, Order(lines=[]), {"value": {"lines": [], "at": None}}),
    ],
    ids=str,
)
def test_what_is_kept_is_json_and_read_back_equal(annotation, payload, stored) -> None:
    found = kept(annotation, payload)
    assert stored in (found, None)
    again = PayloadType(annotation).read(json.dumps(found))
    if not isinstance(payload, dict):
        assert again == payload
    assert kept(annotation, again) is not None


@pytest.mark.parametrize(
    ("annotation", "payload", "path", "allowed"),
    [
        (Order, None, "payload.lines", "what Order takes"),
        (Order, Refund(refund=Decimal(1)), "payload.lines", "what Order takes"),
        (Order, Parcel(1), "payload", "what Order takes"),
        (Parcel, Order(lines=[]), "payload.weight", "what Parcel takes"),
        (Parcel, {"weight": "much"}, "payload.weight", "what Parcel takes"),
        (Parcel, {"weight": float("nan")}, "payload.weight", "finite numbers, or None"),
        (Parcel, Parcel(float("nan")), "payload.weight", "finite numbers, or None"),
        (Visit, {"at": "noon", "who": "ann"}, "payload.at", "what Visit takes"),
        (Visit, {"at": NOON, "who": ...}, "payload.who", "what Visit takes"),
        (Order | None, {"lines": 5}, "payload.lines", "what Order | None takes"),
        (int, None, "payload", "what int takes"),
        (int, "five", "payload", "what int takes"),
        (int, {"a": 1}, "payload", "what int takes"),
        (int, 2**64, "payload", "-2**63 .. 2**63-1, or text"),
        (str, "\x00", "payload", "text without \\u0000"),
        (float, float("inf"), "payload", "finite numbers, or None"),
        (
            list[Order],
            [{"lines": []}, {"lines": [{"price": "x"}]}],
            "payload[1].lines[0].price",
            "",
        ),
        (list[Order], Order(lines=[]), "payload", "what list[Order] takes"),
        (list[str], ["x" * LIMIT], "payload", "at most 988 bytes; store big data elsewhere"),
        (Annotated[int, Field(gt=3)], 3, "payload", "what Annotated[int, "),
        (dict[str, int], {"a": "x"}, "payload.a", "what dict[str, int] takes"),
        (dict[str, int], [1], "payload", "what dict[str, int] takes"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_at_the_create(annotation, payload, path, allowed) -> None:
    with pytest.raises(InvalidTaskError) as refused:
        kept(annotation, payload)
    assert refused.value.path == path
    assert allowed in str(refused.value)


class OneWay(BaseModel):
    note: str = Field("", serialization_alias="orderNote")
    at: datetime | None = None
    log: list[Any] = Field([], exclude=True)
    _seen: object = PrivateAttr(default_factory=object)


@dataclass
class Cents:
    amount: Annotated[int, BeforeValidator(lambda value: round(float(value) * 100))]


class BigLine(Line):
    card: str = ""


class Rates(BaseModel):
    rates: dict = {}
    typed: dict[int, int] = {}
    any: Any = None


LATE_HOUR = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)


@in_one_test(
    "annotation, payload, path",
    [
        (OneWay, OneWay(note="fragile"), "payload.note"),
        (OneWay, OneWay(log=[1]), "payload.log[0]"),
        (None, OneWay(note="fragile"), "payload.note"),
        (list[OneWay], [OneWay(), OneWay(note="fragile")], "payload[1].note"),
        (Cents, Cents(1250), "payload.amount"),
        (None, Cents(1250), "payload.amount"),
        (dict[str, Cents], {"a": Cents(1250)}, "payload.a.amount"),
        (Order, Order(lines=[BigLine(price=1, card="rose")]), "payload.lines[0].card"),
        (Line, BigLine(price=1, card="rose"), "payload.card"),
        (Rates, Rates(rates={1: 5}), "payload.rates[1]"),
        (Rates, Rates(rates={1: 5, "1": 6}), "payload.rates[1]"),
        (Rates, Rates(any=[{None: 1}]), "payload.any[0][None]"),
        (str | date, date(2031, 1, 1), "payload"),
        (dict[str, int] | None, {}, "payload"),
    ],
)
def test_what_would_be_read_as_another_value_is_refused(annotation, payload, path) -> None:
    with pytest.raises(
        InvalidTaskError, match="is written in one way and read in another"
    ) as refused:
        kept(annotation, payload)
    assert refused.value.path == path


@in_one_test(
    "annotation, payload",
    [
        (OneWay, OneWay()),  # two of them are never equal: of private state
        (OneWay, OneWay(at=LATE_HOUR)),  # nor an hour that a clock shows twice
        (None, OneWay(at=LATE_HOUR)),
        (list[Any], [(1, 2)]),
        (Rates, Rates(rates={"1": 5}, typed={1: 5})),
    ],
)
def test_what_differs_only_for_python_is_admitted(annotation, payload) -> None:
    assert kept(annotation, payload) is not None


def test_of_a_type_with_objects_and_others_an_object_is_never_taken_for_the_stored_form() -> None:
    either = dict[str, list[int]] | list[int]
    assert kept(either, {"value": [1]}) == {"value": {"value": [1]}}
    assert kept(either, [1]) == {"value": [1]}


def test_a_strict_model_reads_from_json_what_it_wrote() -> None:
    class Bill(BaseModel, strict=True):
        day: date
        amount: Decimal

    bill = Bill(day=date(2031, 1, 1), amount=Decimal("1.50"))
    assert PayloadType(Bill).read(json.dumps(kept(Bill, bill))) == bill
    assert kept(Bill, {"day": "2031-01-01", "amount": "1.50"})


def test_a_value_may_be_given_as_it_is_kept_by_who_does_not_know_the_handler() -> None:
    assert kept(list[int], {"value": [1, 2]}) == kept(list[int], [1, 2])


@pytest.mark.parametrize("strange", [{}, {"a": 1}, {"value": 1, "more": 2}])
def test_a_row_that_keeps_no_such_value_is_unreadable_and_its_content_is_not_told(strange) -> None:
    with pytest.raises(
        UnreadableTaskError, match=r'not stored as {"value": …}, as a list\[int\] is'
    ):
        PayloadType(list[int]).read(json.dumps(strange))


def test_a_row_of_another_shape_is_refused_at_the_run() -> None:
    with pytest.raises(ValidationError):
        PayloadType(Parcel).read('{"weight": "much"}')


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({}, "payload.lines"),
        ({"lines": [{"price": 1}, {"price": "secret"}]}, "payload.lines[1].price"),
        (7, "payload"),
    ],
)
def test_a_fault_in_a_payload_is_explained_by_its_path_without_its_value(
    payload, path: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        Order.model_validate(payload)
    where, problem = explain(refused.value)
    assert where == path
    assert problem.startswith("is refused: ")
    assert "secret" not in problem


@dataclass
class Odd:
    thing: Any = print


def test_a_default_that_is_no_json_is_nobodys_business() -> None:
    """pydantic would warn, and warnings are errors here."""
    assert PayloadType(Odd).read("{}") == Odd()


class Late(BaseModel):
    """Complete only when what it refers to is."""

    line: Later  # noqa: F821  is made below


def test_a_model_may_be_completed_after_the_declaration() -> None:
    late = PayloadType(Late)

    class Later(BaseModel):
        price: int

    Late.model_rebuild(_types_namespace={"Later": Later})
    assert late.read('{"line": {"price": 1}}').line.price == 1


def test_a_dataclass_is_as_good_as_a_model_where_the_handler_is_not_known() -> None:
    row = validate_task(NewTask("t", Parcel(1.5, date(2031, 1, 1), [Line(price=1)])), None, LIMIT)
    assert json.loads(row.payload) == {"weight": 1.5, "due": "2031-01-01", "lines": [{"price": 1}]}
    with pytest.raises(InvalidTaskError, match="a pydantic model or a dataclass"):
        validate_task(NewTask("t", Parcel), None, LIMIT)


SPANS = st.timedeltas(timedelta(0), LONGEST)
JITTERS = st.integers(0, 100)
POLICIES = st.one_of(
    st.builds(Levels, st.lists(SPANS, min_size=1, max_size=100).map(tuple), JITTERS),
    st.builds(Fixed, SPANS, jitter=JITTERS),
    st.builds(Exponential, SPANS, st.floats(0.001, 1000), SPANS),
)
NINE = "5s,30s,1m,10m,30m,1h,6h,1d,2d"


def seconds(*values: float) -> tuple[timedelta, ...]:
    return tuple(timedelta(seconds=value) for value in values)


@given(POLICIES)
def test_every_policy_survives_being_stored_as_text(policy) -> None:
    assert parse_policy(str(policy)) == policy


@given(POLICIES)
def test_a_policy_object_is_taken_as_it_is(policy) -> None:
    assert parse_policy(policy) is policy


def test_the_level_table_of_the_design_is_read() -> None:
    policy = parse_policy(NINE)
    assert policy == Levels(seconds(5, 30, 60, 600, 1800, 3600, 21600, 86400, 172800))
    assert policy.max_attempts == 10
    assert str(policy) == NINE


@pytest.mark.parametrize(
    ("given", "policy", "written"),
    [
        ([5, "30s", timedelta(minutes=1)], Levels(seconds(5, 30, 60)), "5s,30s,1m"),
        ("5s", Levels(seconds(5)), "5s"),
        ("5s,30s,1m jitter 10%", Levels(seconds(5, 30, 60), jitter=10), "5s,30s,1m jitter 10%"),
        ("5s jitter 100%", Levels(seconds(5), jitter=100), "5s jitter 100%"),
        ("fixed 30s jitter 25%", Fixed(timedelta(seconds=30), jitter=25), "fixed 30s jitter 25%"),
        ("5s,30s jitter 0%", Levels(seconds(5, 30)), "5s,30s"),
    ],
)
def test_a_policy_is_read_and_written(given: Any, policy: Any, written: str) -> None:
    assert parse_policy(given) == policy
    assert str(policy) == written


@pytest.mark.parametrize(
    ("policy", "levels", "waits"),
    [
        (Levels(seconds(5, 30, 60)), (1, 2, 3, 4, 30_000), seconds(5, 30, 60, 60, 60)),
        (parse_policy("fixed 30s"), (1, 2, 99), seconds(30, 30, 30)),
    ],
    ids=["levels repeat the last wait beyond their end", "fixed is the same each time"],
)
def test_waits(policy: Any, levels: tuple[int, ...], waits: tuple[timedelta, ...]) -> None:
    assert tuple(policy.wait(level, Random(1)) for level in levels) == waits


def test_jitter_does_not_change_how_many_attempts_a_table_implies() -> None:
    """`task_create()` of SQL counts its commas, too."""
    assert parse_policy("5s,30s,1m jitter 10%").max_attempts == 4
    assert parse_policy("fixed 30s").max_attempts == 3


@given(st.integers(1, 100), st.integers(1, 5), st.integers(0, 2**32))
def test_jitter_makes_a_wait_longer_up_to_its_share(jitter: int, level: int, seed: int) -> None:
    said = (5, 30, 60)[min(level, 3) - 1]
    for policy in (Levels(seconds(5, 30, 60), jitter), Fixed(timedelta(seconds=said), 3, jitter)):
        wait = policy.wait(level, Random(seed)).total_seconds()
        assert said <= wait <= said * (1 + jitter / 100) + 0.000_001


def test_jitter_uses_the_whole_range() -> None:
    policy, rng = parse_policy("10s jitter 50%"), Random(7)
    waits = [policy.wait(1, rng).total_seconds() for _ in range(400)]
    assert min(waits) < 10.1
    assert max(waits) > 14.9
    assert 12 < sum(waits) / len(waits) < 13


@given(st.integers(1, 32_000), st.integers(0, 2**32), st.floats(1, 1000))
def test_full_jitter_stays_below_the_ceiling_of_its_level(
    level: int, seed: int, factor: float
) -> None:
    policy = Exponential(timedelta(seconds=1), factor, timedelta(hours=1))
    ceiling = min(factor ** min(level - 1, 64), 3600)
    wait = policy.wait(level, Random(seed))
    assert 0 <= wait.total_seconds() <= ceiling + 0.000_001


def test_full_jitter_uses_the_whole_range_and_not_only_its_end() -> None:
    policy, rng = parse_policy("exponential 1s x2 cap 1h"), Random(7)
    waits = [policy.wait(4, rng).total_seconds() for _ in range(400)]
    assert min(waits) < 0.5
    assert 7.5 < max(waits) <= 8
    assert 3.4 < sum(waits) / len(waits) < 4.6


def test_the_cap_bounds_the_highest_levels() -> None:
    policy, rng = Exponential(timedelta(seconds=5), 2, timedelta(minutes=1)), Random(7)
    assert max(policy.wait(32_000, rng) for _ in range(200)) <= timedelta(minutes=1)


@given(POLICIES, st.integers(1, 32_000))
def test_no_admitted_policy_fails_at_any_level(policy, level: int) -> None:
    assert timedelta(0) <= parse_policy(policy).wait(level, Random(1)) <= LONGEST


@pytest.mark.parametrize(
    "wrong",
    [
        *("", ",", "5s,", "5s,,30s", "fixed", "fixed -5s", "fixed soon", "exponential"),
        *("exponential 1s", "exponential 1s x2", "exponential 1s x-2 cap 1h"),
        *("exponential 1s xnan cap 1h", "exponential 0s x" + "9" * 400 + " cap 1h"),
        *("exponential 1s x100000 cap 1h", "exponential 1s x2 cap 1h jitter 10%", "5s jitter"),
        *("5s jitter 10", "5s jitter 101%", "5s jitter -1%", "5s jitter 1.5%"),
        *("5s jitter 10% jitter 10%", "jitter 10%", " jitter 10%", ",".join(["1s"] * 101), []),
        *([None], ["5s", -1], [True], b"5s", bytearray(b"5s"), 5, None, {"5s": 1}, {"5s"}),
        *(Levels(()), Levels((timedelta(seconds=-1),)), Fixed(timedelta(seconds=-1))),
        *(Levels((timedelta(seconds=1),), jitter=101), Levels((timedelta(seconds=1),), jitter=-1)),
        Levels((timedelta(seconds=1),), jitter=0.1),  # type: ignore[arg-type]
        Fixed(timedelta(seconds=1), jitter=True),
        Fixed("30s"),  # type: ignore[arg-type]
        *(Fixed(timedelta(seconds=1), max_attempts=0), Exponential(factor=float("nan"))),
        *(Exponential(factor=float("inf")), Exponential(factor=-2.0)),
        Exponential(base=timedelta.max),
    ],
    ids=lambda value: (
        f"{type(value).__name__}-{str(value)[:24]}"
        if isinstance(value, str | list)
        else type(value).__name__
    ),
)
def test_what_is_no_policy_is_a_value_error(wrong) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_policy(wrong)


@given(st.text(max_size=40))
def test_any_text_is_a_policy_or_a_value_error(text: str) -> None:
    try:
        policy = parse_policy(text)
    except ValueError:
        return
    assert parse_policy(str(policy)) == policy


LEGAL = {
    *(("PENDING", "claim", "RUNNING"), ("PENDING", "skip", "SKIPPED")),
    *(("PENDING", "cancel", "CANCELLED"), ("PENDING", "expire", "EXPIRED")),
    *(("RUNNING", "succeed", "SUCCEEDED"), ("RUNNING", "skip", "SKIPPED")),
    *(("RUNNING", "cancel", "CANCELLED"), ("RUNNING", "fail", "FAILED")),
    *(("RUNNING", event, "PENDING") for event in ("retry", "snooze", "release", "rescue")),
    *(("SUCCEEDED", "requeue", "PENDING"), ("SKIPPED", "requeue", "PENDING")),
    *(("CANCELLED", "requeue", "PENDING"), ("EXPIRED", "requeue", "PENDING")),
    ("FAILED", "requeue", "PENDING"),
}


def test_the_table_holds_exactly_the_moves_of_the_design() -> None:
    moves = {(s.value, e.value, to.value) for (s, e), to in TRANSITIONS.items()}
    assert moves == LEGAL


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_an_event_leads_where_the_table_says_or_is_refused(state: State, event: Event) -> None:
    targets = [to for s, e, to in LEGAL if (s, e) == (state, event)]
    if targets:
        assert [next_state(state, event)] == targets
    else:
        with pytest.raises(IllegalTransitionError, match=rf"{event} .* {state}"):
            next_state(state, event)


def test_only_the_claim_leads_to_running() -> None:
    moves = [move for move, to in TRANSITIONS.items() if to is State.RUNNING]
    assert moves == [(State.PENDING, Event.CLAIM)]


def test_the_only_way_out_of_a_terminal_state_is_requeue() -> None:
    assert {event for (state, event) in TRANSITIONS if state in TERMINAL} == {Event.REQUEUE}


def test_each_state_lies_in_exactly_one_pool() -> None:
    assert {pool: states_in(pool) for pool in Pool} == {
        Pool.PENDING: (State.PENDING, State.RUNNING),
        Pool.COMPLETED: (State.SUCCEEDED, State.SKIPPED, State.CANCELLED, State.EXPIRED),
        Pool.ERROR: (State.FAILED,),
    }
    assert all(state in states_in(pool_of(state)) for state in State)


def test_the_sources_of_an_event_are_the_states_that_admit_it() -> None:
    assert sources(Event.CANCEL) == (State.PENDING, State.RUNNING)
    assert sources(Event.REQUEUE) == TERMINAL
    assert sources(Event.SUCCEED) == (State.RUNNING,)
