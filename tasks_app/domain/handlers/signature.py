"""The functions that can be handlers: ``(ctx)`` or ``(ctx, payload)``, plain or async."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_args, get_origin

from pydantic.errors import PydanticUserError

from tasks_app.domain.errors import HandlerError
from tasks_app.domain.tasks.payload_type import PayloadType, payload_type_of, shown

DECLARE = "Declare it as (ctx) or (ctx, payload)"
_MARKS = {
    inspect.Parameter.KEYWORD_ONLY: "*, ",
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def signature_of(
    function: Callable[..., Any], plain: type, of_async: type
) -> tuple[bool, PayloadType | None]:
    """Return whether the handler takes a payload, and what checks it (None: any object fits).

    ``plain`` and ``of_async`` are the contexts that functions of the two kinds are given.

    Raises:
        HandlerError: it cannot be called with its context, or its payloads cannot be checked.
    """
    where = place_of(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerError(
            f"Handler {where} is a generator, and nobody would run it. "
            "Take the yield out; return what is its result."
        )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except NameError as error:
        raise _unresolved(where, error) from error
    for each in parameters:
        if each.kind in _MARKS:
            name = f"{_MARKS[each.kind]}{each.name}"
            raise HandlerError(f"Handler {where} takes {name}, which nobody gives it. {DECLARE}.")
    if len(parameters) not in {1, 2}:
        raise HandlerError(f"Handler {where} takes {len(parameters)} arguments. {DECLARE}.")
    _check_context(function, parameters[0], plain, of_async)
    if len(parameters) == 1:
        if parameters[0].name == "payload" and parameters[0].annotation is inspect.Parameter.empty:
            raise HandlerError(f"Handler {where} would get its context as payload. {DECLARE}.")
        return False, None
    return True, _payload_type(function, parameters[1], where)


def place_of(function: Any) -> str:
    """Return ``module.qualname``; HandlerError if it is no function."""
    if inspect.isclass(function) or not (callable(function) and hasattr(function, "__qualname__")):
        kind = "a class" if inspect.isclass(function) else f"of type {type(function).__name__}"
        raise HandlerError(f"A handler must be a function, and this is {kind}. Declare a function.")
    return f"{function.__module__}.{function.__qualname__}"


def _check_context(
    function: Callable[..., Any], parameter: inspect.Parameter, plain: type, of_async: type
) -> None:
    where, is_async = place_of(function), inspect.iscoroutinefunction(function)
    given = of_async if is_async else plain
    try:
        hint = _hint(function, parameter, extras=False)
    except Exception:  # from a module that only type checkers import: its name is all that is known
        hint = {kind.__name__: kind for kind in (plain, of_async)}.get(
            str(parameter.annotation).rpartition(".")[2]
        )
    if hint is None:
        return
    if not _may_be(hint, plain):
        raise HandlerError(
            f"Handler {where} is given its {given.__name__} as {parameter.name}, which is "
            f"declared as {shown(hint)}. Put ctx before it."
        )
    if _is_wrong(hint, plain, of_async, is_async=is_async):
        kind, more = ("an async", ", or take the async away") if is_async else ("no async", "")
        raise HandlerError(
            f"Handler {where} is {kind} function, and its {parameter.name} is declared as "
            f"{shown(hint)}. Declare it as {given.__name__}{more}."
        )


def _is_wrong(hint: Any, plain: type, of_async: type, *, is_async: bool) -> bool:
    """Whether an annotation says the context of the other kind of functions."""
    kind, of = get_origin(hint) or hint, get_args(hint)
    if kind in {typing.Union, types.UnionType}:
        return any(_is_wrong(each, plain, of_async, is_async=is_async) for each in of)
    session = getattr(of[0], "__name__", "") if of else ""
    if is_async:
        return kind is plain and session in {"", "Session"}
    return kind is of_async or (kind is plain and session == "AsyncSession")


def _may_be(hint: Any, context: type) -> bool:
    """Whether an annotation admits the context."""
    if isinstance(hint, types.UnionType) or get_origin(hint) is typing.Union:
        return any(_may_be(each, context) for each in get_args(hint))
    kind = get_origin(hint) or hint
    if kind is Any or kind is inspect.Parameter.empty or not isinstance(kind, type):
        return True
    protocol = getattr(kind, "_is_protocol", False)
    return protocol or kind in context.__mro__ or context in kind.__mro__


def _payload_type(
    function: Callable[..., Any], parameter: inspect.Parameter, where: str
) -> PayloadType | None:
    try:
        hint = _hint(function, parameter)
    except Exception as error:
        raise _unresolved(where, error) from error
    try:
        return payload_type_of(hint)
    except PydanticUserError as error:
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise HandlerError(
            f"Handler {where} declares {parameter.name}: {shown(hint)}, which cannot be checked "
            f"({reason}). Declare a model, a dataclass or what else JSON can hold."
        ) from None


def _hint(
    function: Callable[..., Any], parameter: inspect.Parameter, *, extras: bool = True
) -> Any:
    """Return the annotation of one parameter alone: others may not be resolvable."""
    alone = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    return typing.get_type_hints(alone, names, include_extras=extras)[parameter.name]


def _unresolved(where: str, error: Exception) -> HandlerError:
    return HandlerError(
        f"The annotations of handler {where} cannot be resolved ({error}). "
        "Import the payload's type at run time, not under TYPE_CHECKING."
    )
