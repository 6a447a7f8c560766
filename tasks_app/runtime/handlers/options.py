"""The options of ``@handler``: how they are read and checked, and what they mean for its tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from tasks_app.domain.config.retention import parse_history
from tasks_app.domain.durations import Duration, format_duration, named_duration
from tasks_app.domain.errors import HandlerError, InvalidTaskError, suggestion_for
from tasks_app.domain.flow_control.circuit_breaker import Breaker, check_breaker
from tasks_app.domain.handlers.outcomes import OutageRule, Reaction, parse_outage_limit
from tasks_app.domain.locks import stored_locks
from tasks_app.domain.schedules.timing import When
from tasks_app.domain.tasks.options import Locks, check_name, check_queue, shown_value
from tasks_app.domain.tasks.retry_policy import (
    DEFAULT_POLICY,
    MOST_ATTEMPTS,
    RETRIES,
    RetryPolicy,
    parse_policy,
)

Retries = str | Sequence[Duration] | RetryPolicy


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
    at_once: int
    """How many tasks one call takes, if so many are there. The function is ``(ctx, items)``, and
    each ``Item`` has a payload and an outcome of its own. Default: 1, a plain handler."""
    at_most_once: bool
    """Claim each task alone, and never run it again after a crash or an exception. ``retry`` then
    holds only where the handler raises ``Retry``, or ``on_error`` says so."""
    on_error: Mapping[type[BaseException], Literal["retry", "fail", "retry_free", "outage"]] | None
    """What follows an exception, by its class. The nearest class among the ancestors decides.
    ``"outage"`` is the same as naming the class in ``dependency_errors``."""
    on_interrupt: Literal["retry", "fail", "retry_free"] | None
    """What follows when a stopping worker ends the run because its grace is over. Default:
    ``"retry_free"``, again at once on another worker, uncharged."""
    locks: str | Sequence[str] | Locks | None
    """Resources that each task locks while it runs, such as ``"account:{account}"``, with a field
    of its payload. It waits for them before it is claimed. A task's own ``locks=`` go first."""
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
    cancellable: bool
    """``False``: a cancel neither interrupts its runs nor kills their process. It only sets
    ``ctx.cancelled``. Default: ``True``, and ``TaskCancelledError`` is raised inside the handler;
    an async one gets ``asyncio.CancelledError``, and its run ends as the same."""
    encrypt: bool
    """Store payload, result and errors encrypted; who creates by name needs the setting, too."""


MOST_AT_ONCE = 500  # a child claims no more at a time
_WHEN = frozenset(When.__annotations__)
_KNOWN = frozenset(HandlerOptions.__annotations__)
T = TypeVar("T")


def when_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the handler's schedule."""
    return {word: value for word, value in options.items() if word in _WHEN}


