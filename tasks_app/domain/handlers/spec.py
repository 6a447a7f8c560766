"""The declaration of a handler."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from tasks_app.domain.config.retention import HistoryLevel
from tasks_app.domain.errors import HandlerTimeoutError
from tasks_app.domain.flow_control.circuit_breaker import Breaker
from tasks_app.domain.handlers.outages import DEFAULT_RULE, OutageRule
from tasks_app.domain.handlers.outcomes import Reaction
from tasks_app.domain.handlers.sql_statement import SqlStatement
from tasks_app.domain.tasks.payload import decode, encode_object
from tasks_app.domain.tasks.payload_checks import ToJson
from tasks_app.domain.tasks.payload_type import PayloadType
from tasks_app.domain.tasks.retry_policy import DEFAULT_POLICY, RetryPolicy

Rules = Mapping[type[BaseException], Reaction]
PayloadT_contra = TypeVar("PayloadT_contra", contravariant=True)
ResultT_co = TypeVar("ResultT_co", covariant=True)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class HandlerSpec:
    """One handler and its defaults; a task's own options override them.

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
    on_interrupt: Reaction = Reaction.RETRY_FREE
    """For a run that a stopping worker gives up; here RETRY_FREE means again at once."""
    payload_type: PayloadType | None = None
    """None: the handler takes the payload as a dict."""
    takes_payload: bool = True
    is_async: bool = False
    depends_on: Breaker | None = None
    """Holds its tasks back when too many of them fail."""
    outage: OutageRule = DEFAULT_RULE
    """How its tasks wait for a dependency that is down."""
    to_json: ToJson | None = None
    """Converts values of payload and result that JSON does not know; None: they are refused."""
    encrypted: bool = False
    """Payload, result and errors of its tasks are stored encrypted."""
    history: HistoryLevel | None = None
    """What is kept of its tasks that succeeded. None: as their queue says."""
    timeout_error: Callable[[float], BaseException] = HandlerTimeoutError
    """Makes what is raised in the handler after ``timeout`` seconds."""
    statement: SqlStatement | None = None
    """What its tasks carry out, if that is one statement."""
    keeps_timeout: bool = False
    """The function itself ends at ``ctx.deadline``: nothing is raised in it."""

    def reaction(self, error: BaseException) -> Reaction | None:
        """Return the rule of the error's nearest ancestor that has one, or None."""
        for ancestor in type(error).__mro__:
            if ancestor in self.on_error:
                return self.on_error[ancestor]
        return None

    def payload(self, text: str) -> Any:
        """Return the handler's argument, from the stored JSON text.

        Raises:
            pydantic.ValidationError: the payload does not fit what the handler takes.
            UnreadableTaskError: it cannot be read, or as :meth:`PayloadType.read`.
        """
        if self.payload_type is None:
            return decode(text, "payload")
        return self.payload_type.read(text)

    def stored(self, payload: Any, limit: int) -> str:
        """Return the JSON text of a payload, as the handler can read it.

        Raises:
            InvalidTaskError: it is refused.
        """
        if self.payload_type is None:
            return encode_object(payload, "payload", limit, self.to_json)
        return self.payload_type.write(payload, limit, self.to_json)


class Handler(Generic[PayloadT_contra, ResultT_co]):
    """A function with its declaration; calling it calls the function, as a unit test does.

    ``Handler[Payload, Result]``: the type of its tasks' payloads (None if it takes none), and of
    what a call returns (a coroutine if the function is async).
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
        """Run the function itself, without task, pool or broker."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<handler {self.spec.name}>"

    if not TYPE_CHECKING:  # for type checkers these names do not exist

        def __getattr__(self, name: str) -> object:
            """Tell a user of Celery what to call instead."""
            if name in _OF_CELERY:
                raise AttributeError(
                    f"{self.spec.name} is a handler, which has no {name}(). Create a task in your "
                    f"transaction: create_task(session, {self.__name__}, payload)."
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


_OF_CELERY = frozenset({"delay", "apply_async", "apply", "s", "si", "signature"})
