"""Those options of ``@handler`` that say what follows an error."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tasks_app.domain.errors import HandlerError
from tasks_app.domain.flow_control.circuit_breaker import Breaker, check_breaker
from tasks_app.domain.handlers.outages import OutageRule, parse_limit
from tasks_app.domain.handlers.outcomes import Reaction
from tasks_app.domain.tasks.names import shown
from tasks_app.runtime.handlers.option_values import checked, policy_in


def breaker_in(name: str, said: Mapping[str, Any]) -> Breaker | None:
    """Return what holds its tasks back, or None."""
    depends_on = said.get("depends_on")
    return None if depends_on is None else checked(name, lambda: check_breaker(depends_on))


def interrupt_in(said: Mapping[str, Any]) -> Reaction:
    """Raises ValueError."""
    reaction = _reaction(said.get("on_interrupt", Reaction.RETRY_FREE))
    if reaction is Reaction.OUTAGE:
        raise ValueError("is 'outage', but nothing else is down then")
    return reaction


def _reaction(word: Any) -> Reaction:
    if word not in list(Reaction):
        raise ValueError(f"is {shown(word)}. Allowed: {', '.join(Reaction)}.")
    return Reaction(word)


def rules_in(name: str, said: Mapping[str, Any]) -> dict[type[BaseException], Reaction]:
    """Return the rules of ``on_error``, and those that ``dependency_errors`` means."""
    rules: dict[type[BaseException], Reaction] = {}
    for kind, word in said.get("on_error", {}).items():
        _check_class(name, "on_error", kind)
        rules[kind] = checked(name, partial(_reaction, word), f"on_error of {kind.__name__}")
    for kind in said.get("dependency_errors", ()):
        _check_class(name, "dependency_errors", kind)
        if rules.setdefault(kind, Reaction.OUTAGE) is not Reaction.OUTAGE:
            raise HandlerError(f"{name!r} has {kind.__name__} in dependency_errors and on_error.")
    return rules


def _check_class(name: str, option: str, kind: Any) -> None:
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise HandlerError(f"{option} of {name!r} has {kind!r:.60}, which is no exception's class.")


def outage_rule_in(name: str, said: Mapping[str, Any]) -> OutageRule:
    """Return how its tasks wait for what is down."""
    rule = OutageRule()
    then = said.get("dependency_then", Reaction.RETRY)
    if then not in {Reaction.RETRY, Reaction.FAIL}:
        raise HandlerError(f'dependency_then={then!r} of {name!r} is neither "retry" nor "fail".')
    most, longest = rule.most, rule.longest
    limit = said.get("dependency_limit")
    if limit is not None:
        most, longest = checked(name, lambda: parse_limit(limit), "dependency_limit")
    policy = policy_in(name, "dependency_retry", said) or rule.retry
    return OutageRule(policy, most, longest, Reaction(then))
