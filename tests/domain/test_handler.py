"""What a handler declares about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel, ValidationError

from tasks_app.domain.errors import HandlerError
from tasks_app.domain.handler import HandlerSpec, explain, signature_of
from tasks_app.domain.outcome import Cancel, Fail, Reaction, Retry, Skip, Snooze

if TYPE_CHECKING:
    from decimal import Decimal


class Line(BaseModel):
    price: int


class Order(BaseModel):
    lines: list[Line]


def only_ctx(ctx): ...


def with_dict(ctx, payload: dict): ...


def with_model(ctx, payload: Order): ...


def without_hint(ctx, payload): ...


def with_keyword_only(ctx, payload: Order, *, tries: int = 3): ...


def none_at_all(): ...


def too_many(ctx, payload, more): ...


def unresolvable(ctx, payload: Decimal): ...


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (only_ctx, (False, None)),
        (with_dict, (True, None)),
        (with_model, (True, Order)),
        (without_hint, (True, None)),
        (with_keyword_only, (True, Order)),
    ],
)
def test_a_handler_takes_ctx_or_ctx_and_payload(function, signature) -> None:
    assert signature_of(function) == signature


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (none_at_all, r"none_at_all takes 0 arguments.*\(ctx\) or \(ctx, payload\)"),
        (too_many, r"too_many takes 3 arguments"),
        (unresolvable, r"unresolvable cannot be resolved.*not under TYPE_CHECKING"),
    ],
)
def test_a_handler_that_cannot_work_is_refused_with_what_to_do(function, complaint: str) -> None:
    with pytest.raises(HandlerError, match=complaint):
        signature_of(function)


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({}, "payload.lines"),
        ({"lines": [{"price": 1}, {"price": "secret"}]}, "payload.lines[1].price"),
        (7, "payload"),
    ],
)
def test_a_fault_in_a_payload_is_explained_by_its_path_and_without_its_value(
    payload, path: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        Order.model_validate(payload)

    where, problem = explain(refused.value)
    assert where == path
    assert problem.startswith("is refused: ")
    assert "secret" not in problem


def test_a_handler_gets_its_model_or_the_dict_itself() -> None:
    value = {"lines": [{"price": 1}]}

    typed = HandlerSpec("t", with_model, payload_type=Order)

    assert typed.payload(value) == Order(lines=[Line(price=1)])
    assert HandlerSpec("t", with_dict).payload(value) is value


def test_without_a_rule_there_is_no_reaction() -> None:
    assert HandlerSpec("t", only_ctx).reaction(ValueError()) is None


def test_a_rule_is_found_through_the_ancestry_nearest_first() -> None:
    spec = HandlerSpec(
        "t", only_ctx, on_error={OSError: Reaction.RETRY_FREE, ConnectionError: Reaction.FAIL}
    )

    assert spec.reaction(ConnectionResetError()) is Reaction.FAIL
    assert spec.reaction(FileNotFoundError()) is Reaction.RETRY_FREE
    assert spec.reaction(ValueError()) is None


@pytest.mark.parametrize("ending", [Fail, Cancel, Skip, Retry])
def test_an_ending_may_say_why(ending) -> None:
    assert (ending().reason, ending("because").reason) == ("", "because")
    assert str(ending("because")) == "because"


def test_an_ending_with_a_wait_reads_it_as_people_write_it() -> None:
    assert Retry().after is None
    assert Retry(after="90s").after.total_seconds() == 90
    assert Snooze("1.5h", "busy").after.total_seconds() == 5400
    assert Snooze(5).after.total_seconds() == 5


@pytest.mark.parametrize("make", [lambda: Snooze("soon"), lambda: Retry(after=-1)])
def test_an_ending_with_a_wait_that_is_none_is_a_value_error(make) -> None:
    with pytest.raises(ValueError, match=r"duration|outside"):
        make()
