"""The declaration of a handler: its options, and the function or SQL statement that it runs."""

from __future__ import annotations

import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_origin, overload

from pydantic.errors import PydanticUserError

from tasks_app.domain.config.retention import HistoryLevel
from tasks_app.domain.errors import HandlerError, HandlerTimeoutError
from tasks_app.domain.flow_control.circuit_breaker import Breaker
from tasks_app.domain.handlers.outcomes import DEFAULT_RULE, OutageRule, Reaction
from tasks_app.domain.tasks.payload import decode, encode_object
from tasks_app.domain.tasks.payload_checks import ToJson
from tasks_app.domain.tasks.payload_type import PayloadType, payload_type_of, shown
from tasks_app.domain.tasks.retry_policy import DEFAULT_POLICY, RetryPolicy

Rules = Mapping[type[BaseException], Reaction]
PayloadT_contra = TypeVar("PayloadT_contra", contravariant=True)
ResultT_co = TypeVar("ResultT_co", covariant=True)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class SqlStatement:
    text: str  # for psycopg, with %(name)s as placeholders
    names: tuple[str, ...]  # of the parameters, without repeats


@dataclass(frozen=True, slots=True, eq=False)
class HandlerSpec:
    """A handler and its defaults, which a task's options override.

    Two declarations are never equal, so that results can be cached by declaration.
    """

    name: str
    function: Callable[..., Any]
    queue: str = "default"
    retry: RetryPolicy = DEFAULT_POLICY
    max_attempts: int = 3
    timeout: timedelta | None = None
    hard_timeout: timedelta | None = None
    at_most_once: bool = False
    on_error: Rules = field(default_factory=dict)
    on_interrupt: Reaction = Reaction.RETRY_FREE  # if the worker stops; here: again at once
    payload_type: PayloadType | None = None  # None: the handler takes the payload as a dict
    takes_payload: bool = True
    is_async: bool = False
    depends_on: Breaker | None = None  # holds its tasks back when too many of them fail
    outage: OutageRule = DEFAULT_RULE
    to_json: ToJson | None = None  # converts values that JSON does not know; None: refused
    locks: Mapping[str, Any] | None = None  # as a row has them; names may have fields in braces
    encrypted: bool = False  # payload, result and errors of its tasks are stored encrypted
    history: HistoryLevel | None = None  # None: as configured for the queue
    timeout_error: Callable[[float], BaseException] = HandlerTimeoutError  # from timeout seconds
    statement: SqlStatement | None = None  # that its tasks execute, if it is declared in SQL
    cancellable: bool = True  # False: a cancel only sets ctx.cancelled
    keeps_timeout: bool = False  # it ends at ctx.deadline by itself: no exception is raised in it
    at_once: int = 1  # how many tasks one call takes at most
    bulk: Callable[..., Any] | None = None  # called with a list of items, if it takes several

    def reaction(self, error: BaseException) -> Reaction | None:
        """Return the reaction for the nearest ancestor class that has one, or None."""
        for ancestor in type(error).__mro__:
            if ancestor in self.on_error:
                return self.on_error[ancestor]
        return None

    def payload(self, text: str) -> Any:
        """Return the handler's argument; raises pydantic.ValidationError or UnreadableTaskError."""
        if self.payload_type is None:
            return decode(text, "payload")
        return self.payload_type.read(text)

    def stored(self, payload: Any, limit: int) -> str:
        """Return the JSON text of a payload, readable by the handler. Raises InvalidTaskError."""
        if self.payload_type is None:
            return encode_object(payload, "payload", limit, self.to_json)
        return self.payload_type.write(payload, limit, self.to_json)


_OF_CELERY = frozenset({"delay", "apply_async", "apply", "s", "si", "signature"})


