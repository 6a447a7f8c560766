"""Middleware: code around every run, outermost first: opens traces, binds logs, measures."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from tasks_app.domain.errors import ConfigurationError, HandlerError
from tasks_app.runtime.handlers.context import TaskContext

# Called with the context and the rest of the chain; returns what the rest returned, or raises.
Middleware: TypeAlias = Callable[[TaskContext, Callable[[], Any]], Any]

M = TypeVar("M", bound=Middleware)

# of ``@middleware``; the first is the outermost, inside those of the settings
MIDDLEWARE: list[Middleware] = []


def middleware(layer: M) -> M:
    """Put a function around every run of this process; the first declared is the outermost.

    It is called with the context and with ``call``, the rest of the chain, and returns what
    ``call()`` returned. What it raises is the outcome of the run. Write a plain function: it
    surrounds async handlers, too. The handler's ``timeout`` covers the handler alone.

    >>> @middleware
    ... def count(ctx, call):
    ...     try:
    ...         return call()
    ...     finally:
    ...         print(f"{ctx.name} has run")
    >>> drained = drain(session)
    mail.send has run

    Raises:
        HandlerError: it is a coroutine function.
    """
    if layer not in MIDDLEWARE:
        MIDDLEWARE.append(_checked(layer))
    return layer


def load_middleware(names: Iterable[str]) -> tuple[Middleware, ...]:
    """Return the functions named as ``module:function``, then those of ``@middleware``."""
    named = [_checked(_load(name)) for name in names]
    return (*named, *(layer for layer in MIDDLEWARE if layer not in named))


def chain(middleware: Sequence[Middleware], context: TaskContext, run: Callable[[], Any]) -> Any:
    call = run
    for layer in reversed(middleware):
        call = partial(layer, context, call)
    return call()


def _checked(layer: M) -> M:
    if inspect.iscoroutinefunction(layer):
        raise HandlerError(
            f"Middleware {layer.__qualname__} is a coroutine function. "
            "Write a plain one: it surrounds async handlers as well."
        )
    return layer


def _load(name: str) -> Middleware:
    unknown = ConfigurationError(
        f"TASKS_APP_MIDDLEWARE names {name}, and no such function can be found. "
        "Write module:function, and check that the module's folder is on PYTHONPATH."
    )
    module, _, path = name.partition(":")
    try:
        found: Any = attrgetter(path)(importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise unknown from error
    except AttributeError as error:
        raise unknown from error
    if not callable(found):
        raise unknown
    layer: Middleware = found
    return layer
