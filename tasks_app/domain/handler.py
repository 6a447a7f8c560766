"""What a handler declares about itself."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ValidationError

from tasks_app.domain.breaker import Breaker
from tasks_app.domain.errors import HandlerError, HandlerTimeoutError
from tasks_app.domain.outage import DEFAULT_RULE, OutageRule
from tasks_app.domain.outcome import Reaction
from tasks_app.domain.payload import ToJson
from tasks_app.domain.retry import DEFAULT_POLICY, RetryPolicy

Rules = Mapping[type[BaseException], Reaction]


@dataclass(frozen=True, slots=True, eq=False)
class HandlerSpec:
    """One handler and its defaults; a task's own options win over them.

    Two declarations are never equal, so that what was worked out for one can be remembered by it.
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
    """When a worker that stops lets go of a run: here RETRY_FREE means again at once."""
    payload_type: type[BaseModel] | None = None
    """None: the handler takes the payload as a dict."""
    takes_payload: bool = True
    is_async: bool = False
    batched: bool = False
    """All its effects are in ``ctx.session``: several runs may share a transaction."""
    depends_on: Breaker | None = None
    """What holds its tasks back when too many of them fail."""
    outage: OutageRule = DEFAULT_RULE
    """How its tasks wait for what they depend on."""
    to_json: ToJson | None = None
    """Writes values of payload and result that JSON does not know; None: they are refused."""
    timeout_error: Callable[[float], BaseException] = HandlerTimeoutError
    """What is raised in the handler after ``timeout`` seconds."""

    def reaction(self, error: BaseException) -> Reaction | None:
        """Return the rule of the nearest class in the error's ancestry, or None without a rule."""
        for ancestor in type(error).__mro__:
            if ancestor in self.on_error:
                return self.on_error[ancestor]
        return None

    def payload(self, value: Any) -> Any:
        """Return what the handler is called with.

        Raises:
            pydantic.ValidationError: the payload does not fit the handler's model.
        """
        return value if self.payload_type is None else self.payload_type.model_validate(value)


def signature_of(function: Callable[..., Any]) -> tuple[bool, type[BaseModel] | None]:
    """Return whether the handler takes a payload, and the pydantic model of it if there is one.

    Raises:
        HandlerError: it takes neither ``(ctx)`` nor ``(ctx, payload)``.
    """
    parameters = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    where = f"{function.__module__}.{function.__qualname__}"
    if len(parameters) not in (1, 2):
        raise HandlerError(
            f"Handler {where} takes {len(parameters)} arguments. "
            "Declare it as (ctx) or (ctx, payload)."
        )
    if len(parameters) == 1:
        return False, None
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:
        raise HandlerError(
            f"The annotations of handler {where} cannot be resolved ({error}). "
            "Import the payload's type at run time, not under TYPE_CHECKING."
        ) from error
    hint = hints.get(parameters[1].name)
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return True, hint
    return True, None


def explain(error: ValidationError) -> tuple[str, str]:
    """Return path and problem of the first fault, without the value itself."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
    return f"payload{path}", f"is refused: {first['msg']}"