class Handler(Generic[PayloadT_contra, ResultT_co]):
    """A function with its declaration; calling it calls the function, for instance in a unit test.

    ``Handler[Payload, Result]``: the type of its tasks' payloads (None: no payload), and the type
    that a call returns (a coroutine if the function is async).
    """

    def __init__(self, spec: HandlerSpec, function: Callable[..., ResultT_co]) -> None:
        self.spec = spec
        self._function = function
        functools.update_wrapper(self, function)

    @overload
    def __call__(self: Handler[None, R], ctx: Any, /) -> R: ...
    @overload
    def __call__(self, ctx: Any, payload: PayloadT_contra, /) -> ResultT_co: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, without task, pool or broker."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<handler {self.spec.name}>"

    if not TYPE_CHECKING:  # for type checkers these names do not exist

        def __getattr__(self, name: str) -> object:
            if name in _OF_CELERY:
                raise AttributeError(
                    f"{self.spec.name} is a handler, which has no {name}(). Create a task in your "
                    f"transaction: create_task(session, {self.__name__}, payload)."
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


DECLARE = "Declare it as (ctx) or (ctx, payload)"
_MARKS = {
    inspect.Parameter.KEYWORD_ONLY: "*, ",
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def signature_of(
    function: Callable[..., Any], plain: type, of_async: type, item: type | None = None
) -> tuple[bool, PayloadType | None]:
    """Return whether the handler takes a payload, and its type (None: any object).

    ``plain`` and ``of_async`` are the contexts of plain and async functions; of a bulk handler,
    ``item`` is the generic class of what it gets a list of.

    Raises HandlerError: it cannot be called with its context, or payloads cannot be checked.
    """
    where = place_of(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerError(
            f"Handler {where} is a generator, which is never run. "
            "Remove the yield, and return the result."
        )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except NameError as error:
        raise _unresolved(where, error) from error
    for each in parameters:
        if each.kind in _MARKS:
            name = f"{_MARKS[each.kind]}{each.name}"
            raise HandlerError(f"Handler {where} takes {name}, which is never passed. {DECLARE}.")
    if len(parameters) not in ({1, 2} if item is None else {2}):
        how = DECLARE if item is None else "With at_once, declare it as (ctx, items)"
        raise HandlerError(f"Handler {where} takes {len(parameters)} arguments. {how}.")
    _check_context(function, parameters[0], plain, of_async)
    if len(parameters) == 1:
        if parameters[0].name == "payload" and parameters[0].annotation is inspect.Parameter.empty:
            raise HandlerError(f"Handler {where} would get its context as payload. {DECLARE}.")
        return False, None
    return True, _payload_type(function, parameters[1], where, item)


def place_of(function: Any) -> str:
    """Return ``module.qualname``; HandlerError: it is not a function."""
    if inspect.isclass(function) or not (callable(function) and hasattr(function, "__qualname__")):
        kind = "a class" if inspect.isclass(function) else f"of type {type(function).__name__}"
        raise HandlerError(f"A handler must be a function, but this is {kind}. Declare a function.")
    return f"{function.__module__}.{function.__qualname__}"


def _check_context(
    function: Callable[..., Any], parameter: inspect.Parameter, plain: type, of_async: type
) -> None:
    where, is_async = place_of(function), inspect.iscoroutinefunction(function)
    given = of_async if is_async else plain
    try:
        hint = _hint(function, parameter, extras=False)
    except Exception:  # imported under TYPE_CHECKING: only its name is known
        name = str(parameter.annotation).rpartition(".")[2]
        hint = {kind.__name__: kind for kind in (plain, of_async)}.get(name)
    if hint is None:
        return
    if not _may_be(hint, plain):
        raise HandlerError(
            f"Handler {where} is given its {given.__name__} as {parameter.name}, which is "
            f"declared as {shown(hint)}. Put ctx before it."
        )
    if _is_wrong(hint, plain, of_async, is_async=is_async):
        kind, more = ("an async", ", or remove the async") if is_async else ("not an async", "")
        raise HandlerError(
            f"Handler {where} is {kind} function, and its {parameter.name} is declared as "
            f"{shown(hint)}. Declare it as {given.__name__}{more}."
        )


def _is_wrong(hint: Any, plain: type, of_async: type, *, is_async: bool) -> bool:
    """Whether an annotation names the context of the other kind of functions."""
    kind, of = get_origin(hint) or hint, get_args(hint)
    if kind in {typing.Union, types.UnionType}:
        return any(_is_wrong(each, plain, of_async, is_async=is_async) for each in of)
    session = getattr(of[0], "__name__", "") if of else ""
    if is_async:
        return kind is plain and session in {"", "Session"}
    return kind is of_async or (kind is plain and session == "AsyncSession")


def _may_be(hint: Any, context: type) -> bool:
    if isinstance(hint, types.UnionType) or get_origin(hint) is typing.Union:
        return any(_may_be(each, context) for each in get_args(hint))
    kind = get_origin(hint) or hint
    if kind is Any or kind is inspect.Parameter.empty or not isinstance(kind, type):
        return True
    protocol = getattr(kind, "_is_protocol", False)
    return protocol or kind in context.__mro__ or context in kind.__mro__


def _payload_type(
    function: Callable[..., Any], parameter: inspect.Parameter, where: str, item: type | None
) -> PayloadType | None:
    try:
        hint = _hint(function, parameter)
    except Exception as error:
        raise _unresolved(where, error) from error
    if item is not None:
        (of, *_) = get_args(hint) or (item,)
        if (get_origin(of) or of) is not item:
            raise HandlerError(
                f"Handler {where} declares {parameter.name}: {shown(hint)}, and at_once gives it "
                f"a list of items. Declare it as Sequence[{item.__name__}[Payload]]."
            )
        (hint,) = get_args(of) or (dict,)
    try:
        return payload_type_of(hint)
    except PydanticUserError as error:
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise HandlerError(
            f"Handler {where} declares {parameter.name}: {shown(hint)}, which cannot be checked "
            f"({reason}). Declare a model, a dataclass or another type that JSON can hold."
        ) from None


def _hint(
    function: Callable[..., Any], parameter: inspect.Parameter, *, extras: bool = True
) -> Any:
    """Return the annotation of this parameter; those of others may not be resolvable."""
    alone = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    return typing.get_type_hints(alone, names, include_extras=extras)[parameter.name]


def _unresolved(where: str, error: Exception) -> HandlerError:
    return HandlerError(
        f"The annotations of handler {where} cannot be resolved ({error}). "
        "Import the payload's type at run time, not under TYPE_CHECKING."
    )


KINDS = frozenset(
    {"call", "delete", "insert", "merge", "refresh", "select", "truncate", "update", "with"}
)
_WITHOUT_PARAMETERS = frozenset({"refresh", "truncate"})
_SEVERAL = "is more than one statement. Put them into a procedure, and CALL it."
_TOKEN = re.compile(
    r"""
    (?P<comment>  --[^\n]* | /\*.*?\*/ )
  | (?P<quoted>   [eE]'(?:[^'\\]|''|\\.)*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
                | \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$ )
  | (?P<word>     [^\W\d][\w$]* )
  | (?P<cast>     :: )
  | :(?P<name>    [^\W\d]\w* )
  | (?P<position> \$\d+ )
  | (?P<end>      ; )
  | (?P<open>     ['"$] | /\* )
    """,
    re.VERBOSE | re.DOTALL,
)


def parse_statement(statement: str) -> SqlStatement:
    """Return the statement with its parameters; a ValueError says why it cannot be a task."""
    if not isinstance(statement, str):
        raise ValueError(f"is of type {type(statement).__name__}. Give it as a text.")
    words, names, parts, end, is_over = list[str](), list[str](), list[str](), 0, False
    for found in _TOKEN.finditer(statement):
        between = statement[end : found.start()]
        parts.append(between.replace("%", "%%"))
        kind, token, end = found.lastgroup, found[0], found.end()
        if is_over and (between.strip() or kind not in {"comment", "end"}):
            raise ValueError(_SEVERAL)
        match kind:
            case "open":
                raise ValueError(f"has a {token} that is not closed. Close it.")
            case "position":
                raise ValueError(f"has the parameter {token}. Write :name, as in the payload.")
            case "comment" if "/*" in token[2:]:
                raise ValueError("has a comment in a comment. Remove one of them.")
            case "end":
                is_over = True
            case "name":
                names.append(found["name"])
                parts.append(f"%({found['name']})s")
            case _:
                words.extend([token.lower()] * (kind == "word"))
                parts.append(token.replace("%", "%%"))
    rest = statement[end:]
    if is_over and rest.strip():
        raise ValueError(_SEVERAL)
    parts.append(rest.replace("%", "%%"))
    first = words[0] if words else ""
    if first not in KINDS:
        allowed = ", ".join(sorted(KINDS)).upper()
        begins = f"begins with {first.upper():.30}" if first else "is empty"
        raise ValueError(f"{begins}. Allowed: {allowed}.")
    if names and first in _WITHOUT_PARAMETERS:  # in PostgreSQL
        raise ValueError(f"has parameters, which {first.upper()} cannot take. CALL a procedure.")
    return SqlStatement("".join(parts).strip(), tuple(dict.fromkeys(names)))


def parameter_texts(payload: Mapping[str, Any]) -> dict[str, str | None]:
    """Return each value as ``payload ->> 'key'`` does: PostgreSQL then casts it as needed."""
    return {
        key: value if value is None or isinstance(value, str) else json.dumps(value)
        for key, value in payload.items()
    }
