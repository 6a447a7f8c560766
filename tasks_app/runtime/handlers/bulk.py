"""Bulk handlers: what one call for many tasks is given, and how such a handler runs one alone."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tasks_app.domain.handlers.outcomes import Fail, Outcome, Retry, Skip

if TYPE_CHECKING:
    from uuid import UUID

    from tasks_app.domain.durations import Duration
    from tasks_app.runtime.handlers.context import TaskContext
    from tasks_app.runtime.handlers.run_log import RunLog

PayloadT = TypeVar("PayloadT")


@dataclass(slots=True, eq=False, repr=False)  # a payload belongs in no log
class Item(Generic[PayloadT]):
    """One task of a call of a bulk handler. It succeeds unless one of these says otherwise.

    The last one that was called counts.
    """

    context: TaskContext[Any]
    payload: PayloadT
    """As its handler declares it."""
    value: Any = field(default=None, init=False)
    outcome: Outcome | None = field(default=None, init=False)

    @property
    def task_id(self) -> int:
        """The task's id."""
        return self.context.task_id

    @property
    def biz_key(self) -> str | None:
        """The business object that the task is about."""
        return self.context.biz_key

    @property
    def attempt(self) -> int:
        """1 at the first claim. It rises with each claim and never falls."""
        return self.context.attempt

    @property
    def idempotency_key(self) -> UUID:
        """The same at every attempt and after a requeue. Send it along with effects outside."""
        return self.context.idempotency_key

    @property
    def log(self) -> RunLog:
        """A logger whose lines begin with id, name and attempt of the run."""
        return self.context.log

    def result(self, value: Any) -> None:
        """Let it succeed with a result, as a plain handler does that returns the value."""
        self.value, self.outcome = value, None

    def fail(self, reason: str = "") -> None:
        """Move it to the error pool now, as ``Fail`` does."""
        self.outcome = Fail(reason)

    def retry(self, reason: str = "", *, after: Duration | None = None) -> None:
        """Try it again, as ``Retry`` does; charges one failure."""
        self.outcome = Retry(reason, after=after)

    def skip(self, reason: str = "") -> None:
        """There is nothing to do for it, as ``Skip`` says."""
        self.outcome = Skip(reason)

    def spend(self, tokens: int) -> None:
        """Say how many tokens of a rate it has cost, as ``ctx.spend`` does."""
        self.context.spend(tokens)


_OF_CALL = {
    *("session", "connection", "write", "check_awaited", "log", "name", "queue"),
    *("deadline", "remaining", "stopping", "cancelled"),
}


class BulkContext:
    """What of a run's context belongs to the whole call."""

    def __init__(self, context: TaskContext[Any]) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        if name in _OF_CALL:
            return getattr(self._context, name)
        raise AttributeError(
            f"ctx.{name} is of one task, and a bulk handler has many. Use what its items have, or "
            "a handler without at_once."
        )


def check_returned(value: Any) -> None:
    """Raise TypeError if a bulk handler returned a value, which is of no task."""
    if value is not None:
        raise TypeError(
            f"A bulk handler returned a value, of type {type(value).__name__}, which is no task's. "
            "Give each item its own: item.result(…)."
        )


def alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain handler that calls a bulk one for one item, and ends as that item does."""

    def end(item: Item[Any], returned: Any) -> Any:
        check_returned(returned)
        if item.outcome is not None:
            raise item.outcome
        return item.value

    @functools.wraps(function)
    def call(context: TaskContext[Any], payload: Any) -> Any:
        item = Item(context, payload)
        return end(item, function(BulkContext(context), [item]))

    @functools.wraps(function)
    async def call_async(context: TaskContext[Any], payload: Any) -> Any:
        item = Item(context, payload)
        return end(item, await function(BulkContext(context), [item]))

    return call_async if inspect.iscoroutinefunction(function) else call
