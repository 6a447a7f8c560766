"""The options of ``@handler``, and what they mean for its tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tasks_app.domain.config.retention import HistoryLevel, parse_history
from tasks_app.domain.durations import Duration, format_duration
from tasks_app.domain.errors import HandlerError
from tasks_app.domain.flow_control.circuit_breaker import Breaker
from tasks_app.domain.schedules.when import When
from tasks_app.domain.spelling import meant
from tasks_app.domain.tasks.names import check_name, check_queue
from tasks_app.domain.tasks.retry_policy import (
    DEFAULT_POLICY,
    MOST_ATTEMPTS,
    RetryPolicy,
)
from tasks_app.runtime.handlers.error_options import (
    breaker_in,
    interrupt_in,
    outage_rule_in,
    rules_in,
)
from tasks_app.runtime.handlers.option_values import checked, policy_in, span_in

Retries = str | Sequence[Duration] | RetryPolicy
_MAINS = frozenset({"__main__", "__mp_main__"})


class HandlerOptions(When, total=False):
    """What ``@handler`` takes; None is as good as left out.

    With ``cron=``, ``every=`` or ``at=`` the handler has a schedule of its own name. Use
    ``schedule()`` for one whose tasks have a payload.
    """

    queue: str | None
    """The queue of its tasks unless they name another. Default: ``default``."""
    retry: Retries | None
    """The retry policy, such as ``"5s,30s,1m"``. Default: three attempts with growing waits."""
    max_attempts: int | None
    """How many charged failures lead to the error pool. Default: what the policy implies."""
    timeout: Duration | None
    """After this long ``HandlerTimeoutError`` is raised inside the handler; an async one gets
    ``asyncio.CancelledError``, and its run ends as the same. Default: never."""
    hard_timeout: Duration | None
    """After this long the child process is killed. Default: one hour."""
    at_most_once: bool
    """Claim each task alone, and never run it again after a crash or an exception. ``retry`` then
    holds only where the handler raises ``Retry``, or ``on_error`` says so."""
    on_error: Mapping[type[BaseException], Literal["retry", "fail", "retry_free", "outage"]] | None
    """What follows an exception, by its class. The nearest class among the ancestors decides.
    ``"outage"`` is the same as naming the class in ``dependency_errors``."""
    on_interrupt: Literal["retry", "fail", "retry_free"] | None
    """What follows when a stopping worker ends the run because its grace is over. Default:
    ``"retry_free"``, again at once on another worker, uncharged."""
    depends_on: str | Breaker | None
    """The dependency that a circuit breaker guards. When too many calls fail, all tasks that
    depend on it are held, uncharged, until some that are let through succeed."""
    dependency_errors: Sequence[type[BaseException]]
    """Exceptions which say that a dependency is down, as ``DependencyDown`` does: the task runs
    again later and charges no failure."""
    dependency_retry: Retries | None
    """The waits between such attempts. Default: growing, up to five minutes."""
    dependency_limit: int | Duration | None
    """How many such attempts (a number), or for how long since the first. Default: two days."""
    dependency_then: Literal["retry", "fail"] | None
    """What comes after that limit: ``"retry"`` (default), charged as any failure, or ``"fail"``."""
    history: Literal["all", "failures", "none"] | None
    """What is kept of its tasks that succeeded: ``"all"``; ``"failures"``, those that were claimed
    more than once, as by a retry; ``"none"``. Others are counted, and leave no row. Default: as
    the queue's."""
    encrypt: bool
    """Store payload, result and errors encrypted; who creates by name needs the setting, too."""


_WHEN = frozenset(When.__annotations__)
_KNOWN = frozenset(HandlerOptions.__annotations__)


def when_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said of a schedule."""
    return {word: value for word, value in options.items() if word in _WHEN}


def fields_of(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those fields of a HandlerSpec that its options decide.

    Raises:
        HandlerError: they cannot work.
    """
    if "commit" in options:
        raise HandlerError(
            f"Handler {name!r} says commit=, which is no option any more: every task commits on "
            "its own. Leave it out, and write with ctx.write(…) what needs no answer."
        )
    for word in options:
        if word not in _KNOWN:
            known = ", ".join(sorted(_KNOWN))
            lacks = f"Handler {name!r} has no option {word:.60}{meant(word, _KNOWN)}"
            raise HandlerError(f"{lacks}. Allowed: {known}.")
    said = {word: value for word, value in options.items() if value is not None}
    _check_together(name, said)
    policy = policy_in(name, "retry", said) or DEFAULT_POLICY
    return {
        "name": checked(name, lambda: check_name(name)),
        "queue": checked(name, lambda: check_queue(said.get("queue", "default"))),
        "retry": policy,
        "max_attempts": _max_attempts(name, said) or policy.max_attempts,
        "timeout": span_in(name, "timeout", said),
        "hard_timeout": span_in(name, "hard_timeout", said),
        "at_most_once": bool(said.get("at_most_once")),
        "encrypted": bool(said.get("encrypt")),
        "history": _history(name, said),
        "on_error": rules_in(name, said),
        "on_interrupt": checked(name, lambda: interrupt_in(said), "on_interrupt"),
        "depends_on": breaker_in(name, said),
        "outage": outage_rule_in(name, said),
    }


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a handler that was given none: of the module and the function, as Celery.

    Raises:
        HandlerError: the module has no name by which a worker could import it.
    """
    module, name = function.__module__, function.__name__
    if module in _MAINS:
        main = sys.modules[module]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file or "").stem
    if name == "<lambda>":
        raise HandlerError(
            "A lambda has no name for its tasks. Declare a function, or name it: "
            'handler("report.make")(lambda ctx: …).'
        )
    if not module:
        raise HandlerError(
            f"Handler {name} has no name, and it is in no file that would give it one. "
            f'Write @handler("{name}").'
        )
    return f"{module}.{name}"


def _check_together(name: str, said: Mapping[str, Any]) -> None:
    soft, hard = span_in(name, "timeout", said), span_in(name, "hard_timeout", said)
    if soft and hard and soft > hard:
        raise HandlerError(
            f"timeout of handler {name!r} is {format_duration(soft)}, and its process is killed "
            f"after hard_timeout, {format_duration(hard)}. Make timeout the shorter one."
        )
    at_most_once = said.get("at_most_once")
    if at_most_once and "on_interrupt" in said:
        raise HandlerError(
            f"{name!r} is at_most_once and says on_interrupt. Leave on_interrupt out: "
            "a run that is cut off goes to the error pool, its outcome unknown."
        )
    if at_most_once and said.get("dependency_errors"):
        raise HandlerError(
            f"{name!r} is at_most_once and says dependency_errors. Raise DependencyDown where "
            "nothing can have happened: an error may come after the effect."
        )


def _max_attempts(name: str, said: Mapping[str, Any]) -> int | None:
    number = said.get("max_attempts")
    if number is not None and (type(number) is not int or not 1 <= number <= MOST_ATTEMPTS):
        raise HandlerError(f"max_attempts of {name!r} is not an integer 1 .. {MOST_ATTEMPTS}.")
    return number


def _history(name: str, said: Mapping[str, Any]) -> HistoryLevel | None:
    history = said.get("history")
    return None if history is None else checked(name, lambda: parse_history(history), "history")
