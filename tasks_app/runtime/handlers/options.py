"""What ``@handler`` is told, and what that means for the tasks of the handler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from tasks_app.domain.durations import Duration, named_duration
from tasks_app.domain.errors import HandlerError, InvalidTaskError
from tasks_app.domain.flow_control.circuit_breaker import Breaker, check_breaker
from tasks_app.domain.handlers.outages import OutageRule, parse_limit
from tasks_app.domain.handlers.outcomes import Reaction
from tasks_app.domain.schedules.when import When
from tasks_app.domain.tasks.names import check_name, check_queue, shown
from tasks_app.domain.tasks.retry_policy import (
    DEFAULT_POLICY,
    MOST_ATTEMPTS,
    RetryPolicy,
    parse_policy,
)

T = TypeVar("T")
Retries = str | Sequence[Duration] | RetryPolicy
_MAINS = frozenset({"__main__", "__mp_main__"})


class HandlerOptions(When, total=False):
    """What ``@handler`` takes; None is as good as left out.

    With ``cron=``, ``every=`` or ``at=`` the handler has a schedule of its own name; ``schedule()``
    says what else there is, and gives its tasks a payload.
    """

    queue: str | None
    """Where its tasks go unless they say otherwise; default ``default``."""
    retry: Retries | None
    """The policy, such as ``"5s,30s,1m"``; default three attempts with growing waits."""
    max_attempts: int | None
    """Charged failures that lead to the error pool; default: the policy's."""
    timeout: Duration | None
    """Raised inside the handler after this long."""
    hard_timeout: Duration | None
    """The child process is killed after this long; default one hour."""
    at_most_once: bool
    """Always claimed alone; after a crash or an exception never run again."""
    on_error: Mapping[type[BaseException], Literal["retry", "fail", "retry_free", "outage"]] | None
    """What follows an exception, by its class; ``"outage"`` is what ``dependency_errors`` are. The
    nearest class in the ancestry of what was raised decides."""
    on_interrupt: Literal["retry", "fail", "retry_free"] | None
    """The same for a run that a stopping worker cuts off when its grace is over; default
    ``"retry_free"``: again at once, on another worker, uncharged."""
    depends_on: str | Breaker | None
    """What a breaker stands before: when too many of its calls fail, all tasks that depend on it
    are held, uncharged, until some that are let through succeed."""
    dependency_errors: Sequence[type[BaseException]]
    """Classes that say that something else is down, as ``DependencyDown`` does: again later,
    without charging a failure."""
    dependency_retry: Retries | None
    """The waits between such attempts; default growing, up to five minutes."""
    dependency_limit: int | Duration | None
    """How many of them (a number), or for how long since the first one; default two days."""
    dependency_then: Literal["retry", "fail"] | None
    """What comes after that: ``"retry"`` (default), charged as any failure, or ``"fail"``."""
    commit: Literal["each", "batch"] | None
    """``"each"`` (default): every task commits on its own. ``"batch"``: many fast tasks share a
    transaction; only for plain functions whose effects are all in ``ctx.session`` or
    ``ctx.connection``, because when one fails, all of them are rolled back and run again."""


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
    for word in options:
        if word not in _KNOWN:
            known = ", ".join(sorted(_KNOWN))
            raise HandlerError(f"Handler {name!r} has no option {word:.60}. Allowed: {known}.")
    said = {word: value for word, value in options.items() if value is not None}
    _check_together(name, said)
    policy = _policy(name, "retry", said) or DEFAULT_POLICY
    return {
        "name": _checked(name, None, lambda: check_name(name)),
        "queue": _checked(name, None, lambda: check_queue(said.get("queue", "default"))),
        "retry": policy,
        "max_attempts": _max_attempts(name, said) or policy.max_attempts,
        "timeout": _span(name, "timeout", said),
        "hard_timeout": _span(name, "hard_timeout", said),
        "at_most_once": bool(said.get("at_most_once")),
        "on_error": _rules(name, said),
        "on_interrupt": _checked(name, "on_interrupt", lambda: _interrupt(said)),
        "depends_on": _breaker(name, said),
        "outage": _outage_rule(name, said),
        "batched": said.get("commit") == "batch",
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
    if not module:
        raise HandlerError(
            f"Handler {name} has no name, and it is in no file that would give it one. "
            f'Write @handler("{name}").'
        )
    return f"{module}.{name}"


def checked(name: str, make: Callable[[], T]) -> T:
    """Return what it makes.

    Raises:
        HandlerError: that is refused.
    """
    return _checked(name, None, make)


def _checked(name: str, option: str | None, make: Callable[[], T]) -> T:
    """Do so; where the refusal does not say which ``option`` is meant, it is put before it."""
    try:
        return make()
    except (InvalidTaskError, ValueError) as error:
        problem = f"{option} {error}" if option else str(error)
        end = "" if problem.endswith(".") else "."
        raise HandlerError(f"Handler {name!r} is declared wrongly: {problem}{end}") from None


def _check_together(name: str, said: Mapping[str, Any]) -> None:
    commit, at_most_once = said.get("commit", "each"), said.get("at_most_once")
    if commit not in {"each", "batch"}:
        raise HandlerError(f'commit={commit!r} of {name!r} is neither "each" nor "batch".')
    if commit == "batch" and (said.get("depends_on") or said.get("dependency_errors")):
        raise HandlerError(
            f'{name!r} says commit="batch" and that it depends on something. Use commit="each": '
            "the effects of a batch are all in its database."
        )
    if commit == "batch" and at_most_once:
        raise HandlerError(
            f'{name!r} is at_most_once and says commit="batch". Use commit="each": '
            "when a batch is rolled back, its handlers run again."
        )
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


def _policy(name: str, option: str, said: Mapping[str, Any]) -> RetryPolicy | None:
    retry = said.get(option)
    if not retry:
        return None
    try:
        return parse_policy(retry)
    except ValueError as error:
        raise HandlerError(
            f"Handler {name!r} is declared wrongly: {option} {error}. "
            "Allowed: such as '5s,30s,1m' or 'fixed 30s'."
        ) from None


def _span(name: str, option: str, said: Mapping[str, Any]) -> Any:
    if option not in said:
        return None
    span = _checked(name, None, lambda: named_duration(option, said[option]))
    if not span:
        raise HandlerError(f"{option} of handler {name!r} is 0 s. Leave it out.")
    return span


def _breaker(name: str, said: Mapping[str, Any]) -> Breaker | None:
    depends_on = said.get("depends_on")
    return None if depends_on is None else _checked(name, None, lambda: check_breaker(depends_on))


def _interrupt(said: Mapping[str, Any]) -> Reaction:
    reaction = _reaction(said.get("on_interrupt", Reaction.RETRY_FREE))
    if reaction is Reaction.OUTAGE:
        raise ValueError("is 'outage', but nothing else is down then")
    return reaction


def _reaction(word: Any) -> Reaction:
    if word not in list(Reaction):
        raise ValueError(f"is {shown(word)}. Allowed: {', '.join(Reaction)}.")
    return Reaction(word)


def _rules(name: str, said: Mapping[str, Any]) -> dict[type[BaseException], Reaction]:
    rules: dict[type[BaseException], Reaction] = {}
    for kind, word in said.get("on_error", {}).items():
        _check_class(name, "on_error", kind)
        rules[kind] = _checked(name, f"on_error of {kind.__name__}", partial(_reaction, word))
    for kind in said.get("dependency_errors", ()):
        _check_class(name, "dependency_errors", kind)
        if rules.setdefault(kind, Reaction.OUTAGE) is not Reaction.OUTAGE:
            raise HandlerError(f"{name!r} has {kind.__name__} in dependency_errors and on_error.")
    return rules


def _check_class(name: str, option: str, kind: Any) -> None:
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise HandlerError(f"{option} of {name!r} has {kind!r:.60}, which is no exception's class.")


def _outage_rule(name: str, said: Mapping[str, Any]) -> OutageRule:
    rule = OutageRule()
    then = said.get("dependency_then", Reaction.RETRY)
    if then not in {Reaction.RETRY, Reaction.FAIL}:
        raise HandlerError(f'dependency_then={then!r} of {name!r} is neither "retry" nor "fail".')
    most, longest = rule.most, rule.longest
    limit = said.get("dependency_limit")
    if limit is not None:
        most, longest = _checked(name, "dependency_limit", lambda: parse_limit(limit))
    policy = _policy(name, "dependency_retry", said) or rule.retry
    return OutageRule(policy, most, longest, Reaction(then))
