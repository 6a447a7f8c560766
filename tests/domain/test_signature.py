"""Which functions can be handlers, and what is said of those that cannot."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypedDict

import pytest
from pydantic import BaseModel, Field
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tasks_app.domain.errors import HandlerError
from tasks_app.domain.handlers.spec import signature_of
from tasks_app.runtime.handlers.context import AsyncTaskContext, TaskContext

if TYPE_CHECKING:
    from decimal import Decimal

    from tasks_app import TaskContext as OnlyForCheckers


class Order(BaseModel):
    order_id: int


@dataclass
class Parcel:
    weight: float


class Point(TypedDict):
    x: int


class HasLog(Protocol):
    log: Any


class Totals(BaseModel):
    type: str
    default: dict[str, Iterable[int]] | None = None


class Plain(BaseModel):
    type: Literal["generator"] = "generator"
    default: dict[str, Any] = Field(default={"type": "generator"}, json_schema_extra={"type": "x"})


class Mine(TaskContext):
    """Of a user."""


def only_ctx(ctx): ...
def with_dict(ctx, payload: dict): ...
def with_model(ctx, payload: Order): ...
def without_hint(ctx, payload): ...
def with_context(ctx: TaskContext, payload: dict[str, Any]): ...
async def with_async_context(ctx: AsyncTaskContext, payload: Any): ...
async def with_async_session(ctx: TaskContext[AsyncSession], payload: Any): ...
async def async_with_own(ctx: Mine): ...
async def async_with_nothing(ctx): ...
def with_session(ctx: TaskContext[Any], payload: object): ...
def with_anything(ctx: Any): ...
def with_object(ctx: object): ...
def with_protocol(ctx: HasLog): ...
def with_own(ctx: Mine): ...
def with_either(ctx: TaskContext | None): ...
def with_a_context_of_checkers(ctx: OnlyForCheckers, payload: Order): ...
def with_the_word_generator(ctx, payload: Plain): ...
def with_defaults(ctx, payload: Order | None = None): ...


@pytest.mark.parametrize(
    ("function", "takes_payload", "checked_as"),
    [
        (only_ctx, False, None),
        (with_dict, True, None),
        (with_model, True, "Order"),
        (without_hint, True, None),
        (with_context, True, None),
        (with_async_context, True, None),
        (with_async_session, True, None),
        (async_with_own, False, None),
        (async_with_nothing, False, None),
        (with_session, True, None),
        (with_anything, False, None),
        (with_object, False, None),
        (with_protocol, False, None),
        (with_own, False, None),
        (with_either, False, None),
        (with_a_context_of_checkers, True, "Order"),
        (with_the_word_generator, True, "Plain"),
        (with_defaults, True, "Order | None"),
    ],
)
def test_a_handler_takes_ctx_or_ctx_and_payload(function, takes_payload, checked_as) -> None:
    takes, payload_type = signature_of(function, TaskContext, AsyncTaskContext)
    assert takes is takes_payload
    assert (payload_type and payload_type.name) == checked_as


def none_at_all(): ...
def too_many(ctx, payload, more): ...
def unresolvable(ctx, payload: Decimal): ...
def payload_alone(payload: Order): ...
def dataclass_alone(parcel: Parcel): ...
def typed_dict_alone(point: Point): ...
def dict_alone(data: dict[str, Any]): ...
def text_alone(name: str): ...
def maybe_alone(order: Order | None): ...
def swapped(payload: Order, ctx: TaskContext): ...
def by_keyword(ctx, *, order_id: int): ...
def by_keyword_with_default(ctx, payload: Order, *, tries: int = 3): ...
def all_keywords(ctx, **kwargs): ...
def bare_payload(payload): ...
def all_positions(ctx, *args): ...
def generator(ctx) -> Iterator[int]:
    yield 1


async def async_generator(ctx) -> AsyncIterator[int]:
    yield 1


async def async_with_plain(ctx: TaskContext): ...
async def async_with_plain_maybe(ctx: TaskContext | None, payload: Order): ...
async def async_annotated(ctx: Annotated[TaskContext, "run"]): ...
async def async_with_plain_session(ctx: TaskContext[Session]): ...
async def async_of_checkers(ctx: OnlyForCheckers): ...
def plain_with_async(ctx: AsyncTaskContext): ...
def plain_with_async_session(ctx: TaskContext[AsyncSession], payload: Order): ...


async_of_checkers.__annotations__["ctx"] = "elsewhere.TaskContext"


def engine(ctx, payload: Engine): ...
def function(ctx, payload: Callable[[int], str]): ...
def iterable(ctx, numbers: Iterable[int]): ...
def maybe_iterable(ctx, numbers: Annotated[Iterable[int] | None, Field()]): ...
def any_iterator(ctx, numbers: Iterator[int]): ...
def any_generator(ctx, numbers: Generator[int, None, None]): ...
def lists_of_iterables(ctx, numbers: list[Iterable[int]]): ...
def with_lazy_field(ctx, totals: Totals): ...


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (none_at_all, "takes 0 arguments. Declare it as (ctx) or (ctx, payload)."),
        (too_many, "takes 3 arguments. Declare it as (ctx) or (ctx, payload)."),
        (payload_alone, "as payload, which is declared as Order. Put ctx before it."),
        (bare_payload, "would get its context as payload. Declare it as (ctx) or (ctx, payload)."),
        (dataclass_alone, "as parcel, which is declared as Parcel."),
        (typed_dict_alone, "as point, which is declared as Point."),
        (dict_alone, "as data, which is declared as dict[str, Any]."),
        (text_alone, "as name, which is declared as str."),
        (maybe_alone, "as order, which is declared as Order | None."),
        (swapped, "as payload, which is declared as Order."),
        (by_keyword, "takes *, order_id, which is never passed. Declare it as (ctx)"),
        (by_keyword_with_default, "takes *, tries, which is never passed."),
        (all_keywords, "takes **kwargs, which is never passed."),
        (all_positions, "takes *args, which is never passed."),
        (generator, "is a generator, which is never run. Remove the yield"),
        (async_generator, "is a generator, which is never run."),
        (iterable, "declares numbers: Iterable[int], which cannot be checked (an Iterable or Gen"),
        (maybe_iterable, "which cannot be checked (an Iterable or Generator is checked only when"),
        (any_iterator, "declares numbers: Iterator[int], which cannot be checked"),
        (any_generator, "declares numbers: Generator[int, None, None], which cannot be checked"),
        (lists_of_iterables, "declares numbers: list[Iterable[int]], which cannot be checked"),
        (with_lazy_field, "declares totals: Totals, which cannot be checked (an Iterable or Gener"),
        (async_with_plain, "is an async function, and its ctx is declared as TaskContext. Declare"),
        (async_with_plain_maybe, "TaskContext | None. Declare it as AsyncTaskContext, or remove"),
        (async_annotated, "Declare it as AsyncTaskContext, or remove the async."),
        (async_with_plain_session, "declared as TaskContext[Session]. Declare it as AsyncTaskC"),
        (async_of_checkers, "declared as TaskContext. Declare it as AsyncTaskContext, or remove"),
        (
            plain_with_async,
            "is not an async function, and its ctx is declared as AsyncTaskContext. Dec",
        ),
        (plain_with_async_session, "TaskContext[AsyncSession]. Declare it as TaskContext."),
        (engine, "declares payload: Engine, which cannot be checked (Unable to generate"),
        (function, "declares payload: Callable[[int], str], which cannot be checked (Cannot gen"),
        (unresolvable, "cannot be resolved (name 'Decimal' is not defined). Import"),
    ],
)
def test_what_cannot_work_is_refused_by_name_with_what_to_do(function, complaint: str) -> None:
    with pytest.raises(HandlerError) as refused:
        signature_of(function, TaskContext, AsyncTaskContext)
    assert f"test_signature.{function.__name__} " in str(refused.value)
    assert complaint in str(refused.value)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize(
    ("thing", "kind"),
    [(functools.partial(only_ctx), "of type partial"), (Order, "a class"), (5, "of type int")],
)
def test_what_is_no_function_is_refused(thing: Any, kind: str) -> None:
    with pytest.raises(HandlerError, match=f"this is {kind}. Declare a function"):
        signature_of(thing, TaskContext, AsyncTaskContext)


def test_a_wrapped_function_has_the_signature_of_what_it_wraps() -> None:
    @functools.wraps(with_model)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    takes, payload_type = signature_of(wrapper, TaskContext, AsyncTaskContext)
    assert takes
    assert payload_type is not None
    assert payload_type.name == "Order"
