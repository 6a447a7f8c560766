"""A handler that shall not be called within ``atomic()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_NON_ATOMIC = "_tasks_app_non_atomic"


def non_atomic(function: F) -> F:
    """Call a handler outside of ``atomic()``: what it writes through Django commits by itself.

    So it may be done twice, if its process dies before the outcome is written. For code that needs
    ``atomic(durable=True)``. It stands below ``@handler``.
    """
    setattr(function, _NON_ATOMIC, True)
    return function


def is_non_atomic(function: Callable[..., Any]) -> bool:
    return getattr(function, _NON_ATOMIC, False)
