"""Middleware: code around every run, in the order in which it was added, outermost first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tasks_app.runtime.context import TaskContext

Middleware: TypeAlias = Callable[[TaskContext, Callable[[], Any]], Any]
"""Called with the context and the rest of the chain; returns what the rest returned, or raises."""


def chain(middleware: Sequence[Middleware], context: TaskContext, run: Callable[[], Any]) -> Any:
    """Run the handler inside all middleware."""
    call = run
    for layer in reversed(middleware):
        call = _wrapped(layer, context, call)
    return call()


def _wrapped(layer: Middleware, context: TaskContext, call: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: layer(context, call)