def fields_of(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a HandlerSpec that its options decide."""
    if "commit" in options:
        raise HandlerError(
            f"Handler {name!r} has commit=, an option that is gone: every task commits on its own. "
            "Leave it out, and write with ctx.write(…) what needs no answer."
        )
    for word in options:
        if word not in _KNOWN:
            known = ", ".join(sorted(_KNOWN))
            lacks = f"Handler {name!r} has no option {word:.60}{suggestion_for(word, _KNOWN)}"
            raise HandlerError(f"{lacks}. Allowed: {known}.")
    given = {word: value for word, value in options.items() if value is not None}
    _check_combination(name, given)
    policy = _policy_in(name, "retry", given) or DEFAULT_POLICY
    locks = given.get("locks")
    number, history, depends_on = (given.get(w) for w in ("max_attempts", "history", "depends_on"))
    if number is not None and (type(number) is not int or not 1 <= number <= MOST_ATTEMPTS):
        raise HandlerError(f"max_attempts of {name!r} is not an integer 1 .. {MOST_ATTEMPTS}.")
    at_once = given.get("at_once", 1)
    if type(at_once) is not int or not 1 <= at_once <= MOST_AT_ONCE:
        raise HandlerError(f"at_once of {name!r} is not an integer 1 .. {MOST_AT_ONCE}.")
    return {
        "name": checked(name, lambda: check_name(name)),
        "at_once": at_once,
        "queue": checked(name, lambda: check_queue(given.get("queue", "default"))),
        "retry": policy,
        "max_attempts": number or policy.max_attempts,
        "timeout": _span_in(name, "timeout", given),
        "hard_timeout": _span_in(name, "hard_timeout", given),
        "at_most_once": bool(given.get("at_most_once")),
        "encrypted": bool(given.get("encrypt")),
        "locks": None if locks is None else checked(name, lambda: stored_locks(locks)),
        "cancellable": bool(given.get("cancellable", True)),
        "history": None
        if history is None
        else checked(name, lambda: parse_history(history), "history"),
        "on_error": _error_rules(name, given),
        "on_interrupt": checked(name, lambda: _interrupt_reaction(given), "on_interrupt"),
        "depends_on": None
        if depends_on is None
        else checked(name, lambda: check_breaker(depends_on)),
        "outage": _outage_rule(name, given),
    }


def name_of(function: Callable[..., Any]) -> str:
    """Return module and function, as Celery; HandlerError: a worker could not import the module."""
    module, name = function.__module__, function.__name__
    if module in {"__main__", "__mp_main__"}:
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
            f"Handler {name} has no name, and no file that would give it one. "
            f'Write @handler("{name}").'
        )
    return f"{module}.{name}"


def checked(name: str, make: Callable[[], T], option: str | None = None) -> T:
    """Return what ``make`` returns, or raise its error as HandlerError, after ``option``."""
    try:
        return make()
    except (InvalidTaskError, ValueError) as error:
        problem = f"{option} {error}" if option else str(error)
        end = "" if problem.endswith(".") else "."
        raise HandlerError(f"Handler {name!r} is declared wrongly: {problem}{end}") from None


def _check_combination(name: str, given: Mapping[str, Any]) -> None:
    soft, hard = _span_in(name, "timeout", given), _span_in(name, "hard_timeout", given)
    if soft and hard and soft > hard:
        raise HandlerError(
            f"timeout of handler {name!r} is {format_duration(soft)}, and its process is killed "
            f"after hard_timeout, {format_duration(hard)}. Make timeout the shorter one."
        )
    at_most_once = given.get("at_most_once")
    if at_most_once and "at_once" in given:
        raise HandlerError(
            f"{name!r} is at_most_once and has at_once. Leave one of them out: a call that raises "
            "runs its items once more, one by one."
        )
    if at_most_once and "on_interrupt" in given:
        raise HandlerError(
            f"{name!r} is at_most_once and has on_interrupt. Leave on_interrupt out: "
            "a run that is cut off goes to the error pool, its outcome unknown."
        )
    if at_most_once and given.get("dependency_errors"):
        raise HandlerError(
            f"{name!r} is at_most_once and has dependency_errors. Raise DependencyDown where "
            "nothing can have happened: an error may come after the effect."
        )


def _policy_in(name: str, option: str, given: Mapping[str, Any]) -> RetryPolicy | None:
    retry = given.get(option)
    if not retry:
        return None
    try:
        return parse_policy(retry)
    except ValueError as error:
        raise HandlerError(
            f"Handler {name!r} is declared wrongly: {option} {error}. Allowed: {RETRIES}."
        ) from None


def _span_in(name: str, option: str, given: Mapping[str, Any]) -> Any:
    if option not in given:
        return None
    span = checked(name, lambda: named_duration(option, given[option]))
    if not span:
        raise HandlerError(f"{option} of handler {name!r} is 0 s. Leave it out.")
    return span


def _reaction(word: Any) -> Reaction:
    if word not in list(Reaction):
        raise ValueError(f"is {shown_value(word)}. Allowed: {', '.join(Reaction)}.")
    return Reaction(word)


def _interrupt_reaction(given: Mapping[str, Any]) -> Reaction:
    reaction = _reaction(given.get("on_interrupt", Reaction.RETRY_FREE))
    if reaction is Reaction.OUTAGE:
        raise ValueError("is 'outage', but no dependency is down then")
    return reaction


def _error_rules(name: str, given: Mapping[str, Any]) -> dict[type[BaseException], Reaction]:
    """Return the rules of ``on_error``, and those that ``dependency_errors`` means."""
    by_class, errors = given.get("on_error", {}), given.get("dependency_errors", ())
    for option, kinds in (("on_error", by_class), ("dependency_errors", errors)):
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise HandlerError(
                    f"{option} of {name!r} has {kind!r:.60}, which isn't an exception class."
                )
    rules = {
        kind: checked(name, partial(_reaction, word), f"on_error of {kind.__name__}")
        for kind, word in by_class.items()
    }
    for kind in errors:
        if rules.setdefault(kind, Reaction.OUTAGE) is not Reaction.OUTAGE:
            raise HandlerError(f"{name!r} has {kind.__name__} in dependency_errors and on_error.")
    return rules


def _outage_rule(name: str, given: Mapping[str, Any]) -> OutageRule:
    """Return how its tasks wait for a dependency that is down."""
    rule = OutageRule()
    then = given.get("dependency_then", Reaction.RETRY)
    if then not in {Reaction.RETRY, Reaction.FAIL}:
        raise HandlerError(f'dependency_then={then!r} of {name!r} is neither "retry" nor "fail".')
    most, longest = rule.most, rule.longest
    limit = given.get("dependency_limit")
    if limit is not None:
        most, longest = checked(name, lambda: parse_outage_limit(limit), "dependency_limit")
    policy = _policy_in(name, "dependency_retry", given) or rule.retry
    return OutageRule(policy, most, longest, Reaction(then))
