"""How one option of ``@handler`` is read; what is wrong is told with the handler's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tasks_app.domain.durations import named_duration
from tasks_app.domain.errors import HandlerError, InvalidTaskError
from tasks_app.domain.tasks.retry_policy import RETRIES, RetryPolicy, parse_policy

T = TypeVar("T")


def checked(name: str, make: Callable[[], T], option: str | None = None) -> T:
    """Return what ``make`` returns; ``option`` goes before an error that does not name it.

    Raises:
        HandlerError: ``make`` refused it.
    """
    try:
        return make()
    except (InvalidTaskError, ValueError) as error:
        problem = f"{option} {error}" if option else str(error)
        end = "" if problem.endswith(".") else "."
        raise HandlerError(f"Handler {name!r} is declared wrongly: {problem}{end}") from None


def policy_in(name: str, option: str, said: Mapping[str, Any]) -> RetryPolicy | None:
    """Return a retry policy; None: the option is left out."""
    retry = said.get(option)
    if not retry:
        return None
    try:
        return parse_policy(retry)
    except ValueError as error:
        raise HandlerError(
            f"Handler {name!r} is declared wrongly: {option} {error}. Allowed: {RETRIES}."
        ) from None


def span_in(name: str, option: str, said: Mapping[str, Any]) -> Any:
    """Return a span that is longer than nothing; None: the option is left out."""
    if option not in said:
        return None
    span = checked(name, lambda: named_duration(option, said[option]))
    if not span:
        raise HandlerError(f"{option} of handler {name!r} is 0 s. Leave it out.")
    return span
