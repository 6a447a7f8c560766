"""The template of a row: what its name, handler and options say, in common with many others."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from random import Random
from typing import Any

from tasks_app.domain.durations import format_duration
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.spelling import ELSEWHERE, meant
from tasks_app.domain.tasks.names import check_name, check_queue
from tasks_app.domain.tasks.option_checks import (
    boolean,
    integer,
    key,
    milliseconds,
    moment,
    span,
    tried,
)
from tasks_app.domain.tasks.options import OrderPolicy, TaskOptions
from tasks_app.domain.tasks.payload import encode_object
from tasks_app.domain.tasks.records import RowTemplate
from tasks_app.domain.tasks.retry_policy import (
    MOST_ATTEMPTS,
    RETRIES,
    Levels,
    RetryPolicy,
    parse_policy,
)
from tasks_app.domain.tasks.unique_key import KeyRule, parse_rule

HEADERS_LIMIT = 8 * 1024
_KNOWN = frozenset(TaskOptions.__annotations__)
_RNG = Random()  # noqa: S311  jitter, not a secret


def checked_template(name: Any, spec: HandlerSpec | None, given: Mapping[str, Any]) -> RowTemplate:
    for option in given:
        if option not in _KNOWN:
            problem = "is unknown"
            if option not in ELSEWHERE:
                problem += f'; a value for the handler goes into the payload: {{"{option}": …}}'
            problem += meant(option, _KNOWN)
            raise InvalidTaskError(f"options.{option}", problem, ", ".join(sorted(_KNOWN)))
    options: Mapping[str, Any] = {k: v for k, v in given.items() if v is not None}
    retry = _policy(options, spec)
    wait_first = boolean(options, "wait_first", default=False)
    run_at = moment(options, "run_at")
    delay = span(options, "delay")
    if run_at is not None and delay is not None:
        raise InvalidTaskError("options.delay", "is given together with run_at", "one of the two")
    _check_limits(options, spec)
    return RowTemplate(
        name=check_name(name),
        queue=check_queue(_queue(options, spec)),
        priority=integer(options, "priority", 0, 9) if "priority" in options else 5,
        headers=_headers(options),
        enabled=boolean(options, "enabled", default=True),
        retry_level=1 if wait_first else 0,
        max_attempts=_max_attempts(options, retry, spec, wait_first=wait_first),
        retry=str(retry) if "retry" in options else None,
        run_at=run_at,
        delay=(delay or timedelta(0)) + _first_wait(retry, wait_first=wait_first),
        expires_at=moment(options, "expires_at"),
        timeout_ms=milliseconds(options, "timeout"),
        hard_timeout_ms=milliseconds(options, "hard_timeout"),
        order_skips=_order_skips(options),
        strict_order=boolean(options, "strict_order", default=False),
        fair_key=key(options, "fair_key"),
        rule=_rule(options, delay),
        encrypted=spec is not None and spec.encrypted,
    )


def _queue(options: Mapping[str, Any], spec: HandlerSpec | None) -> Any:
    queue = options.get("queue")
    if queue is not None:
        return queue
    return spec.queue if spec else "default"


def _policy(options: Mapping[str, Any], spec: HandlerSpec | None) -> RetryPolicy | None:
    if "retry" not in options:
        return spec.retry if spec else None
    return tried(parse_policy, options["retry"], "retry", RETRIES)


def _max_attempts(
    options: Mapping[str, Any],
    retry: RetryPolicy | None,
    spec: HandlerSpec | None,
    *,
    wait_first: bool,
) -> int | None:
    if options.get("max_attempts") is not None:
        return integer(options, "max_attempts", 1, MOST_ATTEMPTS)
    if "retry" not in options and spec and spec.max_attempts != spec.retry.max_attempts:
        return None  # the handler has a number of its own, which the claim writes into the row
    if wait_first and isinstance(retry, Levels):
        return len(retry.waits)  # level 1 precedes the first run, so each level has one run
    return retry.max_attempts if "retry" in options and retry else None


def _check_limits(options: Mapping[str, Any], spec: HandlerSpec | None) -> None:
    """Refuse a timeout that the hard limit would always come before, as far as both are known."""
    soft, hard = span(options, "timeout"), span(options, "hard_timeout")
    if soft is None and hard is None:
        return
    if spec is not None:
        soft, hard = soft or spec.timeout, hard or spec.hard_timeout
    if soft and hard and soft > hard:
        problem = f"is {format_duration(soft)}, longer than the hard limit"
        raise InvalidTaskError("options.timeout", problem, f"at most {format_duration(hard)}")


def _first_wait(retry: RetryPolicy | None, *, wait_first: bool) -> timedelta:
    if not wait_first:
        return timedelta(0)
    if retry is None:
        raise InvalidTaskError(
            "options.wait_first",
            "needs to know the waits",
            "it with retry=, or a known handler",
        )
    return retry.wait(1, _RNG)


def _headers(options: Mapping[str, Any]) -> str | None:
    headers = options.get("headers")
    return None if headers is None else encode_object(headers, "options.headers", HEADERS_LIMIT)


def _order_skips(options: Mapping[str, Any]) -> bool | None:
    policy = options.get("order_policy", OrderPolicy.BLOCKS)
    if not isinstance(policy, str) or policy not in set(OrderPolicy):
        raise InvalidTaskError("options.order_policy", "names no policy", ", ".join(OrderPolicy))
    return True if policy == OrderPolicy.SKIPS else None


def _rule(options: Mapping[str, Any], delay: timedelta | None) -> KeyRule | None:
    try:
        given = (options.get(name) for name in ("unique_scope", "on_conflict", "max_wait"))
        rule = parse_rule(*given)
    except ValueError as error:
        option, problem, allowed = error.args
        raise InvalidTaskError(f"options.{option}", problem, allowed) from None
    if rule and rule.max_wait and delay and delay > rule.max_wait:
        raise InvalidTaskError("options.max_wait", "is shorter than delay", "delay or more")
    return rule
